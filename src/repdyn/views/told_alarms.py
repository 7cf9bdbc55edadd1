"""Alarms in words: one line for what a rule found in one metric at one step, in however many layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from repdyn.alarms import Alarm
from repdyn.views.runs import spans


def told(alarms: Iterable[Alarm]) -> list[str]:
    """A line for each step, rule and metric, with the numbers of the layer that changed most.

    Args:
        alarms: in the order of :func:`repdyn.alarms.alarms_of`.
    """
    return [f"step {step:,}, {rule}: {words}" for step, rule, words in happenings(alarms)]


def happenings(alarms: Iterable[Alarm]) -> list[tuple[int, str, str]]:
    """What :func:`told` tells, as step, rule and words."""
    return [(step, rule, _words(list(group))) for (step, rule, _), group in groupby(alarms, key=_kind)]


def _kind(alarm: Alarm) -> tuple[int, str, str]:
    return alarm.step, alarm.rule, alarm.subject


def _words(alarms: Sequence[Alarm]) -> str:
    worst = max(alarms, key=_change)
    if len(alarms) == 1:
        return worst.message
    layers = spans([alarm.layer for alarm in alarms if alarm.layer is not None])
    return f"{worst.subject} of layers {layers} {worst.words}: in layer {worst.layer}, {worst.detail}"


def _change(alarm: Alarm) -> float:
    """How far apart value and value before are, as a ratio; 0 where there is none."""
    sizes = abs(alarm.value), abs(alarm.before)
    if not all(math.isfinite(size) and size > 0 for size in sizes):
        return 0.0
    return abs(math.log(sizes[0]) - math.log(sizes[1]))
