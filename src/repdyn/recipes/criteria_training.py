"""Criteria of courses over training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from repdyn.recipes.criteria_depth import Axis, BaseCriterion, Judgement
from repdyn.recipes.criteria_models import Change, changed_by_more
from repdyn.recipes.judging import QUANTILES, RhoBound, correlate, redrawn, require_trained, rho_text
from repdyn.recipes.measured import Course, Layers, Measured, NotMeasuredError, Step, blocks_text
from repdyn.store.schema import PROBE_LOSS
from repdyn.tables import criteria as of_findings
from repdyn.tables.effects import CONFIDENCE, CannotBeJudgedError, Effect, conjunction

_LEAST_CHECKPOINTS = 5


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

    @property
    def least_checkpoints(self) -> int:
        return len(self.phases) + 1

    @property
    def short(self) -> str:
        return ", ".join(self.phases)

    @property
    def text(self) -> str:
        parts = [f"{phase} by more than {more:.0%}" for phase, more in zip(self.phases, self.more, strict=True)]
        return f"Over training, {blocks_text(self.layers)}: {', then '.join(parts)}."

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
            claims.append(changed_by_more(f"{phase} to step {course.steps[end]:,}", effect, phase, more))
        return conjunction(claim.verdict for claim in claims), ", ".join(map(str, claims))


@dataclass(frozen=True)
class Correlation(BaseCriterion):
    """Spearman's correlation over checkpoints of the metric with another one, at least or at most some value.

    ``other`` may be "probe/loss", the loss on the probe.
    """

    other: str
    at_least: float | None = None
    at_most: float | None = None
    layers: Layers = "mean"

    @property
    def least_checkpoints(self) -> int:
        return _LEAST_CHECKPOINTS

    @property
    def axis(self) -> Axis:
        return "other metric"

    def __post_init__(self) -> None:
        RhoBound(self.at_least, self.at_most)  # an invalid bound is an error at once

    @property
    def short(self) -> str:
        return f"correlation {self._bound}"

    @property
    def _bound(self) -> RhoBound:
        return RhoBound(self.at_least, self.at_most)

    @property
    def text(self) -> str:
        return (
            f"Over checkpoints, Spearman's correlation with {self.other} is {self._bound}, with its whole 95% interval "
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
        return self._bound.judge(rho.low, rho.high), "; ".join([evidence, *notes])


@dataclass(frozen=True)
class Halfway(BaseCriterion):
    """The step by which a metric has made half of its change, between two steps; the change is at least ``least``."""

    steps: tuple[float, float]
    least: float
    layers: Layers = "mean"

    @property
    def least_checkpoints(self) -> int:
        return 3

    @property
    def band(self) -> tuple[float, float]:
        return self.steps

    @property
    def short(self) -> str:
        return "half of the change by step {:,.0f} to {:,.0f}".format(*self.steps)

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
        low, high = self.steps
        outside = late < low or early > high
        verdict = "shown" if low <= early and late <= high else "not shown" if outside else "cannot be judged"
        return verdict, "; ".join([f"half of {text} by step {at:,} [{early:,}, {late:,}]", *notes])


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

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        course = models[0].course(metric, self.layers)
        at = 0 if self.step == "first" else -1
        value = course.values[at]
        if math.isnan(value.std_error):
            raise CannotBeJudgedError("no interval: a single batch, or batches that share windows")
        half = float(stdtrit(value.n_batches - 1, (1 + CONFIDENCE) / 2)) * value.std_error
        low, high = self.bounds
        evidence = f"{value} +- {half:.2g} at step {course.steps[at]:,}"
        if low <= value.value - half and value.value + half <= high:
            return "shown", evidence
        outside = value.value + half < low or value.value - half > high
        return ("not shown" if outside else "cannot be judged"), evidence


def turning_points(values: Sequence[float], phases: Sequence[str]) -> list[int]:
    """Return the first place, the turning points and the last place that make the changes of the phases largest.

    Args:
        values: more of them than phases.
        phases: "rise" or "fall" each.

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
