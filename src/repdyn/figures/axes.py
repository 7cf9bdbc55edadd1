"""The rules for axes, independent of the plotting library: scale, limits and ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from repdyn.figures.charts import ZERO_SHARE, Axis, Line
from repdyn.metrics import metric_info
from repdyn.tables.families import is_between
from repdyn.tables.numbers import short_count
from repdyn.tables.style import metric_unit

WIDE_RATIO = 50.0
"""Ratio of largest to smallest value above which lengths are shown logarithmically."""
RELATIVE_DEPTH = Axis(
    label="relative depth (0 = embedding output, 1 = last layer)", limits=(0.0, 1.0), padding=(0.04, 0.04)
)
_MAX_POWERS = 6
"""Largest number of ticks at powers of ten on an axis of values."""


def value_axis(metric: str, values: np.ndarray, margins: np.ndarray | None = None, label: str | None = None) -> Axis:
    """Return the axis, or the scale of colours, for values of a metric.

    Args:
        metric: its name.
        values: all that are drawn; NaN and infinite ones are left out.
        margins: half-widths of their bands, which must be visible too.
        label: of the axis; the unit of the metric unless given.
    """
    label = metric_unit(metric) if label is None else label
    values = np.where(np.isfinite(values), values, np.nan)
    known = values[~np.isnan(values)]
    if not len(known):
        return Axis(label=label, limits=(0.0, 1.0), padding=(0.0, 0.0), is_empty=True)
    reach = 0.0 if margins is None else np.where(np.isfinite(margins), margins, 0.0)
    low, high = float(np.nanmin(values - reach)), float(np.nanmax(values + reach))
    scale, log_from = metric_info(metric).scale, log_start(metric, known)
    if log_from is not None:
        has_zero = bool((known < log_from).any())
        first = 0.0 if has_zero else max(low, ZERO_SHARE * log_from)
        return Axis(
            label=label, limits=(first, high), log_from=log_from, ticks=_powers(log_from, high, _value_name, has_zero)
        )
    if scale in ("from_zero", "log"):
        return Axis(label=label, limits=(0.0, high if high > 0 else 1.0), padding=(0.0, 0.05))
    if scale == "signed":
        return Axis(label=label, limits=(min(low, 0.0), max(high, 0.0)), is_signed=True)
    return Axis(label=label, limits=(low, high))


def axis_of_lines(metric: str, lines: Sequence[Line], label: str | None = None) -> Axis:
    """Return the axis for lines of a metric with their bands."""
    values = [np.asarray(line.y, float) for line in lines]
    margins = [np.full(len(line.y), np.nan) if line.margin is None else line.margin for line in lines]
    return value_axis(metric, np.concatenate([[np.nan], *values]), np.concatenate([[np.nan], *margins]), label)


def log_start(metric: str, values: np.ndarray) -> float | None:
    """Return the power of ten from which on values are shown logarithmically; None for a linear axis.

    >>> log_start("token_rank", np.array([0.0, 3.0, 700.0])), log_start("token_rank", np.array([0.0, 3.0]))
    (1.0, None)
    >>> log_start("norm", np.array([0.3, 500.0])), log_start("anisotropy", np.array([1e-6, 1.0]))
    (0.1, None)
    """
    info, positive = metric_info(metric), values[values > 0]
    if not len(positive) or info.scale not in ("log", "log_if_wide"):
        return None
    low, high = float(positive.min()), float(positive.max())
    lowest = max(10.0 ** math.floor(math.log10(low)), info.log_from)
    is_wide = high >= 10 * lowest if info.scale == "log" else high > WIDE_RATIO * low
    return lowest if is_wide else None


def layer_label(metric: str, last: int | None = None) -> str:
    """Return the label of an axis of layers for a metric; ``last`` is the number of the last layer, if it is shown."""
    last_layer = "" if last is None else f", last measured: {last}"
    return f"layer (0 = embedding output{', each to the next' if is_between(metric) else last_layer})"


def layer_axis(label: str, first: float, last: float) -> Axis:
    """Return an axis of layers from the first place to the last."""
    return Axis(label=label, limits=(first, last), padding=(0.04, 0.04), is_integer=True)


def training_axis(counts: Sequence[float], *, in_tokens: bool = False, is_linear: bool = False) -> Axis:
    """Return the axis of a training: logarithmic from the smallest positive count on, with its 0.

    Args:
        counts: all steps, or numbers of training tokens, that are shown.
        in_tokens: whether they are tokens.
        is_linear: whether the axis is linear instead.
    """
    unit = "training tokens" if in_tokens else "step"
    if is_linear:
        return Axis(label=unit, is_training=True)
    positive = [count for count in counts if count > 0] or [1.0]
    log_from, has_zero = 10.0 ** math.floor(math.log10(min(positive))), min(counts) == 0
    ticks = _powers(log_from, max(positive), short_count if in_tokens else "{:,.0f}".format, has_zero, limit=99)
    return Axis(
        label=f"{unit} (logarithmic{'; 0 before training' * has_zero})",
        limits=(float(min(counts)), float(max(counts))),
        log_from=log_from,
        ticks=ticks,
        is_training=True,
    )


def training_axes(steps: Sequence[int], tokens: Sequence[float]) -> dict[str, Axis]:
    """Return all axes that a reader can choose: "steps-log", "steps-linear", and those of tokens if they are known."""
    counts: Mapping[str, Sequence[float]] = {"steps": steps, "tokens": tokens}
    return {
        f"{name}-{'linear' if is_linear else 'log'}": training_axis(
            found, in_tokens=name == "tokens", is_linear=is_linear
        )
        for name, found in counts.items()
        for is_linear in (False, True)
        if found
    }


def placed(values: np.ndarray, floor: float | None) -> np.ndarray:
    """Return the positions of values on an axis with its 0 at ``floor``."""
    return values if floor is None else np.maximum(values, floor)


def _powers(
    lowest: float, highest: float, name: Callable[[float], str], has_zero: bool, limit: int = _MAX_POWERS
) -> dict[float, str]:
    """Return ticks at powers of ten, and at 0."""
    first, last = round(math.log10(lowest)), math.floor(math.log10(max(highest, lowest)) + 1e-9)
    powers = [10.0**power for power in range(first, last + 1, math.ceil((last - first + 1) / limit))]
    return ({0.0: "0"} if has_zero else {}) | {power: name(power) for power in powers}


def _value_name(value: float) -> str:
    return f"{value:g}" if value < 1 else short_count(value)
