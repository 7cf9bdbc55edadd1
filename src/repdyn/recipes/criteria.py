"""Criteria by which published values are judged: of profiles over depth, of courses over training, over models."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
import pandas as pd
from pydantic import AfterValidator
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
    correlate,
    redrawn,
    require_trained,
    rho_text,
)
from repdyn.store.schema import PROBE_BITS_PER_BYTE, PROBE_LOSS
from repdyn.tables import findings as of_findings
from repdyn.tables.effects import (
    CONFIDENCE,
    MIN_PAIRS,
    CannotBeJudgedError,
    Claim,
    Effect,
    Estimate,
    Verdict,
    conjunction,
)
from repdyn.tables.findings import findings


def ascending(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"expected the lower bound first, got {bounds}")
    return bounds


Axis: TypeAlias = Literal["depth", "training", "other metric", "width", "stage", "models"]
Change: TypeAlias = Literal["rise", "fall"]
Bounds: TypeAlias = Annotated[tuple[float, float], AfterValidator(ascending)]
Judgement: TypeAlias = tuple[Verdict, str]
"""A verdict, and the measured numbers on which it is based."""

_OPPOSITE: dict[Verdict, Verdict] = {
    "shown": "not shown",
    "not shown": "shown",
    "cannot be judged": "cannot be judged",
}
_LEAST_CHECKPOINTS, _LEAST_MODELS = 5, 3
_LOSSES = {"loss": PROBE_LOSS, "bits_per_byte": PROBE_BITS_PER_BYTE}
"""Scalars with which features of models are compared, by the names that recipes give them."""


class BaseCriterion(ABC):
    """A criterion by which a published value is judged on measured ones; the base class of all kinds."""

    over_models: bool = False
    """Whether all models are judged together."""
    step: Step = "last"
    """Step at which a profile is judged and drawn."""
    layers: Layers = "mean"
    """Blocks over which the values of a course are taken."""
    least_models: int = 1
    """Number of models that a verdict needs."""
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
    def text(self) -> str:
        """Sentence that states the criterion with its numbers."""

    @abstractmethod
    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        """Judge the measurements of one model, or of all of them."""


def changed_by_more(subject: str, effect: Effect, change: Change, more: float) -> Claim:
    """Return the claim of a rise, or fall, by more than a share: a fall divides the value by more than 1 + ``more``."""
    bounds = {"above": more} if change == "rise" else {"below": 1 / (1 + more) - 1}
    return Claim(subject, ("rises", "falls"), effect, **bounds)


def interval_verdict(low: float, high: float, least: float, most: float) -> Verdict:
    """Judge the claim that a value lies from ``least`` to ``most``, as its whole interval must."""
    if least <= low and high <= most:
        return "shown"
    return "not shown" if high < least or low > most else "cannot be judged"


def require_one_share_each(phases: Sequence[Change], more: Sequence[float]) -> None:
    if len(more) != len(phases):
        raise ValueError(f"expected one value of more for each of {len(phases)} phases, got {len(more)}")


def phases_text(phases: Sequence[Change], more: Sequence[float]) -> str:
    parts = [f"{phase} by more than {share:.0%}" for phase, share in zip(phases, more, strict=True)]
    return ", then ".join(parts)


@dataclass(frozen=True, kw_only=True)
class RankCriterion(BaseCriterion):
    """The base class of criteria by a rank correlation: at least a value, or at most one."""

    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("expected either at_least or at_most, got both or neither; keep one")

    @property
    def bound(self) -> str:
        return f"at most {self.at_most:g}" if self.at_least is None else f"at least {self.at_least:g}"

    def verdict(self, low: float, high: float) -> Verdict:
        """Judge the bound by an interval, which must lie on the claimed side with its whole length."""
        least = -math.inf if self.at_least is None else self.at_least
        return interval_verdict(low, high, least, math.inf if self.at_most is None else self.at_most)


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

    depth: Bounds = of_findings.MIDDLE
    more: float = of_findings.MORE
    step: Step = "last"
    absent: bool = False

    sign: ClassVar[int] = 1
    axis = "depth"

    @property
    def band(self) -> tuple[float, float]:
        return self.depth

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
class Trend(RankCriterion):
    """Spearman's correlation of the value with depth, over blocks, at least or at most some value."""

    step: Step = "last"

    axis = "depth"

    @property
    def text(self) -> str:
        return (
            f"At the {self.step} measured step, Spearman's correlation with depth over blocks is {self.bound}, with "
            "its whole 95% interval over probes."
        )

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        profile = models[0].profile(metric, self.step)
        drawn = depth_correlations(profile, redrawn(profile.blocks))
        (value,) = depth_correlations(profile, np.array([[block.value for block in profile.blocks]]))
        low, high = np.quantile(drawn, QUANTILES)
        evidence = rho_text(value, low, high, f"{len(profile.blocks)} blocks")
        return self.verdict(low, high), f"{evidence}; step {profile.step:,}"


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
        require_one_share_each(self.phases, self.more)
        object.__setattr__(self, "least_checkpoints", len(self.phases) + 1)

    @property
    def text(self) -> str:
        return f"Over training, {blocks_text(self.layers)}: {phases_text(self.phases, self.more)}."

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        course = models[0].course(metric, self.layers)
        _require_beginning(course, self.least_checkpoints)
        if min(value.value for value in course.values) <= 0:
            raise CannotBeJudgedError("ratios need values above 0")
        turns = turning_points([math.log(value.value) for value in course.values], self.phases)
        claims = []
        for number, (phase, more) in enumerate(zip(self.phases, self.more, strict=True)):
            begin, end = turns[number], turns[number + 1]
            effect = Effect.of(course.values[end], course.values[begin])
            claims.append(changed_by_more(f"to step {course.steps[end]:,} it", effect, phase, more))
        return conjunction(claim.verdict for claim in claims), "; ".join(map(str, claims))


