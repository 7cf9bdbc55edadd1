"""Rules over the rows of a run: what happened, at which step and in which layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from repdyn.alarms.conditions import CONDITIONS
from repdyn.alarms.courses import Course, courses_of
from repdyn.alarms.rules import RULES, Rule


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that happened to one layer, or to a whole profile, at one step."""

    rule: str
    """The name of the rule."""
    step: int
    metric: str
    subset: str | None
    """None for a scalar of the run."""
    stack: str | None
    layer: int | None
    """None for a whole profile, and for a scalar."""
    value: float
    """NaN for a whole profile, and where there is none."""
    before: float
    """The last value before; NaN where there was none."""
    since: int | None
    """The step of that one."""
    words: str
    """What happened."""
    detail: str
    """The numbers, or the reason why there is none."""
    stop: bool
    """Whether the rule asks for a stop."""

    @property
    def message(self) -> str:
        """What happened and where, in one line, without the step."""
        return f"{self.subject}{'' if self.layer is None else f' of layer {self.layer}'} {self.words}: {self.detail}"

    @property
    def subject(self) -> str:
        """What it happened to, without the layer."""
        known = ", ".join(filter(None, [self.stack, self.subset]))
        return f"{self.metric} ({known})" if known else self.metric


def alarms_of(frame: pd.DataFrame, rules: Sequence[Rule] = RULES) -> list[Alarm]:
    """What the rules find in a run, by step.

    Args:
        frame: rows of one run on one probe, scalars among them; columns as the fields of
            :class:`repdyn.records.Row`. Values of single attention heads are not looked at.
        rules: those of the run.

    Returns:
        Alarms by step, then by rule, metric, subset and layer. What is found at a step rests on the rows up to it
        alone.
    """
    found = [
        (place, alarm)
        for course in courses_of(frame)
        for place, rule in enumerate(rules)
        if rule.concerns(course.metric, course.subset)
        for alarm in _alarms(course, rule)
    ]
    return [alarm for _, alarm in sorted(found, key=lambda pair: (pair[1].step, pair[0]))]


def _alarms(course: Course, rule: Rule) -> Iterator[Alarm]:
    condition = CONDITIONS[rule.when]
    holds = condition.holds(course, rule.bound or 0.0)
    whole = len(holds) == 1 < len(course.layers)
    words = condition.words.format(bound=rule.bound)
    for layer, place in np.argwhere(holds).tolist():
        at = _most_changed(course, place) if whole else layer
        value, before = float(course.values[at, place]), float(course.before[at, place])
        earlier = int(course.places_before[at, place])
        since = course.steps[earlier] if earlier >= 0 else None
        detail = _detail(value, before, since, course.reasons.get((at, place)))
        yield Alarm(
            rule=rule.name,
            step=course.steps[place],
            metric=course.metric,
            subset=course.subset,
            stack=course.stack,
            layer=None if whole else course.layers[at],
            value=math.nan if whole else value,
            before=math.nan if whole else before,
            since=since,
            words=words,
            detail=f"most in layer {course.layers[at]}, {detail}" if whole else detail,
            stop=rule.stop,
        )


def _most_changed(course: Course, place: int) -> int:
    change = np.abs(course.values[:, place] - course.before[:, place])
    return int(np.nanargmax(change)) if not np.isnan(change).all() else 0


def _detail(value: float, before: float, since: int | None, reason: str | None) -> str:
    if math.isnan(value):
        return reason or "NaN"
    return f"{value:.3g}" if since is None else f"{before:.3g} at step {since:,}, now {value:.3g}"
