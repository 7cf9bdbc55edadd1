"""Criteria of profiles over depth, and the base class of all criteria."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import pandas as pd

from repdyn.recipes.judging import QUANTILES, RhoBound, redrawn, rho_text
from repdyn.recipes.measured import Layers, Measured, NotMeasuredError, Profile, Step
from repdyn.tables import criteria as of_findings
from repdyn.tables.effects import CannotBeJudgedError, Claim, Effect, Estimate, Verdict, conjunction
from repdyn.tables.findings import findings

Axis: TypeAlias = Literal["depth", "training", "other metric", "width", "stage", "models"]
Judgement: TypeAlias = tuple[Verdict, str]
"""A verdict, and the measured numbers on which it is based."""

_OPPOSITE: dict[Verdict, Verdict] = {
    "shown": "not shown",
    "not shown": "shown",
    "cannot be judged": "cannot be judged",
}


class BaseCriterion(ABC):
    """A criterion by which a published value is judged on measured ones; the base class of all kinds."""

    over_models: ClassVar[bool] = False
    """Whether all models are judged together."""
    step: Step = "last"
    """Step at which a profile is judged and drawn."""
    layers: Layers = "mean"
    """Blocks over which the values of a course are taken."""

    @property
    def least_models(self) -> int:
        """Number of models that a verdict needs."""
        return 1

    @property
    def least_checkpoints(self) -> int:
        """Number of checkpoints of a model that a verdict needs."""
        return 1

    @property
    def axis(self) -> Axis:
        """Quantity on the horizontal axis of a figure."""
        return "training"

    @property
    def band(self) -> tuple[float, float] | None:
        """Published range on the horizontal axis; None if there is none."""
        return None

    @property
    @abstractmethod
    def short(self) -> str:
        """Title of the published value, a few words."""

    @property
    @abstractmethod
    def text(self) -> str:
        """Sentence that states the criterion with its numbers."""

    @abstractmethod
    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        """Judge the measurements of one model, or of all of them.

        Raises:
            NotMeasuredError: the store has no measurement to judge.
            CannotBeJudgedError: the measurements do not allow a verdict.
        """


@dataclass(frozen=True)
class PublishedFinding(BaseCriterion):
    """One of the findings of docs/findings.md, by the criterion there."""

    finding: Literal["bell", "uniform", "growth", "dimension"]

    @property
    def least_checkpoints(self) -> int:
        return 1 if self.axis == "depth" else 3

    @property
    def axis(self) -> Axis:
        return "depth" if self.finding in {"bell", "uniform"} else "training"

    @property
    def band(self) -> tuple[float, float] | None:
        return of_findings.MIDDLE if self.finding == "bell" else None

    @property
    def short(self) -> str:
        return of_findings.MEANINGS[self.finding].partition(" (")[0]

    @property
    def text(self) -> str:
        return str(getattr(of_findings, self.finding.upper()))

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        (measured,) = models
        subset = metric.partition("@")[2] or "all"
        measured.cells(metric)
        for found in findings(measured.judged_frame):
            if (found.name, found.subset) == (self.finding, subset):
                return found.verdict, found.evidence
        raise NotMeasuredError(f"the finding {self.finding!r} is not judged on {subset}")


@dataclass(frozen=True)
class Peak(BaseCriterion):
    """A peak of the profile over depth, between two relative depths.

    The highest block there exceeds the first and the last block by more than ``more``, and every block outside.
    ``absent`` claims the opposite.
    """

    depth: tuple[float, float] = of_findings.MIDDLE
    more: float = of_findings.MORE
    step: Step = "last"
    absent: bool = False

    sign: ClassVar[int] = 1

    @property
    def axis(self) -> Axis:
        return "depth"

    @property
    def band(self) -> tuple[float, float]:
        return self.depth

    @property
    def short(self) -> str:
        low, high = self.depth
        name = "peak" if self.sign > 0 else "valley"
        return f"no {name}, {self.step} step" if self.absent else f"{name} at depth {low:g} to {high:g}"

    @property
    def text(self) -> str:
        low, high = self.depth
        extreme, lies = ("highest", "exceeds") if self.sign > 0 else ("lowest", "is exceeded by")
        claim = (
            f"At the {self.step} measured step, the {extreme} block at a relative depth of {low:g} to {high:g} {lies} "
            f"every block outside, the first and the last one by more than {self.more:.0%}."
        )
        return f"Not so: {claim}" if self.absent else claim

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        profile = models[0].profile(metric, self.step)
        low, high = self.depth
        blocks = list(zip(profile.positions, profile.blocks, strict=True))
        inside = [pair for pair in blocks if low <= pair[0] <= high]
        outside = [pair for pair in blocks if not low <= pair[0] <= high]
        if not inside or {0.0, 1.0} - {position for position, _ in outside}:
            raise CannotBeJudgedError(f"needs the first block, the last and one at {low:g} to {high:g} of the depth")
        (place, best), (_, rival) = (
            max(part, key=lambda pair: self.sign * pair[1].value) for part in (inside, outside)
        )
        ends = {position: block for position, block in outside if position in {0.0, 1.0}}
        claims = [
            self._exceeds("first", best, ends[0.0], self.more),
            self._exceeds("last", best, ends[1.0], self.more),
            self._exceeds("outside", best, rival, 0.0),
        ]
        evidence = f"{best} at depth {place:.2f}; {', '.join(map(str, claims))}; step {profile.step:,}"
        verdict = conjunction(claim.verdict for claim in claims)
        return (_OPPOSITE[verdict] if self.absent else verdict), evidence

    def _exceeds(self, name: str, best: Estimate, other: Estimate, more: float) -> Claim:
        if self.sign > 0:
            return Claim(f"peak/{name}", Effect.of(best, other), above=more)
        return Claim(f"{name}/valley", Effect.of(other, best), above=more)


@dataclass(frozen=True)
class Trend(BaseCriterion):
    """Spearman's correlation of the value with depth, over blocks, at least or at most some value."""

    at_least: float | None = None
    at_most: float | None = None
    step: Step = "last"

    def __post_init__(self) -> None:
        RhoBound(self.at_least, self.at_most)  # an invalid bound is an error at once

    @property
    def axis(self) -> Axis:
        return "depth"

    @property
    def short(self) -> str:
        return f"correlation with depth {RhoBound(self.at_least, self.at_most)}"

    @property
    def text(self) -> str:
        bound = RhoBound(self.at_least, self.at_most)
        return (
            f"At the {self.step} measured step, Spearman's correlation with depth over blocks is {bound}, with its "
            "whole 95% interval over probes."
        )

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        profile = models[0].profile(metric, self.step)
        drawn = depth_correlations(profile, redrawn(profile.blocks))
        (value,) = depth_correlations(profile, np.array([[block.value for block in profile.blocks]]))
        low, high = np.quantile(drawn, QUANTILES)
        evidence = rho_text(value, low, high, f"{len(profile.blocks)} blocks")
        return RhoBound(self.at_least, self.at_most).judge(low, high), f"{evidence}; step {profile.step:,}"


def depth_correlations(profile: Profile, values: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation with depth of each row of (n, n_blocks) values; 0 for a constant row."""
    depths, ranks = pd.Series(profile.positions).rank().to_numpy(), pd.DataFrame(values).rank(axis=1).to_numpy()
    x, y = depths - depths.mean(), ranks - ranks.mean(axis=1, keepdims=True)
    scale = np.sqrt((x**2).sum() * (y**2).sum(axis=1))
    return np.divide(y @ x, scale, out=np.zeros(len(y)), where=scale > 0)


@dataclass(frozen=True)
class Valley(Peak):
    """A valley of the profile over depth: as :class:`Peak`, with the lowest block, which the others exceed."""

    sign: ClassVar[int] = -1
