"""What is drawn of a series, and what the figures of a run share.

- :func:`profile_lines` over depth, :func:`mean_lines` against step, :func:`end_lines` of runs that
  are compared; the bands of baselines behind them.
- :func:`heatmap_panel`, :func:`heads_panel`: cells. :func:`marks_on`: alerts.
- :func:`run_title`, :func:`run_caption`, :func:`run_colours`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from repdyn.views.alerts import Alert
from repdyn.views.charts.axes import heatmap_scale, layer_label, value_axis
from repdyn.views.charts.description import Axis, Cells, Line, Mark, Panel
from repdyn.views.tables.bands import Band, Limits
from repdyn.views.tables.frames import CLOUDS
from repdyn.views.tables.runs import Key, MeasuredRun
from repdyn.views.tables.seeds import SeedSeries
from repdyn.views.tables.series import MetricSeries, series_without_repeats
from repdyn.views.tables.style import (
    KIND_COLOURS,
    LOSS_COLOUR,
    ORDERED,
    STEPS,
    shades,
)
from repdyn.views.tables.texts import brief_sampling

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


def heatmap_panel(run: MeasuredRun, series: MetricSeries) -> Panel:
    """Return a metric of a run by layer (upwards) and measured step (to the right, equally spaced),
    with its alerts marked, on the scale of :func:`~repdyn.views.charts.axes.heatmap_scale`."""
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
        colours=heatmap_scale(series, run.series),
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
