"""The figures of a report as plain dictionaries of Plotly: those of one run, and those of several together.

Used by the page and by :mod:`repdyn.report.figures`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from repdyn.figures.axes import (
    RELATIVE_DEPTH,
    axis_of_lines,
    layer_axis,
    layer_label,
    training_axis,
    value_axis,
)
from repdyn.figures.charts import Cells, Panel
from repdyn.figures.colours import step_colours
from repdyn.figures.metric_panels import (
    alerts_on,
    end_line,
    heads_panel,
    heatmap_panel,
    loss_line,
    marks_on,
    mean_line,
    profile_lines,
)
from repdyn.report.plotly_panels import (
    HEIGHT,
    PlotlyDict,
    cells_trace,
    colour_axis,
    escaped,
    plotly_panel,
)
from repdyn.report.runs import ReportRun
from repdyn.report.themes import LOSS, VALUE
from repdyn.tables.frames import select_steps
from repdyn.tables.runs import Key
from repdyn.tables.scalars import LOSS as LOSS_NAME
from repdyn.tables.series import MetricSeries

MAX_TRAIL = 7
"""Number of other steps in a profile."""
MAX_PANELS = 24
"""Largest number of heatmaps in a comparison."""
MAX_BANDS = 6
"""Largest number of lines with bands; more would hide each other."""
_COLUMNS = 3
_PANEL_HEIGHT = 220
_MARGINS = 70
_GAP = 0.05
_ROW_GAP = 0.3
"""Of the height of a row, for ticks and a heading."""

Members = Sequence[tuple[int, ReportRun, MetricSeries]]
"""The runs that have a metric, each with its number among all."""


def heatmap_plot(run: ReportRun, series: MetricSeries) -> PlotlyDict:
    """Return a metric by layer (upwards) and measured step (to the right, equally spaced)."""
    plot = plotly_panel(heatmap_panel(series, run.alerts))
    last = len(series.steps) - 1
    # frame around the column of the selected step; the page moves it
    frame = {"type": "rect", "yref": "paper", "x0": last - 0.5, "x1": last + 0.5, "y0": 0, "y1": 1}
    plot["layout"]["shapes"] = [{**frame, "line": {"color": LOSS, "width": 2}}]
    return plot


def profile_plot(run: ReportRun, series: MetricSeries) -> PlotlyDict:
    """Return a metric over depth at the last step, between faint lines of a few others."""
    trail = [] if run.finished else select_steps(series.steps, MAX_TRAIL)
    colours = dict(zip(trail, step_colours(len(trail)), strict=True))
    last = {series.steps[-1]: VALUE}
    panel = Panel(
        x=layer_axis(layer_label(series.metric, series.layers[-1]), series.places[0], series.places[-1]),
        y=value_axis(series.metric, series.values, series.margins),
        lines=[
            *profile_lines(series, colours, margin=None, width=1.0, marker=""),
            *profile_lines(series, last, label="", marker_size=3.5, description="layer %{x}"),
        ],
        legend="right" if trail else "",
    )
    plot = plotly_panel(panel)
    plot["layout"]["legend"] = {"title": {"text": "step"}, "traceorder": "reversed"}
    return plot


def means_plot(run: ReportRun, series: MetricSeries) -> PlotlyDict:
    """Return a metric averaged over layers during training, with the loss."""
    line = mean_line(series, colour=VALUE, label="mean over layers", marker_size=3.5)
    losses = loss_line(run.loss)
    loss_steps = set() if losses is None else {*losses.x}
    of_series = [alert for alert in alerts_on(run.alerts, *series.key) if alert.step in series.steps]
    panel = Panel(
        x=training_axis(series.steps),
        y=axis_of_lines(series.metric, [line]),
        lines=[line],
        loss=losses,
        marks=marks_on(of_series, line),
        loss_marks=marks_on([a for a in run.alerts if a.metric == LOSS_NAME and a.step in loss_steps], losses),
        legend="above",
    )
    plot = plotly_panel(panel, height=HEIGHT - 40)
    plot["layout"]["hovermode"] = "closest"
    return plot


def heads_plot(series: MetricSeries) -> PlotlyDict | None:
    """Return a metric by attention head and layer at the last step; None if it was not measured head by head."""
    if series.by_head is None:
        return None
    panel = heads_panel(series.metric, series.by_head[-1], series.layers, series.heads, series.by_head)
    plot = plotly_panel(panel, height=HEIGHT - 40)
    plot["data"][0]["meta"] = {"role": "heads"}
    return plot


def measured_with(runs: Sequence[ReportRun], key: tuple[str, str]) -> list[tuple[int, ReportRun, MetricSeries]]:
    """Return the runs that were measured with a metric on a token subset, each with its number."""
    return [(number, run, run.series[key]) for number, run in enumerate(runs) if key in run.series]


def profiles_plot(members: Members, colours: Mapping[Key, str]) -> PlotlyDict:
    """Return the last profile of each run over relative depth."""
    lines = []
    for number, run, series in members:
        when = "" if run.finished else f", step {series.steps[-1]:,}"
        description = f"{run.label}{when}\ndepth %{{x:.2f}}"
        lines.append(replace(end_line(series, **_look(number, run, colours)), description=description))
    return _lines_plot(Panel(x=RELATIVE_DEPTH, lines=lines), members)


def training_plot(members: Members, colours: Mapping[Key, str]) -> PlotlyDict | None:
    """Return the mean over layers of each run during its training; None if none has two checkpoints."""
    trained = [member for member in members if len(member[2].steps) > 1]
    if not trained:
        return None
    lines = []
    for number, run, series in trained:
        line = mean_line(series, **_look(number, run, colours))
        lines.append(replace(line, description=f"{run.label}\nstep %{{text}}"))
    return _lines_plot(Panel(x=training_axis(trained[0][2].steps), lines=lines), trained)


def heatmaps_plot(members: Members) -> PlotlyDict | None:
    """Return heatmaps of the runs on one scale of colours; None if fewer than two have several steps."""
    trained = [member for member in members if len(member[2].steps) > 1][:MAX_PANELS]
    if len(trained) < 2:
        return None
    colours = value_axis(trained[0][2].metric, np.concatenate([series.values.ravel() for *_, series in trained]))
    columns = min(_COLUMNS, len(trained))
    n_rows = math.ceil(len(trained) / columns)
    traces: list[PlotlyDict] = []
    headings: list[PlotlyDict] = []
    layout: PlotlyDict = {"annotations": headings}
    for number, (_, run, series) in enumerate(trained):
        name = str(number + 1) if number else ""
        across, up = _domains(number, columns, n_rows)
        steps = [f"{step:,}" for step in series.steps]
        trace = cells_trace(Cells(values=series.values, rows=(), columns=steps, colours=colours))
        where = f"{escaped(run.label)}<br>depth %{{y:.2f}}, step %{{x}}<br>{trace['hovertemplate']}"
        # the page reads the values from here
        trace |= {"y": series.depths, "customdata": series.values, "hovertemplate": where}
        traces.append(trace | {"xaxis": f"x{name}", "yaxis": f"y{name}"})
        layout[f"xaxis{name}"] = {
            "type": "category",
            "domain": across,
            "anchor": f"y{name}",
            "nticks": 6,
            "showgrid": False,
        }
        layout[f"yaxis{name}"] = {"domain": up, "anchor": f"x{name}", "nticks": 4, "showgrid": False}
        headings.append(_heading(run.label, across[0], up[1]))
    height = _MARGINS + _PANEL_HEIGHT * n_rows
    return {
        "data": traces,
        "layout": {"height": height, "coloraxis": colour_axis(colours), "margin": {"t": 30}, **layout},
    }


def _look(number: int, run: ReportRun, colours: Mapping[Key, str]) -> PlotlyDict:
    return {"colour": colours[run.measured.key], "label": run.label, "run": number, "marker_size": 3.5}


def _lines_plot(panel: Panel, members: Members) -> PlotlyDict:
    """Return a plot with a line for each run; the legend is above few lines, next to many."""
    few = len(members) <= MAX_BANDS
    y = axis_of_lines(members[0][2].metric, panel.lines)
    return plotly_panel(replace(panel, y=y, legend="above" if few else "right"), has_bands=few)


def _heading(label: str, x: float, y: float, longest: int = 34) -> PlotlyDict:
    text = label if len(label) <= longest else f"...{label[3 - longest :]}"
    place = {"x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    return {"text": escaped(text), "showarrow": False, "font": {"size": 13}, **place}


def _domains(number: int, columns: int, n_rows: int) -> tuple[list[float], list[float]]:
    """Return the horizontal and vertical domain of a panel; the first row is on top."""
    row, column = divmod(number, columns)
    width, height = (1 + _GAP) / columns, (1 + _ROW_GAP / n_rows) / n_rows
    left, top = column * width, 1 - row * height
    return [left, min(1.0, left + width - _GAP)], [max(0.0, top - height + _ROW_GAP / n_rows), top]