@dataclass(frozen=True)
class Correlation(RankCriterion):
    """Spearman's correlation over checkpoints of the metric with another one, at least or at most some value.

    ``other`` may be "probe/loss", the loss on the probe.
    """

    other: str
    layers: Layers = "mean"

    least_checkpoints = _LEAST_CHECKPOINTS
    axis = "other metric"

    @property
    def text(self) -> str:
        return (
            f"Over checkpoints, Spearman's correlation with {self.other} is {self.bound}, with its whole 95% interval "
            f"({blocks_text(self.layers)})."
        )

    def pairs(self, measured: Measured, metric: str) -> tuple[list[int], list[float], list[float]]:
        """Return the steps at which both have a value, and the values of the other one and of the metric."""
        values = _by_step(measured.course(metric, self.layers))
        if self.other == PROBE_LOSS:
            others = measured.scalar(PROBE_LOSS)
            if not others:
                raise NotMeasuredError("no loss on the probe was measured; sweep with --loss")
        else:
            others = _by_step(measured.course(self.other, self.layers))
        steps = [step for step in values if step in others]
        return steps, [others[step] for step in steps], [values[step] for step in steps]

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        steps, x, y = self.pairs(models[0], metric)
        if len(steps) < _LEAST_CHECKPOINTS:
            raise CannotBeJudgedError(f"needs {_LEAST_CHECKPOINTS} checkpoints, got {len(steps)}")
        notes = require_trained(models)
        rho = correlate(x, y, "checkpoints")
        evidence = rho_text(rho.value, rho.low, rho.high, f"{len(steps)} checkpoints")
        return self.verdict(rho.low, rho.high), "; ".join([evidence, *notes])


@dataclass(frozen=True)
class Halfway(BaseCriterion):
    """The step by which a metric has made half of its change, between two steps; the change is at least ``least``."""

    steps: Bounds
    least: float
    layers: Layers = "mean"

    least_checkpoints = 3

    @property
    def band(self) -> tuple[float, float]:
        return self.steps

    @property
    def text(self) -> str:
        low, high = self.steps
        return (
            f"From the first to the last measured step the value changes by at least {self.least:g}, and half of the "
            f"change is made by a step from {low:,.0f} to {high:,.0f}, both with their whole 95% intervals "
            f"({blocks_text(self.layers)})."
        )

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        course = models[0].course(metric, self.layers)
        _require_beginning(course, self.least_checkpoints)
        notes = require_trained(models)
        first, last = course.values[0].value, course.values[-1].value
        drawn = redrawn(course.values)
        changes = drawn[:, -1] - drawn[:, 0]
        sign = 1.0 if last >= first else -1.0
        least, most = np.quantile(sign * changes, QUANTILES)
        text = f"{last - first:+.3g}, from {first:.3g} to {last:.3g}"
        if least < self.least:
            size = f"changes by {text}, at least {least:.2g} and at most {most:.2g} in size"
            return ("not shown" if most < self.least else "cannot be judged"), "; ".join([size, *notes])
        # half of the change is made by the last step in every draw, since no change is 0
        halfway = ((drawn - drawn[:, :1]) / changes[:, None] >= 0.5).argmax(axis=1)
        steps = np.asarray(course.steps)[halfway]
        early, at, late = (
            int(step) for step in np.quantile(steps, (QUANTILES[0], 0.5, QUANTILES[1]), method="nearest")
        )
        evidence = f"half of {text} by step {at:,} [{early:,}, {late:,}]"
        return interval_verdict(early, late, *self.steps), "; ".join([evidence, *notes])


