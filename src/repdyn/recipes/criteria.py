"""Criteria by which published values are judged on one model: of profiles over depth, of courses over training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from repdyn.recipes.measured import (
    QUANTILES,
    Course,
    Layers,
    Measured,
    NotMeasuredError,
    Profile,
    Step,
    blocks_text,
    redrawn,
)
from repdyn.tables import findings as of_findings
from repdyn.tables.effects import (
    CONFIDENCE,
    CannotBeJudgedError,
    Claim,
    Effect,
    Estimate,
    Verdict,
    conjunction,
)
from repdyn.tables.findings import findings

Axis: TypeAlias = Literal["depth", "training"]
Change: TypeAlias = Literal["rise", "fall"]
Judgement: TypeAlias = tuple[Verdict, str]
"""A verdict, and the measured numbers on which it is based."""

_OPPOSITE: dict[Verdict, Verdict] = {
    "shown": "not shown",
    "not shown": "shown",
    "cannot be judged": "cannot be judged",
}


class BaseCriterion(ABC):
    """A criterion by which a published value is judged on measured ones; the base class of all kinds."""

    step: Step = "last"
    """Step at which a profile is judged and drawn."""
    layers: Layers = "mean"
    """Blocks over which the values of a course are taken."""
    least_checkpoints: int = 1
    """Number of checkpoints of a model that a verdict needs."""
    axis: Axis = "training"
    """Quantity on the horizontal axis of a figure."""

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
    def judge(self, measured: Measured, metric: str) -> Judgement:
        """Judge the measurements of one model."""


def interval_verdict(low: float, high: float, least: float, most: float) -> Verdict:
    """Judge the claim that a value lies from ``least`` to ``most``, as its whole interval must."""
    if least <= low and high <= most:
        return "shown"
    return "not shown" if high < least or low > most else "cannot be judged"


@dataclass(frozen=True)
class PublishedFinding(BaseCriterion):
    """One of the findings of docs/findings.md, by the criterion there."""

    finding: Literal["bell", "uniform", "growth", "dimension"]

    def __post_init__(self) -> None:
        is_profile = self.finding in {"bell", "uniform"}
        object.__setattr__(self, "axis", "depth" if is_profile else "training")
        object.__setattr__(self, "least_checkpoints", 1 if is_profile else 3)

    @property
    def band(self) -> tuple[float, float] | None:
        return of_findings.MIDDLE if self.finding == "bell" else None

    @property
    def short(self) -> str:
        return of_findings.MEANINGS[self.finding].partition(" (")[0]

    @property
    def text(self) -> str:
        return str(getattr(of_findings, self.finding.upper()))

    def judge(self, measured: Measured, metric: str) -> Judgement:
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
    axis = "depth"

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

    def judge(self, measured: Measured, metric: str) -> Judgement:
        profile = measured.profile(metric, self.step)
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
            self._exceeds("the first block", best, ends[0.0], self.more),
            self._exceeds("the last block", best, ends[1.0], self.more),
            self._exceeds("each block outside", best, rival, 0.0),
        ]
        evidence = f"{best} at depth {place:.2f}; {'; '.join(map(str, claims))}; step {profile.step:,}"
        verdict = conjunction(claim.verdict for claim in claims)
        return (_OPPOSITE[verdict] if self.absent else verdict), evidence

    def _exceeds(self, name: str, best: Estimate, other: Estimate, more: float) -> Claim:
        if self.sign > 0:
            return Claim("it", (f"exceeds {name}", f"is below {name}"), Effect.of(best, other), above=more)
        return Claim(name, ("exceeds it", "is below it"), Effect.of(other, best), above=more)


@dataclass(frozen=True)
class Trend(BaseCriterion):
    """Spearman's correlation of the value with depth, over blocks, at least or at most some value."""

    at_least: float | None = None
    at_most: float | None = None
    step: Step = "last"
    axis = "depth"

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("expected either at_least or at_most, got both or neither; keep one")

    @property
    def short(self) -> str:
        return f"correlation with depth {self._bound}"

    @property
    def text(self) -> str:
        return (
            f"At the {self.step} measured step, Spearman's correlation with depth over blocks is {self._bound}, with "
            "its whole 95% interval over probes."
        )

    @property
    def _bound(self) -> str:
        return f"at most {self.at_most:g}" if self.at_least is None else f"at least {self.at_least:g}"

    def judge(self, measured: Measured, metric: str) -> Judgement:
        profile = measured.profile(metric, self.step)
        drawn = depth_correlations(profile, redrawn(profile.blocks))
        (value,) = depth_correlations(profile, np.array([[block.value for block in profile.blocks]]))
        low, high = np.quantile(drawn, QUANTILES)
        least = -math.inf if self.at_least is None else self.at_least
        verdict = interval_verdict(low, high, least, math.inf if self.at_most is None else self.at_most)
        evidence = f"rho {value:.2f} [{low:.2f}, {high:.2f}] over {len(profile.blocks)} blocks; step {profile.step:,}"
        return verdict, evidence


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


