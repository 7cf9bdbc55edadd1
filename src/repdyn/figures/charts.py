"""A chart as data: panels, lines, cells and axes, which matplotlib and the page both draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repdyn.metrics import metric_info
from repdyn.tables.style import is_between, metric_unit, short_count

ZERO_SHARE = 10**-0.4
"""Where a logarithmic axis shows 0, as a share of the value from which on it is logarithmic."""
WIDE_RATIO = 50.0
"""Ratio of largest to smallest value above which lengths are shown logarithmically."""
_MAX_POWERS = 6
"""Largest number of ticks at powers of ten on an axis of values."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis, or the scale of the colours of a heatmap."""

    label: str = ""
    limits: tuple[float, float] | None = None
    """First and last value that must be visible; None fits the axis to what is drawn."""
    padding: tuple[float, float] = (0.05, 0.05)
    """Shares of the axis left free before the first value and after the last."""
    log_from: float | None = None
    """The value from which on the axis is logarithmic, linear down to 0 below it; None for a linear axis."""
    ticks: Mapping[float, str] | None = None
    """Names of ticks by their value; None leaves them to the library."""
    is_signed: bool = False
    """Whether the sign of a value matters: a line at 0, and colours that change there."""
    is_integer: bool = False
    is_training: bool = False
    """Whether it counts the steps or tokens of a training, so that a reader may switch between the two."""
    is_empty: bool = False
    """Whether there is no value to show."""

    @property
    def floor(self) -> float | None:
        """The position of 0 for a library that cannot make an axis linear near 0; None for a linear axis."""
        return None if self.log_from is None else ZERO_SHARE * self.log_from


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A line, with a band if its margins are known."""

    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    margin: np.ndarray | None = None
    """Half of the 95 % interval at each point, NaN where it is not known; None for a line without a band."""
    colour: str
    label: str = ""
    """In the legend; empty for none."""
    width: float = 1.8
    opacity: float = 1.0
    dash: str = "-"
    """As matplotlib names it: "-", "--", ":" or "none"."""
    marker: str = "o"
    """As matplotlib names it; empty for none."""
    marker_size: float = 3.5
    marked: Sequence[int] | None = None
    """Positions of the points that have a marker; None for all."""
    band_opacity: float = 0.18
    kind: str = "line"
    """"line"; "points" or "bars" with error bars; "steps", constant from one layer to the next."""
    description: str = ""
    """What a reader sees when pointing at one of its values, before the value."""
    run: int | None = None
    """Number of its run among those of a report."""
    seeds: Sequence[int] = ()
    """Numbers of the runs that it is the mean of."""
    group: str = ""
    """Label of the line with which a legend shows and hides it; its own unless given."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """The cells of a heatmap, rows upwards: values, and as these half of their intervals and why there is none."""

    values: np.ndarray
    """Shape (n_rows, n_columns); NaN where there is no value."""
    rows: Sequence[str]
    columns: Sequence[str]
    colours: Axis
    margins: np.ndarray | None = None
    reasons: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An alert in a panel, at a value on its axes, or at the number of a column and a row of a heatmap."""

    x: float
    y: float | None
    """None for a whole profile."""
    text: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """One coordinate system, with what is drawn in it."""

    title: str = ""
    x: Axis = Axis()
    y: Axis = Axis()
    lines: Sequence[Line] = ()
    cells: Cells | None = None
    marks: Sequence[Mark] = ()
    loss: Line | None = None
    """The training loss, on an axis of its own to the right."""
    tokens: Mapping[int, float] | None = None
    """Training tokens by step, for a second axis above one of steps."""
    gap: Sequence[Line] = ()
    """Two of its lines between which the area is shaded."""
    widens_hidden: bool = False
    """Whether a line that others hide is drawn wider, so that all are seen."""
    legend: str = ""
    """Where the names of its lines stand: "inside", "right", or nowhere."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Chart:
    """Panels under one title."""

    title: str
    caption: str
    panels: Sequence[Panel]
    size: tuple[float, float]
    """Width and height in inches."""
    columns: int = 1
    shares_x: bool = False
    """Whether panels below each other have one x axis, labelled below the lowest."""
    is_small: bool = False
    """Whether there are many panels, whose text is small."""
    legend: Sequence[Line | str] = ()
    """Lines named to the right of all panels; a string is a heading."""
    legend_title: str | None = None


RELATIVE_DEPTH = Axis(
    label="relative depth (0 = embedding output, 1 = last layer)", limits=(0.0, 1.0), padding=(0.04, 0.04)
)


def value_axis(metric: str, values: np.ndarray, margins: np.ndarray | None = None, label: str | None = None) -> Axis:
    """Return the axis, or the scale of colours, of a metric for all values that are drawn and their margins."""
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
        limits = 0.0 if has_zero else max(low, ZERO_SHARE * log_from), high
        ticks = _powers(log_from, high, lambda value: f"{value:g}" if value < 1 else short_count(value), has_zero)
        return Axis(label=label, limits=limits, log_from=log_from, ticks=ticks)
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
    """Return the axis of a training for all steps, or numbers of tokens, that are shown: logarithmic from the smallest
    positive count on, with its 0, or linear."""
    unit = "training tokens" if in_tokens else "step"
    if is_linear:
        return Axis(label=unit, is_training=True)
    positive = [count for count in counts if count > 0] or [1.0]
    log_from, has_zero = 10.0 ** math.floor(math.log10(min(positive))), min(counts) == 0
    return Axis(
        label=f"{unit} (logarithmic{'; 0 before training' * has_zero})",
        limits=(float(min(counts)), float(max(counts))),
        log_from=log_from,
        ticks=_powers(log_from, max(positive), short_count if in_tokens else "{:,.0f}".format, has_zero, limit=99),
        is_training=True,
    )


def training_axes(steps: Sequence[int], tokens: Sequence[float]) -> dict[str, Axis]:
    """Return all axes that a reader can choose: "steps-log", "steps-linear", and those of tokens if they are known."""
    counts: Mapping[str, Sequence[float]] = {"steps": steps, "tokens": tokens}
    return {
        f"{name}-{scale}": training_axis(found, in_tokens=name == "tokens", is_linear=scale == "linear")
        for name, found in counts.items()
        for scale in ("log", "linear")
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