@dataclass(frozen=True)
class Between(BaseCriterion):
    """A value at the first or last measured step, between two bounds with its whole interval."""

    bounds: Bounds
    step: Step = "last"
    layers: Layers = "mean"

    @property
    def text(self) -> str:
        low, high = self.bounds
        return f"At the {self.step} measured step, between {low:g} and {high:g} ({blocks_text(self.layers)})."

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        course = models[0].course(metric, self.layers)
        at = 0 if self.step == "first" else -1
        value = course.values[at]
        if math.isnan(value.std_error):
            raise CannotBeJudgedError("no interval: a single batch, or batches that share windows")
        half = float(stdtrit(value.n_batches - 1, (1 + CONFIDENCE) / 2)) * value.std_error
        verdict = interval_verdict(value.value - half, value.value + half, *self.bounds)
        return verdict, f"{value} +- {half:.2g} at step {course.steps[at]:,}"


@dataclass(frozen=True)
class Scaling(BaseCriterion):
    """The exponent of a power law of the value in the model's width, over models, between two bounds."""

    exponent: Bounds
    layers: Layers = "mean"

    over_models = True
    least_models = _LEAST_MODELS
    axis = "width"

    @property
    def text(self) -> str:
        low, high = self.exponent
        return (
            f"Over models, the value at the last step grows as a power of the width with an exponent of {low:g} to "
            f"{high:g}, with its whole 95% interval ({blocks_text(self.layers)}; least squares of the logarithms)."
        )

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        points = [(each.dim, each.course(metric, self.layers).values[-1].value) for each in models]
        if len({dim for dim, _ in points}) < _LEAST_MODELS or len(points) < _LEAST_MODELS:
            raise CannotBeJudgedError(f"needs models of {_LEAST_MODELS} widths, got {len({dim for dim, _ in points})}")
        if min(value for _, value in points) <= 0:
            raise CannotBeJudgedError("a power law needs values above 0")
        notes = require_trained(models)
        slope, half = _slope(*np.log(np.array(points, float)).T)
        verdict = interval_verdict(slope - half, slope + half, *self.exponent)
        evidence = f"exponent {slope:.2f} [{slope - half:.2f}, {slope + half:.2f}] over {len(points)} models"
        return verdict, "; ".join([evidence, *notes])


@dataclass(frozen=True)
class Across(RankCriterion):
    """Spearman's correlation over models of a feature of their last profile with their loss or size.

    The feature is the relative depth of the ``onset`` of a peak, the first block that has made half of the rise from
    the first block to the highest one; the ``trend``, Spearman's correlation of the value with depth; or the ``value``.
    """

    feature: Literal["onset", "trend", "value"]
    against: Literal["loss", "bits_per_byte", "parameters", "width"]
    layers: Layers = "mean"

    over_models = True
    least_models = MIN_PAIRS
    axis = "models"

    @property
    def text(self) -> str:
        what = {
            "onset": "the depth of the first block that has made half of the rise from the first to the highest block",
            "trend": "the correlation of the value with depth",
            "value": f"the value ({blocks_text(self.layers)})",
        }[self.feature]
        other = {
            "loss": "the loss on the probe",
            "bits_per_byte": "the loss on the probe in bits per byte",
            "parameters": "the number of parameters",
            "width": "the width",
        }
        return (
            f"Over models at their last steps, Spearman's correlation of {what} with {other[self.against]} is "
            f"{self.bound}, with its whole 95% interval."
        )

    def point(self, measured: Measured, metric: str) -> tuple[float, float]:
        """Return the loss or size of a model, and its feature."""
        if self.against in _LOSSES:
            losses = measured.scalar(_LOSSES[self.against])
            if not losses:
                raise NotMeasuredError(f"no loss on the probe of {measured.name} was measured; sweep with --loss")
            x = [*losses.values()][-1]
        else:
            x = float(measured.dim if self.against == "width" else measured.n_parameters)
        if self.feature == "value":
            return x, measured.course(metric, self.layers).values[-1].value
        profile = measured.profile(metric, "last")
        if self.feature == "onset":
            return x, onset(profile)
        (trend,) = depth_correlations(profile, np.array([[block.value for block in profile.blocks]]))
        return x, float(trend)

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        if len(models) < self.least_models:
            raise CannotBeJudgedError(f"needs {self.least_models} models, got {len(models)}")
        notes = require_trained(models)
        x, y = zip(*(self.point(each, metric) for each in models), strict=True)
        rho = correlate(x, y, "models")
        evidence = rho_text(rho.value, rho.low, rho.high, f"{rho.n} models")
        return self.verdict(rho.low, rho.high), "; ".join([evidence, *notes])