@dataclass(frozen=True)
class Phases(BaseCriterion):
    """Phases over training, such as fall, rise, fall: each changes the value by more than its share of ``more``.

    The turning points are the measured steps that make the sum of the changes largest.
    """

    phases: tuple[Change, ...]
    more: tuple[float, ...]
    layers: Layers = "mean"

    def __post_init__(self) -> None:
        if len(self.more) != len(self.phases):
            raise ValueError(f"expected one value of more for each of {len(self.phases)} phases, got {len(self.more)}")
        object.__setattr__(self, "least_checkpoints", len(self.phases) + 1)

    @property
    def short(self) -> str:
        return ", ".join(self.phases)

    @property
    def text(self) -> str:
        parts = [f"{phase} by more than {share:.0%}" for phase, share in zip(self.phases, self.more, strict=True)]
        return f"Over training, {blocks_text(self.layers)}: {', then '.join(parts)}."

    def judge(self, measured: Measured, metric: str) -> Judgement:
        course = measured.course(metric, self.layers)
        _require_beginning(course, self.least_checkpoints)
        if min(value.value for value in course.values) <= 0:
            raise CannotBeJudgedError("ratios need values above 0")
        turns = turning_points([math.log(value.value) for value in course.values], self.phases)
        claims = []
        for number, (phase, more) in enumerate(zip(self.phases, self.more, strict=True)):
            begin, end = turns[number], turns[number + 1]
            effect = Effect.of(course.values[end], course.values[begin])
            # a fall divides the value by more than 1 + more
            bounds = {"above": more} if phase == "rise" else {"below": 1 / (1 + more) - 1}
            claims.append(Claim(f"to step {course.steps[end]:,} it", ("rises", "falls"), effect, **bounds))
        return conjunction(claim.verdict for claim in claims), "; ".join(map(str, claims))


@dataclass(frozen=True)
class Between(BaseCriterion):
    """A value at the first or last measured step, between two bounds with its whole interval."""

    bounds: tuple[float, float]
    step: Step = "last"
    layers: Layers = "mean"

    @property
    def short(self) -> str:
        return "{:g} to {:g}".format(*self.bounds)

    @property
    def text(self) -> str:
        low, high = self.bounds
        return f"At the {self.step} measured step, between {low:g} and {high:g} ({blocks_text(self.layers)})."

    def judge(self, measured: Measured, metric: str) -> Judgement:
        course = measured.course(metric, self.layers)
        at = 0 if self.step == "first" else -1
        value = course.values[at]
        if math.isnan(value.std_error):
            raise CannotBeJudgedError("no interval: a single batch, or batches that share windows")
        half = float(stdtrit(value.n_batches - 1, (1 + CONFIDENCE) / 2)) * value.std_error
        verdict = interval_verdict(value.value - half, value.value + half, *self.bounds)
        return verdict, f"{value} +- {half:.2g} at step {course.steps[at]:,}"


def turning_points(values: Sequence[float], phases: Sequence[str]) -> list[int]:
    """Return the first place, the turning points and the last place that make the changes of the phases largest.

    >>> turning_points([5.0, 2.0, 3.0, 9.0, 8.0, 4.0], ["fall", "rise", "fall"])
    [0, 1, 3, 5]
    """
    level = np.asarray(values, float)
    n = len(level)
    best, before = np.where(np.arange(n) == 0, 0.0, -math.inf), []
    for phase in phases:
        sign = 1.0 if phase == "rise" else -1.0
        # from place i (rows) to a later place j (columns)
        gains = np.where(np.triu(np.ones((n, n), bool), 1), best[:, None] + sign * (level - level[:, None]), -math.inf)
        before.append(gains.argmax(axis=0))
        best = gains.max(axis=0)
    places = [n - 1]
    for chosen in reversed(before):
        places.append(int(chosen[places[-1]]))
    return places[::-1]


def _require_beginning(course: Course, n_steps: int) -> None:
    first, last = course.steps[0], course.steps[-1]
    if len(course.steps) < n_steps:
        raise CannotBeJudgedError(f"needs {n_steps} checkpoints, got {len(course.steps)}")
    if first > of_findings.EARLY * last:
        raise CannotBeJudgedError(f"no value before step {first:,} of {last:,}; the course may begin earlier")
