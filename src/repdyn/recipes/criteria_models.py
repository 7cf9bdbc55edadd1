"""Criteria of values over several models, and of values against those on a control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from repdyn.recipes.criteria_depth import Axis, BaseCriterion, Judgement
from repdyn.recipes.measured import Layers, Measured, NotMeasuredError, Step, blocks_text
from repdyn.tables.effects import CannotBeJudgedError, Claim, Effect, conjunction

Change = Literal["rise", "fall"]
_LEAST_MODELS = 3


def changed_by_more(name: str, effect: Effect, change: Change, more: float) -> Claim:
    """Return the claim of a rise, or fall, by more than a share: a fall divides the value by more than 1 + ``more``."""
    bounds = {"above": more} if change == "rise" else {"below": 1 / (1 + more) - 1}
    return Claim(name, effect, **bounds)


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
            f"{high:g} ({blocks_text(self.layers)}; least squares of the logarithms)."
        )

    def judge(self, models: Sequence[Measured], metric: str) -> Judgement:
        points = [(each.dim, each.course(metric, self.layers).values[-1].value) for each in models]
        if len({dim for dim, _ in points}) < _LEAST_MODELS or len(points) < _LEAST_MODELS:
            raise CannotBeJudgedError(f"needs models of {_LEAST_MODELS} widths, got {len({dim for dim, _ in points})}")
        if min(value for _, value in points) <= 0:
            raise CannotBeJudgedError("a power law needs values above 0")
        log_dim, log_value = np.log(np.array(points, float)).T
        slope = float(np.polyfit(log_dim, log_value, 1)[0])
        low, high = self.exponent
        return ("shown" if low <= slope <= high else "not shown"), f"exponent {slope:.2f} over {len(points)} models"


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