@dataclass(frozen=True)
class Stages(BaseCriterion):
    """The change from each model to the next, such as stages of post-training, in the order of the recipe.

    Each changes the value at the last step by more than its share of ``more``.
    """

    phases: tuple[Change, ...]
    more: tuple[float, ...]
    layers: Layers = "mean"

    over_models = True
    axis = "stage"

    def __post_init__(self) -> None:
        require_one_share_each(self.phases, self.more)
        object.__setattr__(self, "least_models", len(self.phases) + 1)

    @property
    def text(self) -> str:
        phases = phases_text(self.phases, self.more)
        return f"From each model to the next, at their last steps, {blocks_text(self.layers)}: {phases}."

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        if len(models) != self.least_models:
            raise NotMeasuredError(f"needs {self.least_models} models, got {len(models)} in the store")
        if len(probes := {str(probe) for each in models for probe in each.rows["probe"].unique()}) > 1:
            raise CannotBeJudgedError(f"needs models on one probe, got {len(probes)}")
        values = [each.course(metric, self.layers).values[-1] for each in models]
        claims = [
            changed_by_more(f"to {models[at + 1].name} it", Effect.of(values[at + 1], values[at]), phase, more)
            for at, (phase, more) in enumerate(zip(self.phases, self.more, strict=True))
        ]
        return conjunction(claim.verdict for claim in claims), "; ".join(map(str, claims))


@dataclass(frozen=True)
class Control(BaseCriterion):
    """The value on the control of the recipe's cloud, such as shuffled text, against that on the cloud itself.

    It is higher (``rise``) or lower (``fall``) by more than a share, at the first or last measured step.
    """

    change: Change
    more: float
    step: Step = "last"
    layers: Layers = "mean"

    axis = "depth"

    @property
    def text(self) -> str:
        than = "higher" if self.change == "rise" else "lower"
        return (
            f"At the {self.step} measured step, the value on the control is {than} by more than {self.more:.0%} "
            f"({blocks_text(self.layers)})."
        )

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        (measured,) = models
        if measured.control is None:
            raise NotMeasuredError("the control was not measured")
        at = 0 if self.step == "first" else -1
        courses = [each.course(metric, self.layers) for each in (measured.control, measured)]
        if len(steps := {course.steps[at] for course in courses}) > 1:
            raise CannotBeJudgedError(f"needs one step on both, got {' and '.join(f'{step:,}' for step in steps)}")
        control, own = (course.values[at] for course in courses)
        claim = changed_by_more("from the text to the control it", Effect.of(control, own), self.change, self.more)
        return claim.verdict, f"{control} against {own}: {claim}; step {courses[0].steps[at]:,}"


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


def _by_step(course: Course) -> dict[int, float]:
    return {step: value.value for step, value in zip(course.steps, course.values, strict=True)}


def _require_beginning(course: Course, n_steps: int) -> None:
    first, last = course.steps[0], course.steps[-1]
    if len(course.steps) < n_steps:
        raise CannotBeJudgedError(f"needs {n_steps} checkpoints, got {len(course.steps)}")
    if first > of_findings.EARLY * last:
        raise CannotBeJudgedError(f"no value before step {first:,} of {last:,}; the course may begin earlier")


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the slope of least squares, and half of its 95 % interval by Student's t with n - 2 degrees of freedom."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    left = y - y.mean() - slope * centred
    std_error = math.sqrt(float(left @ left) / (len(x) - 2) / spread)
    return slope, float(stdtrit(len(x) - 2, (1 + CONFIDENCE) / 2)) * std_error


def onset(profile: Profile) -> float:
    """Return the relative depth of the first block that has made half of the rise from the first to the highest."""
    values = [block.value for block in profile.blocks]
    highest = max(values)
    if highest <= values[0]:
        raise CannotBeJudgedError("the profile does not rise above the first block, so it has no onset")
    half = (values[0] + highest) / 2
    return next(at for at, value in zip(profile.positions, values, strict=True) if value >= half)
