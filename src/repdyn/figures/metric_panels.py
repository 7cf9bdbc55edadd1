"""Lines and panels of metric series: profiles over depth, means over layers, heatmaps, and the alerts on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from repdyn.alerts import Alert
from repdyn.figures.axes import layer_label, value_axis
from repdyn.figures.charts import Axis, Cells, Line, Mark, Panel
from repdyn.store.schema import FINISHED, LOSS
from repdyn.tables.seeds import SeedSeries
from repdyn.tables.series import MetricSeries
from repdyn.tables.style import LOSS_COLOUR

MARKED = "marked: alerts"
"""Note on marks in a caption."""
SEED_LOOK: Mapping[str, Any] = {"width": 0.7, "marker": "", "label": "", "description": "a seed", "opacity": 0.55}
"""Line style of a single seed, where it differs from that of the mean over seeds."""
_MAX_MESSAGES = 3
_MAX_MARKERS = 40
"""Largest number of points of a line with a marker each."""


def profile_lines(
    series: MetricSeries, colours: Mapping[int, str], *, is_finished: bool = False, **look: Any
) -> list[Line]:
    """Return a metric over depth, one line for each of the steps that have a colour and were measured."""
    return [
        Line(
            **{
                "x": series.places,
                "y": series.at(step)[0],
                "margin": series.at(step)[1],
                "colour": colour,
                "label": FINISHED if is_finished else f"{step:,}",
                "marker_size": marker_size(series.layers, 3.5),
                "description": f"layer %{{x}}, step {step:,}",
                **look,
            }
        )
        for step, colour in colours.items()
        if step in series.steps
    ]


def end_line(series: MetricSeries, **look: Any) -> Line:
    """Return a metric over relative depth at the last step it was measured at."""
    return Line(x=series.depths, y=series.values[:, -1], margin=series.margins[:, -1], **look)


def end_lines(series: MetricSeries, **look: Any) -> list[Line]:
    """Return :func:`end_line`, of seeds above a thin line for each of them at the same step."""
    seeds = series.by_seed[:, :, -1] if isinstance(series, SeedSeries) else ()
    thin = {**look, **SEED_LOOK}
    return [*(Line(x=series.depths, y=values, **thin) for values in seeds), end_line(series, **look)]


def mean_line(series: MetricSeries, **look: Any) -> Line:
    """Return a metric averaged over layers against step."""
    means = series.layer_mean
    steps = means.mean.index.tolist()
    data = {"x": steps, "y": means.mean.to_numpy(float), "margin": means.margin.to_numpy(float)}
    return Line(**{**data, "marker_size": marker_size(steps, 3.5), "description": "step %{text}", **look})


def mean_lines(series: MetricSeries, **look: Any) -> list[Line]:
    """Return :func:`mean_line`, of seeds above a thin line for each of them."""
    line = mean_line(series, **look)
    seeds = series.means_by_seed.to_numpy(float) if isinstance(series, SeedSeries) else ()
    thin = {**look, **SEED_LOOK}
    return [*(Line(x=line.x, y=values, **thin) for values in seeds), line]


def loss_line(losses: pd.Series, name: str = LOSS, **look: Any) -> Line | None:
    """Return a loss against step; None if none is stored."""
    if losses.empty:
        return None
    default = {"colour": LOSS_COLOUR, "width": 1.5, "dash": "--", "marker": "x", "marker_size": 3}
    text = {"label": name, "description": f"{name}, step %{{text}}"}
    return Line(x=losses.index.tolist(), y=losses.to_numpy(float), **{**text, **default, **look})


def marker_size(points: Sequence[Any], size: float) -> float:
    """Return the size of the markers of a line: 0 on a line of many points."""
    return size if len(points) <= _MAX_MARKERS else 0


def alerts_on(alerts: Iterable[Alert], metric: str, subset: str | None = None) -> list[Alert]:
    """Return the alerts on a metric, on every token subset unless one is named."""
    return [
        alert for alert in alerts if alert.metric == metric and (subset is None or (alert.subset or "all") == subset)
    ]


def marks_on(alerts: Iterable[Alert], line: Line | None) -> list[Mark]:
    """Return a mark for each step with an alert, at the value of a line against step where it has one."""
    values = {} if line is None else dict(zip(line.x, np.asarray(line.y, float).tolist(), strict=True))
    messages: dict[int, list[str]] = {}
    for alert in alerts:
        messages.setdefault(alert.step, []).append(alert.message)
    heights = {step: values.get(step, math.nan) for step in messages}
    return [
        Mark(x=step, y=height if math.isfinite(height) else None, text=_shortened(messages[step]))
        for step, height in heights.items()
    ]


def heatmap_panel(series: MetricSeries, alerts: Iterable[Alert] = (), steps: Sequence[int] | None = None) -> Panel:
    """Return a metric by layer (upwards) and measured step (to the right, equally spaced), with its alerts marked.

    Args:
        series: of the metric.
        alerts: of the run; those at other steps or layers are left out.
        steps: those to draw; all unless given.
    """
    steps = series.steps if steps is None else steps
    places = {step: place for place, step in enumerate(series.steps)}
    chosen = [places[step] for step in steps]
    selection = (
        "measured" if len(steps) == len(series.steps) else f"{len(steps)} of {len(series.steps)} measured, log-spaced"
    )
    columns = {step: number for number, step in enumerate(steps)}
    rows = {layer: number for number, layer in enumerate(series.layers)}
    marks = [
        Mark(x=columns[alert.step], y=None if alert.layer is None else rows[alert.layer], text=alert.message)
        for alert in alerts_on(alerts, series.metric, series.subset)
        if alert.step in columns and (alert.layer is None or alert.layer in rows)
    ]
    values = series.values[:, chosen]
    cells = Cells(
        values=values,
        rows=[str(layer) for layer in series.layers],
        columns=[f"{step:,}" for step in steps],
        colours=value_axis(series.metric, values),
        margins=series.margins[:, chosen],
        reasons=series.reasons,
    )
    return Panel(
        x=Axis(label=f"step ({selection})"), y=Axis(label=layer_label(series.metric)), cells=cells, marks=marks
    )


def heads_panel(
    metric: str, values: np.ndarray, layers: Iterable[int], heads: Iterable[int], all_values: np.ndarray | None = None
) -> Panel:
    """Return a metric by attention head (to the right) and layer (upwards).

    Args:
        metric: its name.
        values: of shape (n_layers, n_heads).
        layers, heads: their numbers.
        all_values: all values that the colour scale must cover; ``values`` unless given.
    """
    cells = Cells(
        values=values,
        rows=[str(layer) for layer in layers],
        columns=[str(head) for head in heads],
        colours=value_axis(metric, values if all_values is None else all_values),
    )
    return Panel(x=Axis(label="attention head"), y=Axis(label="layer"), cells=cells)


def _shortened(messages: Sequence[str]) -> str:
    more = [f"and {len(messages) - _MAX_MESSAGES} more"] if len(messages) > _MAX_MESSAGES else []
    return "\n".join([*messages[:_MAX_MESSAGES], *more])
