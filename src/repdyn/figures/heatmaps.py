"""Pictures of values as colours: by layer and step, by layer and attention head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repdyn.alerts import Alert
from repdyn.figures.alert_marks import MARKED, alerts_on, mark_cells
from repdyn.figures.drawing import MAX_TICKS, colours, entitle_run, name_ticks
from repdyn.figures.overviews import compared
from repdyn.metrics.names import base_name
from repdyn.store.schema import FINISHED
from repdyn.tables.families import is_between, without_first
from repdyn.tables.frames import grid, in_order, is_finished, of_heads, of_metric, of_training, select_steps
from repdyn.tables.style import DIVERGING, SEQUENTIAL, SIGNED, metric_title, metric_unit, styled, subset_title

_MAX_COLUMNS = 48


@styled
def heatmap(frame: pd.DataFrame, metric: str, subset: str, alerts: Sequence[Alert] = ()) -> Figure:
    """A metric by layer (upwards) and measured step (to the right, equally spaced); hatched where it has no value.

    Of more than 48 measured steps, log-spaced ones are drawn, and those with an alert.

    Args:
        frame: rows of one run.
        metric: a measured metric.
        subset: a token subset it was measured on.
        alerts: of the run; those on this metric and subset are marked.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; ``metric`` or ``subset`` not among them; a
            finished model, which has no steps.
    """
    rows = of_training(frame, "profile_over_depth")
    shown = of_metric(rows, metric, subset)
    compares = without_first(shown)
    values = grid(rows if compares.empty else compares, metric, subset)
    raised = alerts_on(alerts, metric, subset)
    steps = select_steps(values.columns.tolist(), _MAX_COLUMNS)
    steps = sorted({*steps, *(alert.step for alert in raised if alert.step in values)})
    everything = len(steps) == values.shape[1]
    selection = "measured" if everything else f"{len(steps)} of {values.shape[1]} measured, log-spaced"
    values = values.loc[:, steps]
    figure = Figure(figsize=(7.2, 4.3))
    axes = figure.subplots()
    cells = _draw_cells(figure, axes, values, metric)
    marked = mark_cells(axes, raised, values.index.tolist(), steps)
    name_ticks(axes.xaxis, [f"{step:,}" for step in steps])
    axes.tick_params(axis="x", rotation=0 if len(steps) <= MAX_TICKS and steps[-1] < 10_000 else 45)
    to_next = ", each to the next" * is_between(metric)
    axes.set(xlabel=f"step ({selection})", ylabel=f"layer (0 = embedding output{to_next})")
    note = "; hatched: none that compares" if np.ma.is_masked(cells) else ""
    text = f"{metric_title(metric)} by layer and step, {subset_title(subset)}{note}"
    entitle_run(figure, shown, text, compared(shown), MARKED * marked)
    return figure


@styled
def heads_heatmap(frame: pd.DataFrame, metric: str, subset: str) -> Figure:
    """A metric by attention head (to the right) and layer (upwards) at the last measured step; hatched without a value.

    Args:
        frame: rows of one run.
        metric: one that was measured head by head.
        subset: a token subset it was measured on.

    Raises:
        ValueError: rows of several runs, models, probes or stacks; ``metric`` not measured head by head on ``subset``.
    """
    rows = of_heads(frame)
    cells = rows if rows.empty else of_metric(rows, metric, subset)
    if cells.empty:
        there = ", ".join(f"{name} ({of})" for name, of in measured_by_head(frame)) or "none"
        raise ValueError(f"expected a metric measured head by head, got {metric!r} ({subset}); measured were {there}")
    step = max(cells["step"].tolist())
    values = cells.loc[cells["step"] == step].pivot(index="layer", columns="head", values="value").sort_index()
    figure = Figure(figsize=(7.2, 4.3))
    axes = figure.subplots()
    _draw_cells(figure, axes, values, metric)
    name_ticks(axes.xaxis, [str(head) for head in values.columns])
    axes.set(xlabel="attention head", ylabel="layer")
    when = FINISHED if is_finished(cells) else f"at step {step:,}"
    entitle_run(figure, cells, f"{metric_title(metric)} by layer and head, {when}, {subset_title(subset)}")
    return figure


def measured_by_head(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Each metric and token subset that has values of single heads."""
    rows = frame.loc[frame["layer"].notna() & frame["head"].notna() & frame["value"].notna()]
    pairs = rows.assign(subset=rows["subset"].fillna("all"))[["metric", "subset"]].drop_duplicates()
    metrics = sorted(pairs["metric"].unique())
    return [(metric, subset) for metric in metrics for subset in in_order(of_metric(pairs, metric)["subset"])]


def _draw_cells(figure: Figure, axes: Axes, values: pd.DataFrame, metric: str) -> np.ma.MaskedArray:
    """The values, by layer upwards, as colours with their bar; returns them, what is missing masked."""
    axes.grid(False)
    axes.patch.set(facecolor="0.88", hatch="////", edgecolor="0.65")
    cells = np.ma.masked_invalid(values.to_numpy(float))
    colour_map = DIVERGING if base_name(metric) in SIGNED else SEQUENTIAL
    image = axes.imshow(
        cells, origin="lower", aspect="auto", interpolation="nearest", cmap=colour_map, norm=colours(metric, cells)
    )
    figure.colorbar(image, label=metric_unit(metric))
    name_ticks(axes.yaxis, [str(layer) for layer in values.index])
    return cells
