"""Criteria by which published values are judged: of profiles over depth, of courses over training,
of tables.

A criterion is either a number that must lie between two bounds with its whole 95% interval, or
changes that must be larger than a share. Each names the kind that a recipe gives it;
docs/reproduce.md describes them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from pydantic import AfterValidator

from repdyn.checkpoints.suites import Strict
from repdyn.metrics.names import parsed
from repdyn.probe import Probe
from repdyn.views.judging import effects, findings
from repdyn.views.judging.effects import (
    CannotBeJudgedError,
    Claim,
    Effect,
    Estimate,
    Verdict,
    conjunction,
    judge_interval,
)
from repdyn.views.judging.surrogates import against_drift
from repdyn.views.tables.frames import measurements
from repdyn.views.tables.series import MetricSeries, series_of


def ascending(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"expected the lower bound first, got {bounds}")
    return bounds


Step: TypeAlias = Literal["first", "last"]
"""A measured step."""
Layers: TypeAlias = Literal["mean", "last", "lowest", "highest"]
"""Which blocks make up the value of a step: their mean, the last one, or the one with the lowest or
highest value.
"""
Profile: TypeAlias = dict[float, Estimate]
"""A metric of the blocks at one step, by relative depth: 0 is the first, 1 the last."""
Course: TypeAlias = dict[int, Estimate]
"""A metric over training, by ascending step."""
Axis: TypeAlias = Literal["depth", "training"]
Bounds: TypeAlias = Annotated[tuple[float, float], AfterValidator(ascending)]
Judgement: TypeAlias = tuple[Verdict, str]
"""A verdict, and the measured numbers on which it is based."""

_OPPOSITE: dict[Verdict, Verdict] = {"shown": "not shown", "not shown": "shown"}


class NotMeasuredError(Exception):
    """Carries the reason why a published value has nothing to be compared with."""


@dataclass(frozen=True, eq=False)
class Measured:
    """The rows of one model on one probe, scalars among them."""

    name: str
    frame: pd.DataFrame
    """Values with a standard error of 0 are taken as exact."""
    probe: Probe | None = None
    deviations: tuple[str, ...] = ()
    """How the sampling differs from the recipe's."""

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Return the measured rows of layers, those of the published design with its bands."""
        return effects.with_bands(measurements(self.frame))

    def profile(self, name: str, step: Step, first_layer: int = 1) -> tuple[int, Profile]:
        """Return the first or last step at which a metric was measured, and the blocks with a value
        at it, from a layer on: 0 is the embedding output, at a depth below 0.
        """
        series = self.series(name, first_layer)
        chosen = series.steps[0] if step == "first" else series.steps[-1]
        blocks = findings.profile(series, 3, chosen)
        to_last = max(1, series.n_blocks - 1)
        return chosen, {(layer - 1) / to_last: block for layer, block in blocks.items()}

    def course(self, name: str, layers: Layers, first_layer: int = 1) -> Course:
        """Return the value at each step at which any block has one; the mean is over the same
        blocks at all of them, from a layer on.
        """
        series = self.series(name, first_layer)
        has_value = np.isfinite(series.values)
        if not has_value.any():
            raise CannotBeJudgedError(f"no value of {name}")
        if layers in {"lowest", "highest"}:
            return _extremes(series, has_value, layers)
        if layers == "last":
            last = np.flatnonzero(has_value.any(axis=1))[-1]
            series = series.from_layer(series.layers[last])
        return {snapshot.step: snapshot.mean for snapshot in findings.snapshots_of(series)[0]}

    def series(self, name: str, first_layer: int = 1) -> MetricSeries:
        """Return a metric at the blocks, layers 1 to L, or from another layer on."""
        series = series_of(self.rows, *split(name))
        if not series.steps:
            raise NotMeasuredError(f"{name} was not measured")
        return series.from_layer(first_layer)


def _extremes(series: MetricSeries, has_value: np.ndarray, layers: Layers) -> Course:
    """Return the lowest or the highest block of each step at which any has a value."""
    at_extreme = np.nanargmin if layers == "lowest" else np.nanargmax
    finite = np.where(has_value, series.values, np.nan)
    course = {}
    for column in np.flatnonzero(has_value.any(axis=0)).tolist():
        row = int(at_extreme(finite[:, column]))
        course[series.steps[column]] = effects.estimate_at(series, row, column)
    return course


def split(name: str) -> tuple[str, str]:
    """Return the name of a metric in rows, and the subset, "all" where none is given.

    >>> split("two_nn"), split("two_nn[discard=0.8]@no_sink")
    (('two_nn', 'all'), ('two_nn[discard=0.8]', 'no_sink'))
    """
    return name.partition("@")[0], parsed(name)[2] or "all"


@Strict
class Criterion(ABC):
    """A criterion by which a published value is judged on measured ones; the base class of all
    kinds.
    """

    step: Step = "last"
    """Step at which a profile is judged and drawn."""
    layers: Layers = "mean"
    """Blocks over which the values of a course are taken."""
    axis: Axis = "training"
    """Quantity on the horizontal axis of a figure."""

    @property
    def band(self) -> tuple[float, float] | None:
        """Return the published range on the horizontal axis; None if there is none."""
        return None

    @property
    @abstractmethod
    def text(self) -> str:
        """Return the sentence that states the criterion with its numbers."""

    @abstractmethod
    def judge(self, measured: Any, metric: str) -> Judgement:
        """Judge the measurements of one model, :class:`Measured`, or of a cell the table of a
        study.
        """

    @property
    def _blocks(self) -> str:
        """Name the blocks that make up a value."""
        return {"mean": "mean over blocks", "last": "last block"}.get(
            self.layers, f"{self.layers} block of each step"
        )


@dataclass(frozen=True)
class PublishedFinding(Criterion):
    """One of the findings of docs/findings.md, by the criterion there."""

    finding: Literal["bell", "uniform", "growth", "dimension"]
    kind: Literal["finding"] = "finding"

    def __post_init__(self) -> None:
        if self.finding in {"bell", "uniform"}:
            # the class is frozen, its axis follows from the finding
            object.__setattr__(self, "axis", "depth")

    @property
    def band(self) -> tuple[float, float] | None:
        return findings.MIDDLE if self.finding == "bell" else None

    @property
    def text(self) -> str:
        return str(getattr(findings, self.finding.upper()))

    def judge(self, measured: Measured, metric: str) -> Judgement:
        _, subset = split(metric)
        measured.series(metric)  # an error where it was not measured
        for finding in findings.findings(measured.frame):
            if (finding.name, finding.subset) == (self.finding, subset):
                other = finding.with_embeddings.replace("shown", "reproduced")
                return finding.verdict, f"{finding.evidence}; with layer 0, the embeddings: {other}"
        raise NotMeasuredError(f"the finding {self.finding!r} is not judged on {subset}")


@dataclass(frozen=True)
class Extreme(Criterion):
    """A peak of the profile over depth, between two relative depths.

    The highest block there exceeds the first and the last block by more than ``more``, and every
    block outside. ``absent`` claims the opposite. A valley is the same of the lowest block, which
    the others exceed.
    """

    kind: Literal["peak", "valley"]
    depth: Bounds = findings.MIDDLE
    more: float = findings.MORE
    step: Step = "last"
    absent: bool = False

    axis = "depth"

    @property
    def band(self) -> tuple[float, float]:
        return self.depth

    @property
    def text(self) -> str:
        low, high = self.depth
        extreme, lies = (
            ("highest", "exceeds") if self.kind == "peak" else ("lowest", "is exceeded by")
        )
        claim = (
            f"At the {self.step} measured step, the {extreme} block at a relative depth of {low:g} "
            f"to {high:g} {lies} every block outside, the first and the last one by more than "
            f"{self.more:.0%}."
        )
        return f"Not so: {claim}" if self.absent else claim

    def judge(self, measured: Measured, metric: str) -> Judgement:
        step, profile = measured.profile(metric, self.step)
        low, high = self.depth
        inside = {depth: block for depth, block in profile.items() if low <= depth <= high}
        outside = {depth: block for depth, block in profile.items() if depth not in inside}
        if not inside or not {0.0, 1.0} <= set(outside):
            raise CannotBeJudgedError(
                f"needs the first block, the last and one at {low:g} to {high:g} of the depth"
            )
        extreme = max if self.kind == "peak" else min
        depth, rival = (
            extreme(part, key=lambda at: profile[at].value) for part in (inside, outside)
        )
        claims = [
            self._exceeds("the first block", inside[depth], outside[0.0], self.more),
            self._exceeds("the last block", inside[depth], outside[1.0], self.more),
            self._exceeds("each block outside", inside[depth], outside[rival], 0.0),
        ]
        verdict = conjunction(claim.verdict for claim in claims)
        evidence = (
            f"{inside[depth].value:.3g} at depth {depth:.2f}; {'; '.join(map(str, claims))}; step "
            f"{step:,}"
        )
        return _OPPOSITE.get(verdict, verdict) if self.absent else verdict, evidence

    def _exceeds(self, name: str, extreme: Estimate, other: Estimate, more: float) -> Claim:
        if self.kind == "peak":
            return Claim(
                "it", (f"exceeds {name}", f"is below {name}"), Effect.of(extreme, other), above=more
            )
        return Claim(name, ("exceeds it", "is below it"), Effect.of(other, extreme), above=more)


@dataclass(frozen=True)
class Phases(Criterion):
    """Phases over training, such as fall, rise, fall: each changes the value by more than its share
    of ``more``.

    The turning points are the measured steps that make the sum of the changes largest. Phases that
    are no sharper than those of drift, by :mod:`repdyn.views.judging.surrogates`, cannot be judged.
    """

    phases: tuple[Literal["rise", "fall"], ...]
    more: tuple[float, ...]
    layers: Layers = "mean"
    kind: Literal["phases"] = "phases"

    def __post_init__(self) -> None:
        if len(self.more) != len(self.phases):
            raise ValueError(
                f"expected one value of more for each of {len(self.phases)} phases, got "
                f"{len(self.more)}"
            )

    @property
    def text(self) -> str:
        parts = [
            f"{phase} by more than {share:.0%}"
            for phase, share in zip(self.phases, self.more, strict=True)
        ]
        return f"Over training, {self._blocks}: {', then '.join(parts)}, more sharply than drift."

    def judge(self, measured: Measured, metric: str) -> Judgement:
        course = measured.course(metric, self.layers)
        if len(course) <= len(self.phases):
            raise CannotBeJudgedError(
                f"needs {len(self.phases) + 1} checkpoints, got {len(course)}"
            )
        values = np.array([estimate.value for estimate in course.values()])
        # phases are judged by logarithms, so that each change is a share
        if values.min() <= 0:
            raise CannotBeJudgedError("ratios need values above 0")
        turns = [[*course][depth] for depth in turning_points(np.log(values), self.phases)]
        drift, (first, *_, last) = against_drift(np.log(values), self.phases), turns
        if first > findings.EARLY * last:
            raise CannotBeJudgedError(
                f"no value before step {first:,} of {last:,}; the course may begin earlier"
            )
        claims = []
        for phase, more, (begin, end) in zip(self.phases, self.more, pairwise(turns), strict=True):
            effect = Effect.of(course[end], course[begin])
            # a fall divides the value by more than 1 + more
            above, below = (more, None) if phase == "rise" else (None, 1 / (1 + more) - 1)
            claims.append(
                Claim(
                    subject=f"to step {end:,} it",
                    verbs=("rises", "falls"),
                    effect=effect,
                    above=above,
                    below=below,
                )
            )
        # turning points chosen after the fact: drift has such phases, too
        beyond: Verdict = "shown" if drift.is_exceeded else "cannot be judged"
        return conjunction([*(claim.verdict for claim in claims), beyond]), "; ".join(
            map(str, (*claims, drift))
        )


def turning_points(values: Sequence[float] | np.ndarray, phases: Sequence[str]) -> list[int]:
    """Return the first place, the turning points and the last place that make the changes of the
    phases largest.

    >>> turning_points([5.0, 2.0, 3.0, 9.0, 8.0, 4.0], ["fall", "rise", "fall"])
    [0, 1, 3, 5]
    """
    level = np.asarray(values, float)
    last = len(values) - 1
    signs = np.array([1.0 if phase == "rise" else -1.0 for phase in phases])
    # all choices: there are few checkpoints, and fewer phases
    between = combinations(range(1, last), len(phases) - 1)
    return max(
        ([0, *places, last] for places in between),
        key=lambda places: float(signs @ np.diff(level[places])),
    )


@dataclass(frozen=True)
class Between(Criterion):
    """A value at the first or last measured step, between two bounds with its whole interval."""

    bounds: Bounds
    step: Step = "last"
    layers: Layers = "mean"
    kind: Literal["between"] = "between"

    @property
    def text(self) -> str:
        low, high = self.bounds
        return f"At the {self.step} measured step, between {low:g} and {high:g} ({self._blocks})."

    def judge(self, measured: Measured, metric: str) -> Judgement:
        course = measured.course(metric, self.layers)
        step = min(course) if self.step == "first" else max(course)
        value, half = course[step], course[step].half_width
        if math.isnan(value.std_error):
            raise CannotBeJudgedError(
                "no interval: a metric without one, or batches that share windows"
            )
        verdict = judge_interval(
            value.value - half, value.value + half, self.bounds, includes_bounds=True
        )
        return verdict, f"{value.value:.3g} +- {half:.2g} at step {step:,}"
