"""Criteria of values over several models, and of values against those on a control."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy.special import stdtrit

from repdyn.recipes.criteria import (
    Axis,
    BaseCriterion,
    Change,
    Judgement,
    RankCriterion,
    changed_by_more,
    depth_correlations,
)
from repdyn.recipes.measured import (
    Layers,
    Measured,
    NotMeasuredError,
    Profile,
    Step,
    blocks_text,
    correlate,
    require_trained,
    rho_text,
)
from repdyn.store.schema import PROBE_BITS_PER_BYTE, PROBE_LOSS
from repdyn.tables.effects import CONFIDENCE, MIN_PAIRS, CannotBeJudgedError, Effect, conjunction

_LEAST_MODELS = 3
_LOSSES = {"loss": PROBE_LOSS, "bits_per_byte": PROBE_BITS_PER_BYTE}
"""Scalars with which features of models are compared, by the names that recipes give them."""


@dataclass(frozen=True)
class Scaling(BaseCriterion):
    """The exponent of a power law of the value in the model's width, over models, between two bounds."""

    exponent: tuple[float, float]
    layers: Layers = "mean"

    over_models: ClassVar[bool] = True

    @property
    def least_models(self) -> int:
        return _LEAST_MODELS

    @property
    def axis(self) -> Axis:
        return "width"

    @property
    def short(self) -> str:
        return "exponent {:g} to {:g}".format(*self.exponent)

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
        low, high = self.exponent
        outside = slope + half < low or slope - half > high
        inside = low <= slope - half and slope + half <= high
        evidence = f"exponent {slope:.2f} [{slope - half:.2f}, {slope + half:.2f}] over {len(points)} models"
        verdict = "shown" if inside else "not shown" if outside else "cannot be judged"
        return verdict, "; ".join([evidence, *notes])


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the slope of least squares, and half of its 95 % interval by Student's t with n - 2 degrees of freedom."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    left = y - y.mean() - slope * centred
    std_error = math.sqrt(float(left @ left) / (len(x) - 2) / spread)
    return slope, float(stdtrit(len(x) - 2, (1 + CONFIDENCE) / 2)) * std_error


@dataclass(frozen=True)
class Across(RankCriterion):
    """Spearman's correlation over models of a feature of their last profile with their loss or size.

    The feature is the relative depth of the ``onset`` of a peak, the first block that has made half of the rise from
    the first block to the highest one; the ``trend``, Spearman's correlation of the value with depth; or the ``value``.
    """

    feature: Literal["onset", "trend", "value"]
    against: Literal["loss", "bits_per_byte", "parameters", "width"]
    layers: Layers = "mean"

    over_models: ClassVar[bool] = True

    @property
    def least_models(self) -> int:
        return MIN_PAIRS

    @property
    def axis(self) -> Axis:
        return "models"

    @property
    def short(self) -> str:
        return f"{self.feature} against {self.against}"

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


def onset(profile: Profile) -> float:
    """Return the relative depth of the first block that has made half of the rise from the first to the highest."""
    values = [block.value for block in profile.blocks]
    highest = max(values)
    if highest <= values[0]:
        raise CannotBeJudgedError("the profile does not rise above the first block, so it has no onset")
    half = (values[0] + highest) / 2
    return next(at for at, value in zip(profile.positions, values, strict=True) if value >= half)


@dataclass(frozen=True)
class Stages(BaseCriterion):
    """The change from each model to the next, such as stages of post-training, in the order of the recipe.

    Each changes the value at the last step by more than its share of ``more``.
    """

    phases: tuple[Change, ...]
    more: tuple[float, ...]
    layers: Layers = "mean"

    over_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if len(self.more) != len(self.phases):
            raise ValueError(f"expected one value of more for each of {len(self.phases)} phases, got {len(self.more)}")

    @property
    def least_models(self) -> int:
        return len(self.phases) + 1

    @property
    def axis(self) -> Axis:
        return "stage"

    @property
    def short(self) -> str:
        return f"from stage to stage {', '.join(self.phases)}"

    @property
    def text(self) -> str:
        parts = [f"{phase} by more than {more:.0%}" for phase, more in zip(self.phases, self.more, strict=True)]
        return f"From each model to the next, at their last steps, {blocks_text(self.layers)}: {', then '.join(parts)}."

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        if len(models) != self.least_models:
            raise NotMeasuredError(f"needs {self.least_models} models, got {len(models)} in the store")
        if len(probes := {str(probe) for each in models for probe in each.rows["probe"].unique()}) > 1:
            raise CannotBeJudgedError(f"needs models on one probe, got {len(probes)}")
        values = [each.course(metric, self.layers).values[-1] for each in models]
        claims = [
            changed_by_more(f"{phase} to {models[at + 1].name}", Effect.of(values[at + 1], values[at]), phase, more)
            for at, (phase, more) in enumerate(zip(self.phases, self.more, strict=True))
        ]
        return conjunction(claim.verdict for claim in claims), ", ".join(map(str, claims))


@dataclass(frozen=True)
class Control(BaseCriterion):
    """The value on the control of the recipe's cloud, such as shuffled text, against that on the cloud itself.

    It is higher (``rise``) or lower (``fall``) by more than a share, at the first or last measured step.
    """

    change: Change
    more: float
    step: Step = "last"
    layers: Layers = "mean"

    @property
    def axis(self) -> Axis:
        return "depth"

    @property
    def short(self) -> str:
        return f"{self.change} on the control"

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
        claim = changed_by_more("control/text", Effect.of(control, own), self.change, self.more)
        return claim.verdict, f"{control} against {own}: {claim}; step {courses[0].steps[at]:,}"
