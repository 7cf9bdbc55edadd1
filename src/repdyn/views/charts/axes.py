"""Scale, ends and ticks of axes and of colours, decided once for both renderers.

- :func:`value_axis` of one metric's values, :func:`axis_of_lines` of what is drawn of them,
  :func:`shared_axis` of a metric on several subsets, :func:`colour_scale` of its heatmaps.
- :func:`training_axis` along steps or tokens, :func:`depth_axis` along layers.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from repdyn.metrics import metric_info
from repdyn.utils.numbers import number_text, short_count
from repdyn.views.charts.description import ZERO_SHARE, Axis, Line
from repdyn.views.display import display_of
from repdyn.views.tables.frames import OF_THE_SAME_VECTORS
from repdyn.views.tables.series import MetricSeries
from repdyn.views.tables.style import metric_unit

WIDE_RATIO = 50.0
"""Ratio of largest to smallest value above which lengths are shown logarithmically."""
FAR_ABOVE = 3.0
"""Ratio from which on a value would leave all others one shade of a linear scale of colours."""
_MAX_POWERS = 6
"""Largest number of ticks at powers of ten on an axis of values."""
FLATTENING = 2.0
"""How many times as high as all blocks layer 0 has to be to be left out of an axis."""
BEYOND = "layer 0 lies above the axis, which the blocks scale"
RELATIVE_DEPTH = Axis(
    label="relative depth (0 = embedding output)", limits=(0.0, 1.0), padding=(0.04, 0.04)
)


def value_axis(
    metric: str,
    values: np.ndarray,
    ends: np.ndarray | None = None,
    label: str | None = None,
    scale: str | None = None,
) -> Axis:
    """Return the axis of a metric for all values that are drawn and the ends of their intervals;
    its kind of scale unless given.
    """
    label = metric_unit(metric) if label is None else label
    # an infinite value, as of a loss that blew up, would leave no room for the others
    values = np.where(np.isfinite(values), values, np.nan)
    finite = values[~np.isnan(values)]
    if not len(finite):
        return Axis(label=label, limits=(0.0, 1.0), padding=(0.0, 0.0), is_empty=True)
    drawn = finite if ends is None else np.concatenate([finite, ends[np.isfinite(ends)]])
    low = float(drawn.min())
    high = float(drawn.max())
    scale = scale or display_of(metric).scale
    log_from = log_start(metric, finite, scale)
    if log_from is not None:
        has_zero = bool((finite < log_from).any())
        limits = 0.0 if has_zero else max(low, ZERO_SHARE * log_from), high
        ticks = _powers(
            log_from,
            high,
            lambda value: f"{value:g}" if value < 1 else short_count(value),
            has_zero,
        )
        return Axis(label=label, limits=limits, log_from=log_from, ticks=ticks)
    # "log" of values within one power of ten, which log_start has refused: from 0, but linear
    if scale in ("from_zero", "log"):
        return Axis(label=label, limits=(0.0, high if high > 0 else 1.0), padding=(0.0, 0.05))
    if scale == "signed":
        return Axis(label=label, limits=(min(low, 0.0), max(high, 0.0)), is_signed=True)
    return Axis(label=label, limits=(low, high))


def axis_of_lines(metric: str, lines: Sequence[Line], label: str | None = None) -> Axis:
    """Return the axis for lines of a metric with their bands."""
    values = [np.asarray(line.y, float) for line in lines]
    ends = [np.concatenate(line.band) for line in lines if line.band is not None]
    return value_axis(
        metric, np.concatenate([[np.nan], *values]), np.concatenate([[np.nan], *ends]), label
    )


def scaled_by_blocks(lines: Sequence[Line]) -> list[Line]:
    """Return lines over depth without their points at layer 0, the embedding output, if the highest
    of these is more than :data:`FLATTENING` times the highest block, so that an axis is scaled by
    the blocks."""
    at_zero = [line for line in lines if len(line.x) > 1 and line.x[0] == 0]
    highest = _highest(np.asarray(line.y, float)[:1] for line in at_zero)
    blocks = [_without_first(line) if line in at_zero else line for line in lines]
    return blocks if highest > FLATTENING * highest_of(blocks) > 0 else list(lines)


def highest_of(lines: Iterable[Line]) -> float:
    """Return the highest finite value of some lines; minus infinity without any."""
    return _highest(np.asarray(line.y, float) for line in lines)


def _highest(values: Iterable[np.ndarray]) -> float:
    """Return the highest finite value; minus infinity without any."""
    finite = np.concatenate([[-math.inf], *(part[np.isfinite(part)] for part in values)])
    return float(finite.max())


def _without_first(line: Line) -> Line:
    band = None if line.band is None else (line.band[0][1:], line.band[1][1:])
    return replace(line, x=line.x[1:], y=line.y[1:], band=band)


def shared_axis(
    series: MetricSeries, others: Mapping[tuple[str, str], MetricSeries], *, has_bands: bool = True
) -> Axis:
    """Return the axis of a metric: one for all tokens, without sinks and without repeats."""
    drawn = on_one_scale(series, others)
    values = np.concatenate([shown.values.ravel() for shown in drawn])
    if not has_bands:
        return value_axis(series.metric, values)
    ends = [end.ravel() for shown in drawn for end in (shown.lows, shown.highs)]
    return value_axis(series.metric, values, np.concatenate(ends))


def on_one_scale(
    series: MetricSeries, others: Mapping[tuple[str, str], MetricSeries]
) -> list[MetricSeries]:
    """Return the series of a metric that share a scale: those of all tokens, without sinks and
    without repeats.
    """
    alike = [
        other
        for key, other in others.items()
        if key[0] == series.metric and key[1] in OF_THE_SAME_VECTORS
    ]
    return alike if series.subset in OF_THE_SAME_VECTORS else [series]


def heatmap_scale(series: MetricSeries, others: Mapping[tuple[str, str], MetricSeries]) -> Axis:
    """Return the scale of colours of one heatmap: that of all tokens and of those without sinks or
    repeats together, but for what reaches more than :data:`FAR_ABOVE` times as high, beside which
    all of its cells would have one shade."""
    highest = _highest([series.values])
    near = [
        other
        for other in on_one_scale(series, others)
        if not _highest([other.values]) > FAR_ABOVE * highest > 0
    ]
    return colour_scale(near)


def colour_scale(drawn: Sequence[MetricSeries]) -> Axis:
    """Return the scale of colours for series of one metric, on which values are told apart although
    some are far above the others: it ends at the largest value of the other layers where one layer
    is :data:`FAR_ABOVE` times as high, and is logarithmic where the largest value is as far above
    nine in ten of all."""
    metric = drawn[0].metric
    values = np.concatenate([series.values.ravel() for series in drawn])
    values = np.where(np.isfinite(values), values, np.nan)
    finite = values[~np.isnan(values)]
    scale = value_axis(metric, values)
    if scale.log_from is not None or scale.is_empty or scale.limits is None or finite.min() < 0:
        return scale
    layers = np.concatenate([np.repeat(series.layers, len(series.steps)) for series in drawn])
    highest = [
        np.nanmax(np.extract(layers == layer, values), initial=0.0) for layer in np.unique(layers)
    ]
    *_, others, high = 0.0, *np.sort(highest).tolist()
    if 0 < FAR_ABOVE * others < high:
        label = f"{scale.label}; the brightest: {number_text(others)} to {number_text(high)}"
        return replace(scale, limits=(scale.limits[0], others), label=label)
    is_wide = 0 < FAR_ABOVE * np.quantile(finite, 0.9) < high
    return value_axis(metric, values, scale="log") if is_wide else scale


def log_start(metric: str, values: np.ndarray, scale: str | None = None) -> float | None:
    """Return the power of ten from which on values are shown logarithmically; None for a linear
    axis.

    >>> log_start("token_rank", np.array([0.0, 3.0, 700.0])), log_start("token_rank",
    ...     np.array([0.0, 3.0]))
    (1.0, None)
    >>> log_start("norm", np.array([0.3, 500.0])), log_start("anisotropy", np.array([1e-6, 1.0]))
    (0.1, None)
    """
    display = display_of(metric)
    positive = np.extract(values > 0, values)
    scale = scale or display.scale
    if not len(positive) or scale not in ("log", "log_if_wide"):
        return None
    low = float(positive.min())
    high = float(positive.max())
    # not below where the display of the metric begins: a mean of ranks may be any small number
    lowest = max(10.0 ** math.floor(math.log10(low)), display.log_from)
    is_wide = high >= 10 * lowest if scale == "log" else high > WIDE_RATIO * low
    return lowest if is_wide else None


def layer_label(metric: str, last: int | None = None) -> str:
    """Return the label of an axis of layers for a metric; ``last`` is the number of the last layer,
    if it is shown.
    """
    more = "" if last is None else f", {last} = last measured"
    more = ", each to the next" if metric_info(metric).position == "between" else more
    return f"layer (0 = embedding output{more})"


def depth_axis(drawn: Sequence[MetricSeries]) -> Axis:
    """Return the axis from the first layer with a value to the last; one without any at layer 0
    says so.
    """
    with_values = [series.places[~np.isnan(series.values).all(axis=1)] for series in drawn]
    has_values = any(map(len, with_values))
    places = np.concatenate(with_values if has_values else [series.places for series in drawn])
    label = "layer (0 = embedding output)"
    if len({series.metric for series in drawn}) == 1:
        label = layer_label(drawn[0].metric, max(series.layers[-1] for series in drawn))
    if min(places) >= 1 and any(0 in series.layers for series in drawn):
        label = "layer (no value at 0, the embedding output)"
    limits = float(min(places)), float(max(places))
    return Axis(label=label, limits=limits, padding=(0.04, 0.04), is_integer=True)


def training_axis(
    counts: Sequence[float], *, in_tokens: bool = False, is_linear: bool = False
) -> Axis:
    """Return the axis of a training for all steps, or numbers of tokens, that are shown:
    logarithmic from the smallest positive count on, with its 0, or linear.

    >>> [[*training_axis(steps).ticks] for steps in ([0, 8, 80], [20, 60], [30, 45])]
    [[0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0], [10.0, 20.0, 50.0], [30.0, 45.0]]
    """
    unit = "training tokens" if in_tokens else "step"
    if is_linear:
        return Axis(label=unit, is_training=True)
    positive = sorted({float(count) for count in counts if count > 0}) or [1.0]
    log_from = 10.0 ** math.floor(math.log10(positive[0]))
    has_zero = min(counts) == 0
    name = short_count if in_tokens else "{:,.0f}".format
    ticks = _powers(log_from, positive[-1], name, has_zero, limit=99)
    if sum(tick >= positive[0] for tick in ticks) < 2:  # so close together are the steps
        ticks = ({0.0: "0"} if has_zero else {}) | {
            count: name(count) for count in (positive[0], positive[-1])
        }
    scale = "logarithmic; 0 before training" if has_zero else "logarithmic"
    return Axis(
        label=f"{unit} ({scale})",
        limits=(float(min(counts)), float(max(counts))),
        log_from=log_from,
        ticks=ticks,
        is_training=True,
    )


def training_axes(steps: Sequence[int], tokens: Sequence[float]) -> dict[str, Axis]:
    """Return all axes that a reader can choose: "steps-log", "steps-linear", and those of tokens if
    they are known.
    """
    counts: Mapping[str, Sequence[float]] = {"steps": steps, "tokens": tokens}
    axes: dict[str, Axis] = {}
    for unit, of_unit in counts.items():
        if not of_unit:
            continue
        for scale in ("log", "linear"):
            axes[f"{unit}-{scale}"] = training_axis(
                of_unit, in_tokens=unit == "tokens", is_linear=scale == "linear"
            )
    return axes


def _powers(
    lowest: float,
    highest: float,
    name: Callable[[float], str],
    has_zero: bool,
    limit: int = _MAX_POWERS,
) -> dict[float, str]:
    """Return ticks at powers of ten, where there are fewer than three at their 2 and 5 multiples
    too, and at 0.
    """
    top = max(highest, lowest)
    first = round(math.log10(lowest))
    # the logarithm of a power of ten may be rounded to just below its whole number
    last = math.floor(math.log10(top) + 1e-9)
    every = math.ceil((last - first + 1) / limit)
    powers = [10.0**power for power in range(first, last + 1, every)]
    if last - first < 2:
        between = (multiple * power for power in powers for multiple in (1, 2, 5))
        powers = [tick for tick in between if tick <= top]
    return ({0.0: "0"} if has_zero else {}) | {power: name(power) for power in powers}
