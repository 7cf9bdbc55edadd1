"""A chart as data, which matplotlib and the page both draw: panels, lines, cells and axes, and what
a metric's show.

- :class:`Chart` of :class:`Panel`, each of :class:`Line` or :class:`Cells`, between two
  :class:`Axis`: records without a drawing library.
- :func:`value_axis`, :func:`training_axis`, :func:`depth_axis`: scale, ends and ticks of an axis,
  decided once for both renderers.
- :func:`profile_lines`, :func:`mean_lines`, :func:`heatmap_panel` and their kin: what is drawn of a
  series.
- :func:`run_title`, :func:`run_caption`, :func:`run_colours`: what the figures of a run share.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from repdyn.metrics import metric_info
from repdyn.views.alerts import Alert
from repdyn.views.display import display_of
from repdyn.views.tables.bands import Band, Limits
from repdyn.views.tables.frames import CLOUDS, OF_THE_SAME_VECTORS
from repdyn.views.tables.runs import Key, MeasuredRun
from repdyn.views.tables.seeds import SeedSeries
from repdyn.views.tables.series import MetricSeries, series_without_repeats
from repdyn.views.tables.style import (
    KIND_COLOURS,
    LOSS_COLOUR,
    ORDERED,
    STEPS,
    metric_unit,
    number_text,
    shades,
    short_count,
)
from repdyn.views.tables.texts import brief_sampling

ZERO_SHARE = 10**-0.4
"""Where a logarithmic axis shows 0, as a share of the value from which on it is logarithmic."""
WIDE_RATIO = 50.0
"""Ratio of largest to smallest value above which lengths are shown logarithmically."""
FAR_ABOVE = 3.0
"""Ratio from which on a value would leave all others one shade of a linear scale of colours."""
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
    """The value from which on the axis is logarithmic, linear down to 0 below it; None for a linear
    axis.
    """
    ticks: Mapping[float, str] | None = None
    """Names of ticks by their value; None leaves them to the library."""
    is_signed: bool = False
    """Whether the sign of a value matters: a line at 0, and colours that change there."""
    is_integer: bool = False
    is_training: bool = False
    """Whether it counts the steps or tokens of a training, so that a reader may switch between the
    two.
    """
    is_empty: bool = False
    """Whether there is no value to show."""

    @property
    def floor(self) -> float | None:
        """Return the position of 0 for a library that cannot make an axis linear near 0; None for a
        linear axis.
        """
        return None if self.log_from is None else ZERO_SHARE * self.log_from


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A line, with a band if its intervals are known."""

    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None = None
    """Lower and upper ends of the 95% intervals at its points, or of the range of baselines, NaN
    where they are not known; None for a line without a band.
    """
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
    """The cells of a heatmap, rows upwards: values, and as these the ends of their intervals and
    why there is none.
    """

    values: np.ndarray
    """Shape (n_rows, n_columns); NaN where there is no value."""
    rows: Sequence[str]
    columns: Sequence[str]
    colours: Axis
    band: tuple[np.ndarray, np.ndarray] | None = None
    reasons: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An alert in a panel, at a value on its axes, or at the number of a column and a row of a
    heatmap.
    """

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
    gap: Sequence[Line] = ()
    """Two of its lines between which the area is shaded."""
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
    highest_block = _highest(np.asarray(line.y, float) for line in blocks)
    return blocks if highest > FLATTENING * highest_block > 0 else list(lines)


def _highest(values: Iterable[np.ndarray]) -> float:
    """Return the highest finite value; minus infinity without any."""
    finite = np.concatenate([[-math.inf], *(part[np.isfinite(part)] for part in values)])
    return float(finite.max())


def _without_first(line: Line) -> Line:
    band = None if line.band is None else (line.band[0][1:], line.band[1][1:])
    return replace(line, x=line.x[1:], y=line.y[1:], band=band)


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


def placed(values: np.ndarray, floor: float | None) -> np.ndarray:
    """Return the positions of values on an axis with its 0 at ``floor``."""
    return values if floor is None else np.maximum(values, floor)


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


MARKED = "marked: alerts"
"""Note on marks in a caption."""
SEED_LOOK: Mapping[str, Any] = {
    "width": 0.7,
    "marker": "",
    "label": "",
    "description": "a seed",
    "opacity": 0.55,
}
"""Look of a single seed, where it differs from that of the mean over seeds."""
_MAX_MESSAGES = 3
_MAX_MARKERS = 40
"""Largest number of points of a line with a marker each."""


def profile_lines(series: MetricSeries, colours: Mapping[int, str], **look: Any) -> list[Line]:
    """Return a metric over depth, one line for each of the steps that have a colour and were
    measured.
    """
    lines = []
    for step in (step for step in colours if step in series.steps):
        y, _ = series.at(step)
        usual = {
            "x": series.places,
            "y": y,
            "band": series.band_at(step),
            "colour": colours[step],
            "label": f"{step:,}",
            "description": f"layer %{{x}}, step {step:,}",
            "marker_size": marker_size(series.layers),
        }
        lines.append(Line(**{**usual, **look}))
    return lines


def end_lines(series: MetricSeries, **look: Any) -> list[Line]:
    """Return a metric over relative depth at its last step; of seeds above a thin line for each of
    them.
    """
    band = series.lows[:, -1], series.highs[:, -1]
    end = Line(x=series.depths, y=series.values[:, -1], band=band, **look)
    seeds = series.by_seed[:, :, -1] if isinstance(series, SeedSeries) else ()
    return [*(Line(x=end.x, y=values, **{**look, **SEED_LOOK}) for values in seeds), end]


def mean_lines(series: MetricSeries, **look: Any) -> list[Line]:
    """Return a metric averaged over layers against step; of seeds above a thin line for each of
    them.
    """
    means = series.layer_mean
    steps = means.mean.index.tolist()
    band = means.low.to_numpy(float), means.high.to_numpy(float)
    data = {"x": steps, "y": means.mean.to_numpy(float), "band": band}
    line = Line(
        **{**data, "marker_size": marker_size(steps), "description": "step %{text}", **look}
    )
    seeds = series.means_by_seed.to_numpy(float) if isinstance(series, SeedSeries) else ()
    return [*(Line(x=steps, y=values, **{**look, **SEED_LOOK}) for values in seeds), line]


BAND_COLOUR = "#8C96A0"
"""Of the band of baselines, which stays behind everything else in both themes."""


def mean_band(run: MeasuredRun, series: MetricSeries) -> list[Line]:
    """Return the band of a run's baselines behind a metric averaged over layers against step, with
    their median; nothing where there is none.
    """
    band = run.bands.get(series.key)
    if band is None or not series.mean_layers:
        return []
    return _band_line(band.of_mean(series.mean_layers), band, band.steps, "step %{text}")


def profile_band(run: MeasuredRun, series: MetricSeries, step: int) -> list[Line]:
    """Return the band of a run's baselines behind a metric over depth at a step, with their median;
    nothing where there is none.
    """
    band = run.bands.get(series.key)
    if band is None:
        return []
    return _band_line(band.at(step), band, series.places, f"layer %{{x}}, step {step:,}")


def _band_line(
    limits: Limits, band: Band, x: Sequence[float] | np.ndarray, where: str
) -> list[Line]:
    if limits.is_empty:
        return []
    return [
        Line(
            x=x,
            y=limits.median,
            band=(limits.low, limits.high),
            colour=BAND_COLOUR,
            label=band.name,
            description=f"median of {band.n_baselines} baselines, {where}",
            dash=":",
            width=1.4,
            marker="",
            band_opacity=0.35,
        )
    ]


def without_intervals(lines: Iterable[Line]) -> list[Line]:
    """Return lines without the intervals of their values, in front of a band of baselines: these
    have the same probe, so that an interval for another one says nothing about the distance.
    """
    return [replace(line, band=None) for line in lines]


def loss_line(losses: pd.Series, name: str, **look: Any) -> Line | None:
    """Return a loss against step; None if none is stored."""
    if losses.empty:
        return None
    default = {"colour": LOSS_COLOUR, "width": 1.5, "dash": "--", "marker": "x", "marker_size": 3}
    text = {"label": name, "description": f"{name}, step %{{text}}"}
    single = {"marker": "x"} if len(losses) == 1 else {}  # no line would show it
    return Line(
        x=losses.index.tolist(), y=losses.to_numpy(float), **{**text, **default, **look, **single}
    )


def marker_size(points: Sequence[Any]) -> float:
    """Return the size of the markers of a line: 0 on a line of many points."""
    return 3.5 if len(points) <= _MAX_MARKERS else 0


def alerts_on(alerts: Iterable[Alert], metric: str, subset: str | None = None) -> list[Alert]:
    """Return the alerts on a metric, on every subset unless one is named."""
    return [
        each for each in alerts if each.metric == metric and subset in (None, each.subset or "all")
    ]


def marks_on(alerts: Iterable[Alert], line: Line | None) -> list[Mark]:
    """Return a mark for each step with an alert, at the value of a line against step where it has
    one.
    """
    values = (
        {} if line is None else dict(zip(line.x, np.asarray(line.y, float).tolist(), strict=True))
    )
    messages: dict[int, list[str]] = {}
    for alert in alerts:
        messages.setdefault(alert.step, []).append(alert.message)
    marks = []
    for step, texts in messages.items():
        y = values.get(step, math.nan)
        shown = texts[:_MAX_MESSAGES]
        if len(texts) > _MAX_MESSAGES:
            shown.append(f"and {len(texts) - _MAX_MESSAGES} more")
        marks.append(Mark(x=step, y=y if math.isfinite(y) else None, text="\n".join(shown)))
    return marks


def _on_one_scale(
    series: MetricSeries, others: Mapping[tuple[str, str], MetricSeries]
) -> list[MetricSeries]:
    """Return the series of a metric that share a scale: those of all tokens and those without
    sinks.
    """
    alike = [
        one
        for key, one in others.items()
        if key[0] == series.metric and key[1] in OF_THE_SAME_VECTORS
    ]
    return alike if series.subset in OF_THE_SAME_VECTORS else [series]


def other_cloud(
    series: MetricSeries, others: Mapping[tuple[str, str], MetricSeries]
) -> MetricSeries | None:
    """Return the same metric on the other of both clouds, which charts draw beside it.

    Args:
        series: a metric on all vectors, on types or on distinct inputs.
        others: all series of the run.

    Returns:
        None where the other cloud was not measured or has no value.
    """
    other = None
    if series.subset == "all":
        other = series_without_repeats(series.metric, others)
    elif series.subset in CLOUDS:
        other = others.get((series.metric, "all"))
    return other if other is not None and other.steps_with_values else None


def shared_axis(
    series: MetricSeries, others: Mapping[tuple[str, str], MetricSeries], *, has_bands: bool = True
) -> Axis:
    """Return the axis of a metric: one for all tokens and for those without sinks."""
    drawn = _on_one_scale(series, others)
    values = np.concatenate([shown.values.ravel() for shown in drawn])
    if not has_bands:
        return value_axis(series.metric, values)
    ends = [end.ravel() for shown in drawn for end in (shown.lows, shown.highs)]
    return value_axis(series.metric, values, np.concatenate(ends))


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


def heatmap_panel(run: MeasuredRun, series: MetricSeries) -> Panel:
    """Return a metric of a run by layer (upwards) and measured step (to the right, equally spaced),
    with its alerts marked; one scale of colours is for all tokens and for those without sinks."""
    columns = {step: number for number, step in enumerate(series.steps)}
    rows = {layer: number for number, layer in enumerate(series.layers)}
    marks = [
        Mark(
            x=columns[alert.step],
            y=None if alert.layer is None else rows[alert.layer],
            text=alert.message,
        )
        for alert in alerts_on(run.alerts, *series.key)
        if alert.step in columns and (alert.layer is None or alert.layer in rows)
    ]
    cells = Cells(
        values=series.values,
        rows=[str(layer) for layer in series.layers],
        columns=[f"{step:,}" for step in series.steps],
        colours=colour_scale(_on_one_scale(series, run.series)),
        band=(series.lows, series.highs),
        reasons=series.reasons,
    )
    return Panel(
        x=Axis(label="step (measured)"),
        y=Axis(label=layer_label(series.metric)),
        cells=cells,
        marks=marks,
    )


def heads_panel(series: MetricSeries, by_head: np.ndarray) -> Panel:
    """Return the values of heads at the last step by attention head (to the right) and layer
    (upwards), of shape (n_steps, n_layers, n_heads); the colours cover those of all steps."""
    cells = Cells(
        values=by_head[-1],
        rows=[str(layer) for layer in series.layers],
        columns=[str(head) for head in series.heads],
        colours=value_axis(series.metric, by_head),
    )
    return Panel(x=Axis(label="attention head"), y=Axis(label="layer"), cells=cells)


def run_title(run: MeasuredRun, text: str) -> str:
    """Return a title that begins with the stack of the run's model, if it has several."""
    return text if run.stack is None else f"{run.stack}: {text}"


