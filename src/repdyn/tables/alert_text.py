"""Alerts as text: one line for each step, rule and metric, over all layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from repdyn.alerts import Alert
from repdyn.tables.runs import spans


def alert_lines(alerts: Iterable[Alert]) -> list[str]:
    """Return a line for each step, rule and metric, with the numbers of the layer that changed most.

    Args:
        alerts: in the order of :func:`repdyn.alerts.find_alerts`.
    """
    return [f"step {step:,}, {rule}: {text}" for step, rule, text in alert_events(alerts)]


def alert_events(alerts: Iterable[Alert]) -> list[tuple[int, str, str]]:
    """Return step, rule and text of each line."""
    return [(step, rule, alert_text(list(group))) for (step, rule, _), group in groupby(alerts, key=_kind)]


def _kind(alert: Alert) -> tuple[int, str, str]:
    return alert.step, alert.rule, alert.subject


def alert_text(alerts: Sequence[Alert]) -> str:
    """Describe the alerts of one rule and metric at one step."""
    worst = max(alerts, key=_change)
    if len(alerts) == 1:
        return worst.message
    layers = spans([alert.layer for alert in alerts if alert.layer is not None])
    return f"{worst.subject} of layers {layers} {worst.event}: in layer {worst.layer}, {worst.detail}"


def _change(alert: Alert) -> float:
    """Return the absolute log-ratio of the value and the value before; 0 if one of them is missing."""
    sizes = abs(alert.value), abs(alert.previous_value)
    if not all(math.isfinite(size) and size > 0 for size in sizes):
        return 0.0
    return abs(math.log(sizes[0]) - math.log(sizes[1]))
