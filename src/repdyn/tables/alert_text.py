"""Alerts in words: one line for what a rule found in one metric at one step, in however many layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from repdyn.alerts import Alert
from repdyn.tables.runs import spans


def alert_lines(alerts: Iterable[Alert]) -> list[str]:
    """Return a line for each step, rule and metric, with the numbers of the layer that changed most.

    Args:
        alerts: in the order of :func:`repdyn.alerts.alerts_of`.
    """
    return [f"step {step:,}, {rule}: {words}" for step, rule, words in alert_events(alerts)]


def alert_events(alerts: Iterable[Alert]) -> list[tuple[int, str, str]]:
    """Return step, rule and text of each line."""
    return [(step, rule, _words(list(group))) for (step, rule, _), group in groupby(alerts, key=_kind)]


def _kind(alert: Alert) -> tuple[int, str, str]:
    return alert.step, alert.rule, alert.subject


def _words(alerts: Sequence[Alert]) -> str:
    worst = max(alerts, key=_change)
    if len(alerts) == 1:
        return worst.message
    layers = spans([alert.layer for alert in alerts if alert.layer is not None])
    return f"{worst.subject} of layers {layers} {worst.words}: in layer {worst.layer}, {worst.detail}"


def _change(alert: Alert) -> float:
    """Return the ratio of value and value before, as the size of its logarithm; 0 if one of them is missing."""
    sizes = abs(alert.value), abs(alert.before)
    if not all(math.isfinite(size) and size > 0 for size in sizes):
        return 0.0
    return abs(math.log(sizes[0]) - math.log(sizes[1]))