def run_caption(rows: pd.DataFrame, *more: str) -> str:
    """Return the run, how many vectors its values rest on, and more, in one line."""
    return notes(f"{rows['run'].iloc[0]}, {brief_sampling(rows)}", *more)


def notes(*texts: str) -> str:
    """Join the texts that are not empty."""
    return "; ".join(filter(None, texts))


def about_checkpoints(rows: pd.DataFrame) -> str:
    """Say that values compare two checkpoints, if some do."""
    compares = bool(rows["compared_to"].notna().any())
    return "each checkpoint compared with the one before" if compares else ""


def step_colours(number: int) -> tuple[str, ...]:
    """Return colours for a number of steps, dark to light."""
    return shades(STEPS, number, 0.0, 0.9)


def layer_colours(number: int) -> tuple[str, ...]:
    """Return colours for a number of layers, or of others with an order, dark to light."""
    return shades(ORDERED, number, 0.0, 0.9)


def run_colours(
    runs: Sequence[MeasuredRun], between: tuple[float, float] = (0.43, 1.0), alone: float = 0.75
) -> dict[Key, str]:
    """Return a colour for each run of a comparison: a hue for each class of models, from light to
    dark by size, ``between`` two places in its colour map, or at one for the only run of its
    class."""
    classes: dict[tuple[bool | None, str], list[Key]] = {}
    for run in runs:
        classes.setdefault((run.causal, str(run.rows["model"].iloc[0])), []).append(run.key)
    colours: dict[Key, str] = {}
    for number, ((kind, _), keys) in enumerate(classes.items()):
        before = [of for of, _ in classes][:number].count(kind)
        colour_map = KIND_COLOURS[kind][before % len(KIND_COLOURS[kind])]
        ends = between if len(keys) > 1 else (alone, alone)
        colours |= dict(zip(keys, shades(colour_map, len(keys), *ends), strict=True))
    return colours
