"""The figures of a report as plain dictionaries of Plotly: those of one run, and those of several together.

Used by the page and by :mod:`repdyn.plots`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from repdyn.figures.charts import (
    RELATIVE_DEPTH,
    Axis,
    Cells,
    Line,
    Panel,
    alerts_on,
    axis_of_lines,
    end_lines,
    heads_panel,
    heatmap_panel,
    layer_axis,
    layer_label,
    loss_line,
    marks_on,
    mean_lines,
    profile_lines,
    run_colours,
    step_colours,
    training_axis,
    value_axis,
)
from repdyn.report.plotly_panels import (
    HEIGHT,
    LOSS,
    VALUE,
    PlotlyDict,
    cells_trace,
    colour_axis,
    escaped,
    heading,
    plotly_axis,
    plotly_panel,
    stacked_rows,
)
from repdyn.report.runs import ReportRun
from repdyn.store.schema import LOSS as LOSS_NAME
from repdyn.store.schema import PROBE_LOSS, VALIDATION_LOSS
from repdyn.tables.frames import LOSS_TITLES, select_steps
from repdyn.tables.runs import Key, MeasuredRun
from repdyn.tables.seeds import SeedGroup, with_seeds
from repdyn.tables.series import MetricSeries
from repdyn.tables.style import metric_title, metric_unit, short_subset_title

TRAINING, NO_VALUES = Axis(is_training=True), Axis(limits=(0.0, 1.0), is_empty=True)
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
_STEP_FRAME = {"type": "rect", "yref": "paper", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "visible": False}
_STEP_FRAME |= {"line": {"color": LOSS, "width": 2}}
_STEP_LINE = _STEP_FRAME | {"type": "line"}
"""Where the selected step is; the page places them."""


def heatmap_plot(run: ReportRun, series: MetricSeries) -> PlotlyDict:
    """Return a metric by layer (upwards) and measured step (to the right, equally spaced)."""
    plot = plotly_panel(heatmap_panel(series, run.alerts))
    plot["layout"]["shapes"] = [_STEP_FRAME]
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
    for trace, step in zip(plot["data"], trail, strict=False):
        trace["meta"] = {"role": "trail", "column": series.steps.index(step)}
    plot["layout"]["legend"] = {"title": {"text": "step"}, "traceorder": "reversed"}
    return plot


def layers_plot(series: MetricSeries) -> PlotlyDict:
    """Return a line for each layer of a metric during training, without its values, which the page has already."""
    look = {"mode": "lines", "meta": {"along": "training", "role": "layer"}, "showlegend": False}
    traces = [
        {**look, "name": f"layer {layer}", "line": {"color": colour, "width": 1.5}}
        for layer, colour in zip(series.layers, step_colours(len(series.layers)), strict=True)
    ]
    y = plotly_axis(value_axis(series.metric, series.values))
    return {"data": traces, "layout": {"height": HEIGHT, "yaxis": y, "hovermode": "closest", "shapes": [_STEP_LINE]}}


def course_plot(run: ReportRun, series: MetricSeries, others: Sequence[MetricSeries] = ()) -> PlotlyDict:
    """Return a training in rows on one axis: the loss, metrics averaged over layers, and the steps with alerts."""
    rows = [*_loss_row(run), *(_mean_row(run, one) for one in (series, *others)), *_alerts_row(run)]
    plot = stacked_rows(rows)
    plot["layout"]["shapes"] = [_STEP_LINE]
    return plot


def _loss_row(run: ReportRun) -> list[Panel]:
    training = loss_line(run.loss(LOSS_NAME), LOSS_TITLES[LOSS_NAME], dash="-", marker="")
    validation = loss_line(run.loss(VALIDATION_LOSS), f"{LOSS_TITLES[VALIDATION_LOSS]} (dashed)", colour=VALUE)
    margin = run.probe_loss_margin.to_numpy(float)
    on_probe = loss_line(run.loss(PROBE_LOSS), LOSS_TITLES[PROBE_LOSS], dash="-", marker="", margin=margin)
    if on_probe is not None and training is not None:
        on_probe = replace(on_probe, label=f"{on_probe.label} (dotted)", dash=":")
    lines = {LOSS_NAME: training, VALIDATION_LOSS: validation, PROBE_LOSS: on_probe}
    drawn = {name: line for name, line in lines.items() if line is not None}
    marks = [
        mark
        for name, line in drawn.items()
        for mark in marks_on(alerts_on(run.alerts, name), line)
        if mark.y is not None
    ]
    title = " and ".join(", ".join(line.label for line in drawn.values()).rsplit(", ", 1))
    return [Panel(title=title, x=TRAINING, lines=list(drawn.values()), marks=marks)] if drawn else []


def _mean_row(run: ReportRun, series: MetricSeries) -> Panel:
    (line,) = mean_lines(series, colour=VALUE, marker_size=2.5)
    alerts = [alert for alert in alerts_on(run.alerts, *series.key) if alert.step in series.steps]
    unit, title = metric_unit(series.metric), metric_title(series.metric)
    of = f"{title}, {short_subset_title(series.subset)}, mean over {series.layer_mean.coverage}"
    return Panel(
        title=of if unit == title else f"{of} ({unit})",
        x=TRAINING,
        y=replace(axis_of_lines(series.metric, [line]), label=""),
        lines=[line],
        marks=marks_on(alerts, line),
    )


def _alerts_row(run: ReportRun) -> list[Panel]:
    marks = [replace(mark, y=0.5) for mark in marks_on(run.alerts, None)]
    return [Panel(title="alerts", x=TRAINING, y=NO_VALUES, marks=marks)] if marks else []


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


def profiles_plot(members: Sequence[ComparedMember], colours: Mapping[Key, str]) -> PlotlyDict:
    """Return the last profile of each run over relative depth."""
    lines = []
    for member in members:
        when = "" if member.run.finished else f", step {member.series.steps[-1]:,}"
        lines += _described(end_lines(member.series, **_look(member, colours)), member, f"{when}\ndepth %{{x:.2f}}")
    return _lines_plot(Panel(x=RELATIVE_DEPTH, lines=lines), members)


def training_plot(members: Sequence[ComparedMember], colours: Mapping[Key, str]) -> PlotlyDict | None:
    """Return the mean over layers of each run during its training; None if none has two checkpoints."""
    trained = [member for member in members if len(member.series.steps) > 1]
    if not trained:
        return None
    lines = []
    for member in trained:
        lines += _described(mean_lines(member.series, **_look(member, colours)), member, "\nstep %{text}")
    return _lines_plot(Panel(x=training_axis(trained[0].series.steps), lines=lines), trained)


def heatmaps_plot(members: Sequence[tuple[int, ReportRun, MetricSeries]]) -> PlotlyDict | None:
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
    for number, (place, run, series) in enumerate(trained):
        name = str(number + 1) if number else ""
        across, up = _domains(number, columns, n_rows)
        steps = [f"{step:,}" for step in series.steps]
        trace = cells_trace(Cells(values=series.values, rows=(), columns=steps, colours=colours))
        where = f"{escaped(run.label)}<br>depth %{{y:.2f}}, step %{{x}}<br>{trace['hovertemplate']}"
        # the page reads the values from here
        trace |= {"y": series.depths, "customdata": series.values, "hovertemplate": where, "meta": {"member": place}}
        traces.append(trace | {"xaxis": f"x{name}", "yaxis": f"y{name}"})
        layout[f"xaxis{name}"] = {"type": "category", "domain": across, "anchor": f"y{name}", "nticks": 6}
        layout[f"yaxis{name}"] = {"domain": up, "anchor": f"x{name}", "nticks": 4}
        for axis in ("xaxis", "yaxis"):
            layout[f"{axis}{name}"]["showgrid"] = False
        headings.append(heading(_shortened(run.label), across[0], up[1], 13))
    height = _MARGINS + _PANEL_HEIGHT * n_rows
    return {
        "data": traces,
        "layout": {"height": height, "coloraxis": colour_axis(colours), "margin": {"t": 30}, **layout},
    }


def _look(member: ComparedMember, colours: Mapping[Key, str]) -> PlotlyDict:
    numbers = {"run": member.number, "seeds": member.seeds}
    return {"colour": colours[member.run.key], "label": member.run.label, "marker_size": 3.5, **numbers}


def _described(lines: Sequence[Line], member: ComparedMember, where: str) -> list[Line]:
    """Return the lines of a member with their hover texts; the last is that of the member itself, not of a seed."""
    *seeds, own = lines
    of_seeds = zip(seeds, member.seeds, member.run.members if isinstance(member.run, SeedGroup) else (), strict=True)
    return [
        *(
            replace(line, description=f"{run.label}{where}", run=number, seeds=(), group=member.run.label)
            for line, number, run in of_seeds
        ),
        replace(own, description=f"{member.run.label}{where}"),
    ]


def _lines_plot(panel: Panel, members: Sequence[ComparedMember]) -> PlotlyDict:
    """Return a plot with a line for each run; the legend is above few lines, next to many."""
    few = len(members) <= MAX_BANDS
    y = axis_of_lines(members[0].series.metric, panel.lines)
    return plotly_panel(replace(panel, y=y, legend="above" if few else "right"), has_bands=few)


def _shortened(label: str, longest: int = 34) -> str:
    return label if len(label) <= longest else f"...{label[3 - longest :]}"


def _domains(number: int, columns: int, n_rows: int) -> tuple[list[float], list[float]]:
    """Return the horizontal and vertical domain of a panel; the first row is on top."""
    row, column = divmod(number, columns)
    width, height = (1 + _GAP) / columns, (1 + _ROW_GAP / n_rows) / n_rows
    left, top = column * width, 1 - row * height
    return [left, min(1.0, left + width - _GAP)], [max(0.0, top - height + _ROW_GAP / n_rows), top]


class ComparedMember(NamedTuple):
    """A run that has a metric, or several that are seeds of one model."""

    number: int
    """Number of the run, or of the first seed."""
    run: MeasuredRun
    series: MetricSeries
    seeds: Sequence[int] = ()
    """Numbers of the seeds."""


def compared_with(runs: Sequence[ReportRun], seeds: Sequence[SeedGroup], key: tuple[str, str]) -> list[ComparedMember]:
    """Return the members of a comparison of a metric on a token subset, each of which has a line of its own.

    Seeds without a common step at which all have the metric are single runs.
    """
    numbers = {run.key: number for number, run in enumerate(runs)}
    groups = [group for group in seeds if key in group.series]
    members = []
    for run in with_seeds([run for run in runs if key in run.series], groups):
        of_seeds = [numbers[member.key] for member in run.members] if isinstance(run, SeedGroup) else []
        members.append(ComparedMember((of_seeds or [numbers[run.key]])[0], run, run.series[key], of_seeds))
    return members


def compared_colours(runs: Sequence[ReportRun], seeds: Sequence[SeedGroup]) -> dict[Key, str]:
    """Return a colour for each group of seeds, which its members share, and for each other run."""
    colours = run_colours(with_seeds(runs, seeds))
    return colours | {member.key: colours[group.key] for group in seeds for member in group.members}
