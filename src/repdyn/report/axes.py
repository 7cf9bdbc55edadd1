"""Axes of the pictures in a report: logarithmic where it helps, with a place for 0; as Plotly takes them."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.colors import LogNorm, SymLogNorm

from repdyn.figures.drawing import colours, log_from
from repdyn.metrics import metric_info
from repdyn.tables.style import DIVERGING, metric_unit, shades, short_count

Part: TypeAlias = dict[str, Any]
"""A part of a figure."""

BELOW = 10**-0.4
"""Where 0 is drawn on a logarithmic axis, as a share of the smallest power of ten shown."""
_MARGIN = 0.05
_MAX_POWERS = 6
_LINE = 30
"""Characters of a title along an axis."""


def value_axis(metric: str, values: np.ndarray, margins: np.ndarray) -> tuple[Part, float | None]:
    """An axis for values of a metric with bands of ``margins``, and where on it lies 0, None on a linear axis.

    What lies below that place is drawn there.
    """
    title = _titled(metric)
    values = np.where(np.isfinite(values), values.astype(float), np.nan)
    known = values[~np.isnan(values)]
    if not len(known):
        return {"title": title, "range": [0, 1]}, None
    lowest = log_from(metric, known)
    reach = np.where(np.isfinite(margins), margins.astype(float), 0.0)
    low, high = float(np.nanmin(values - reach)), float(np.nanmax(values + reach))
    if lowest is not None:
        floor = lowest * BELOW
        ends = math.log10(max(low, floor)), math.log10(high)
        ticks, names = _powers(lowest, high, 0.0 if bool((known < lowest).any()) else None)
        return {"title": title, "type": "log", "range": _wider(*ends), "tickvals": ticks, "ticktext": names}, floor
    if metric_info(metric).scale in {"from_zero", "log"}:
        return {"title": title, "range": [0, 1.05 * high or 1.0]}, None
    if metric_info(metric).scale == "signed":
        return {"title": title, "range": _wider(min(low, 0), max(high, 0)), "zeroline": True}, None
    return {"title": title, "range": _wider(low, high)}, None


def course_axes(steps: Sequence[int], tokens: Sequence[float]) -> dict[str, Part]:
    """Axes of the course of a training, by "steps-log", "steps-linear", "tokens-log" and "tokens-linear".

    Args:
        steps: all that are to be shown.
        tokens: likewise; without any there is no axis of tokens.

    Returns:
        Of each the ``layout`` and, where it is logarithmic, the ``floor`` at which 0 is drawn, None elsewhere.
    """
    axes = {}
    for name, unit, found in (("steps", "step", steps), ("tokens", "training tokens", tokens)):
        if found:
            axes[f"{name}-log"] = _log_course(unit, found, short_count if name == "tokens" else "{:,.0f}".format)
            axes[f"{name}-linear"] = {"layout": {"title": {"text": unit}, "type": "linear"}, "floor": None}
    return axes


def placed(values: np.ndarray, floor: float | None) -> np.ndarray:
    """Values as they are drawn on an axis whose 0 lies at ``floor``."""
    return values if floor is None else np.maximum(values, np.float32(floor))


def colour_axis(metric: str, values: np.ndarray) -> tuple[Part, np.ndarray]:
    """How values of a metric become colours, and what Plotly, which knows no logarithmic colours, is to colour."""
    norm = colours(metric, np.ma.masked_invalid(values.astype(float)))
    bar: Part = {"title": {**_titled(metric), "side": "right"}, "thickness": 14, "outlinewidth": 0}
    scale = _diverging() if metric_info(metric).scale == "signed" else "Viridis"
    low, high = float(norm.vmin or 0.0), float(norm.vmax or 0.0)
    shown = values
    if isinstance(norm, LogNorm | SymLogNorm):
        lowest = log_from(metric, values[np.isfinite(values)].astype(float)) or 1.0
        shown = np.log10(placed(values, lowest * BELOW))
        ticks, names = _powers(lowest, high, 0.0 if isinstance(norm, SymLogNorm) else None)
        bar |= {"tickvals": np.log10(ticks).tolist(), "ticktext": names}
        low, high = float(np.nanmin(shown)), math.log10(high)
    return {"colorscale": scale, "cmin": low, "cmax": high, "colorbar": bar}, shown


def _log_course(unit: str, counts: Sequence[float], name: Callable[[float], str]) -> Part:
    positive = [count for count in counts if count > 0] or [1.0]
    lowest = 10.0 ** math.floor(math.log10(min(positive)))
    zero = 0.0 if min(counts) == 0 else None
    ticks, _ = _powers(lowest, max(positive), zero)
    names = [name(tick) for tick in ticks] if zero is None else ["0", *(name(tick) for tick in ticks[1:])]
    note = "logarithmic; 0 before training" if zero is not None else "logarithmic"
    layout = {"title": {"text": f"{unit} ({note})"}, "type": "log", "tickvals": ticks, "ticktext": names}
    return {"layout": layout, "floor": lowest * BELOW}


def _powers(lowest: float, highest: float, zero: float | None) -> tuple[list[float], list[str]]:
    """Ticks at powers of ten with their names, and at the place of 0 where there is one."""
    first, last = round(math.log10(lowest)), math.ceil(math.log10(max(highest, lowest)))
    powers = [10.0**power for power in range(first, last + 1, math.ceil((last - first + 1) / _MAX_POWERS))]
    names = [f"{power:g}" if power < 1 else short_count(power) for power in powers]
    return ([lowest * BELOW, *powers], ["0", *names]) if zero is not None else (powers, names)


def _wider(low: float, high: float) -> list[float]:
    margin = _MARGIN * (high - low) or 0.5
    return [low - margin, high + margin]


def _diverging() -> list[list[object]]:
    return [[place / 10, colour] for place, colour in enumerate(shades(DIVERGING, 11, 0.0, 1.0))]


def _titled(metric: str) -> Part:
    """The unit, in lines that fit beside a picture."""
    lines = textwrap.wrap(html.escape(metric_unit(metric), quote=False), _LINE, break_on_hyphens=False)
    return {"text": "<br>".join(lines), "font": {"size": 12}}
