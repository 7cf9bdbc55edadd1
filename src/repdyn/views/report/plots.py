"""The figures of a report as plain dictionaries of Plotly, light and dark: of one run, and of
several together.

Used by the page, which stores arrays used twice once, and by :mod:`repdyn.views.plots`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from repdyn.store.schema import LOSS as LOSS_NAME
from repdyn.store.schema import PROBE_LOSS, VALIDATION_LOSS
from repdyn.views.charts.axes import (
    RELATIVE_DEPTH,
    axis_of_lines,
    colour_scale,
    depth_axis,
    shared_axis,
    training_axis,
)
from repdyn.views.charts.description import Axis, Cells, Line, Panel
from repdyn.views.charts.lines import (
    alerts_on,
    end_lines,
    heads_panel,
    heatmap_panel,
    layer_colours,
    loss_line,
    marks_on,
    mean_band,
    mean_lines,
    other_cloud,
    profile_band,
    profile_lines,
    run_colours,
    step_colours,
    without_intervals,
)
from repdyn.views.charts.on_plotly import (
    DARK,
    EMPTY,
    HEIGHT,
    LIGHT,
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
from repdyn.views.judging import DescribedRun
from repdyn.views.tables.frames import LOSS_TITLES, scalar_rows, select_steps
from repdyn.views.tables.runs import Key, MeasuredRun
from repdyn.views.tables.seeds import SeedGroup, with_seeds
from repdyn.views.tables.series import MetricSeries, on_shared_layers
from repdyn.views.tables.style import (
    ALERT_COLOUR,
    DISTINCT_COLOUR,
    LOSS_COLOUR,
    ORDERED,
    STEPS,
    metric_title,
    metric_unit,
    shades,
    short_subset_title,
    subset_title,
    title_among,
)

BESIDE = DISTINCT_COLOUR
STEP_MARK = LIGHT["layout"]["font"]["color"]
"""Of the selected step, which is no value of any line."""
LOSS = LOSS_COLOUR

DARK_COLOURS = {
    VALUE: "#56B4E9",
    BESIDE: "#3FD0A4",
    ALERT_COLOUR: "#FF6B6B",
    LOSS: "#F0A860",
    EMPTY: "#3A4855",
    STEP_MARK: DARK["layout"]["font"]["color"],
}
"""Colours of the dark theme, by those of the light one."""


def dark_colours(runs: Sequence[DescribedRun], seeds: Sequence[SeedGroup]) -> dict[str, str]:
    """Return the colours of the dark theme by those of the light one: of other steps, of layers, of
    runs, and of what all charts have."""
    colours: dict[str, str] = {}
    for number in range(1, MAX_TRAIL + 1):
        colours |= zip(step_colours(number), shades(STEPS, number, 0.45, 1.0), strict=True)
    for number in {len(series.layers) for run in runs for series in run.series.values()}:
        colours |= zip(layer_colours(number), shades(ORDERED, number, 0.4, 1.0), strict=True)
    members = with_seeds(runs, seeds)
    dark = run_colours(members, (0.2, 0.7), 0.45)
    return (
        colours | {colour: dark[key] for key, colour in run_colours(members).items()} | DARK_COLOURS
    )


TRAINING = Axis(is_training=True)
NO_VALUES = Axis(limits=(0.0, 1.0), is_empty=True)
_NAME_WIDTH = 20
"""Characters of a line of a cloud's name in a legend."""
MAX_TRAIL = 7
"""Number of other steps in a profile."""
MAX_PANELS = 24
"""Largest number of heatmaps in a comparison."""
MAX_BANDS = 6
"""Largest number of lines with bands; more would hide each other."""
_COLUMNS, _LONGEST = 3, 34
"""Of panels in a row, and of characters in the name of one."""
_PANEL_HEIGHT = 220
_MARGINS = 70
_GAP = 0.05
_ROW_SPACE = 0.3
"""Of the height of a row, for ticks and a heading."""
_STEP_LINE = {
    "type": "line",
    "yref": "paper",
    "x0": 0,
    "x1": 0,
    "y0": 0,
    "y1": 1,
    "visible": False,
    "line": {"color": STEP_MARK, "width": 2},
}
"""Where the selected step is; the page places it."""
# a little higher than the cells, some of which are as dark as its colour
_STEP_FRAME = _STEP_LINE | {"type": "rect", "y0": -0.02, "y1": 1.02}


def heatmap_plot(run: DescribedRun, series: MetricSeries) -> PlotlyDict:
    """Return a metric by layer (upwards) and measured step (to the right, equally spaced)."""
    plot = plotly_panel(heatmap_panel(run, series))
    plot["layout"]["shapes"] = [_STEP_FRAME]
    return plot


def profile_plot(run: DescribedRun, series: MetricSeries) -> PlotlyDict:
    """Return a metric over depth at the last step, between faint lines of a few others.

    The page moves it to the selected step: it knows the lines by their ``meta``.
    """
    last = series.steps[-1]
    other = other_cloud(series, run.series)
    look: dict[str, Any] = {"marker_size": 3.5, "description": "layer %{x}"}
    shown = profile_lines(series, {last: VALUE}, label=_cloud(run, series, other), **look)
    beside = []
    if other is not None:
        look |= {"dash": "--", "band": None, "label": _cloud(run, other, series)}
        beside = profile_lines(other, {last: BESIDE}, meta={"role": "beside"}, **look)
    behind = [
        replace(line, label="", meta={"of": "baselines"})
        for line in profile_band(run, series, last)
    ]
    trail = [] if run.finished else _trail(series)
    panel = Panel(
        x=depth_axis([series] if other is None else [series, other]),
        y=shared_axis(series, run.series),
        lines=[*behind, *trail, *beside, *shown],
        legend="right" if trail or beside else "",
    )
    plot = plotly_panel(panel)
    named = {"vectors": beside, "step": trail}
    heading = "; ".join(what for what, lines in named.items() if lines)
    plot["layout"]["legend"] = {"title": {"text": heading}, "traceorder": "reversed"}
    return plot


def _trail(series: MetricSeries) -> list[Line]:
    """Return the faint lines of a few steps."""
    steps = select_steps(series.steps, MAX_TRAIL)
    colours = dict(zip(steps, step_colours(len(steps)), strict=True))
    lines = profile_lines(series, colours, band=None, width=1.0, marker="")
    return [
        replace(line, meta={"role": "trail", "column": series.steps.index(step)})
        for step, line in zip(steps, lines, strict=True)
    ]


def _cloud(run: DescribedRun, series: MetricSeries, other: MetricSeries | None) -> str:
    """Return the name of a line beside that of another cloud; empty without another."""
    if other is None:
        return ""
    title = subset_title(series.subset, run.vectors_of)
    named = title_among(series.subset, [series.subset, other.subset], title)
    return "\n".join(textwrap.wrap(named, _NAME_WIDTH))


def layers_plot(run: DescribedRun, series: MetricSeries) -> PlotlyDict:
    """Return a line for each layer of a metric during training, dashed for the other cloud where
    there is one, without their values, which the page has already.
    """
    colours = layer_colours(len(series.layers))
    traces = _layer_traces(series, colours, "solid", "layer")
    other = other_cloud(series, run.series)
    if other is not None and other.layers == series.layers:
        dashed = _layer_traces(other, colours, "dash", "layer beside")
        traces += [{**trace, "x": other.steps} for trace in dashed]
    y = plotly_axis(shared_axis(series, run.series, has_bands=False))
    return {
        "data": traces,
        "layout": {"height": HEIGHT, "yaxis": y, "hovermode": "closest", "shapes": [_STEP_LINE]},
    }


def _layer_traces(
    series: MetricSeries, colours: Sequence[str], dash: str, role: str
) -> list[PlotlyDict]:
    look = {"mode": "lines", "showlegend": False}
    return [
        {
            **look,
            "name": f"layer {layer}",
            "line": {"color": colour, "width": 1.5, "dash": dash},
            "meta": {"along": "training", "role": role, "row": row},
        }
        for row, (layer, colour) in enumerate(zip(series.layers, colours, strict=True))
    ]


def course_plot(
    run: DescribedRun,
    series: MetricSeries,
    others: Sequence[MetricSeries] = (),
    losses: Sequence[Panel] | None = None,
) -> PlotlyDict:
    """Return a training in rows on one axis: the loss, metrics averaged over layers, and the steps
    with alerts.

    ``losses`` is :func:`loss_row` of the run, if it has been made for another course.
    """
    losses = loss_row(run) if losses is None else losses
    rows = [*losses, *(_mean_row(run, one) for one in (series, *others))]
    if marks := [replace(mark, y=0.5) for mark in marks_on(run.alerts, None)]:
        rows.append(Panel(title="alerts", x=TRAINING, y=NO_VALUES, marks=marks))
    plot = stacked_rows(rows)
    plot["layout"]["shapes"] = [_STEP_LINE]
    return plot


def loss_row(run: DescribedRun) -> list[Panel]:
    """Return the panel with the losses of a run; none where no loss is stored."""
    training = loss_line(run.loss(LOSS_NAME), LOSS_TITLES[LOSS_NAME], dash="-", marker="")
    validation = loss_line(run.loss(VALIDATION_LOSS), f"{LOSS_TITLES[VALIDATION_LOSS]} (dashed)")
    rows = scalar_rows(run.frame, PROBE_LOSS, ["step", "low", "high"])
    losses = run.loss(PROBE_LOSS)
    low, high = (
        rows[end].astype(float).set_axis(rows["step"]).reindex(losses.index).to_numpy()
        for end in ("low", "high")
    )
    look: dict[str, Any] = {"dash": "-", "marker": "", "band": (low, high)}
    on_probe = loss_line(losses, LOSS_TITLES[PROBE_LOSS], **look)
    if on_probe is not None and training is not None:
        on_probe = replace(on_probe, label=f"{on_probe.label} (dotted)", dash=":")
    lines = {LOSS_NAME: training, VALIDATION_LOSS: validation, PROBE_LOSS: on_probe}
    drawn = {name: line for name, line in lines.items() if line is not None}
    marks = []
    for name, line in drawn.items():
        on_line = marks_on(alerts_on(run.alerts, name), line)
        marks += [mark for mark in on_line if mark.y is not None]
    title = " and ".join(", ".join(line.label for line in drawn.values()).rsplit(", ", 1))
    return (
        [Panel(title=title, x=TRAINING, lines=list(drawn.values()), marks=marks)] if drawn else []
    )


def _mean_row(run: DescribedRun, series: MetricSeries) -> Panel:
    other = other_cloud(series, run.series)
    if other is not None:
        series, other = on_shared_layers(series, other)
    lines = mean_lines(series, colour=VALUE, marker_size=2.5)
    alerts = [alert for alert in alerts_on(run.alerts, *series.key) if alert.step in series.steps]
    unit = metric_unit(series.metric)
    title = metric_title(series.metric)
    mean = f"mean over {series.layer_mean.coverage}"
    of = f"{title}, {short_subset_title(series.subset, run.vectors_of)}, {mean}"
    if other is not None:
        lines += mean_lines(other, colour=BESIDE, dash="--", marker_size=2.5)
        names = [
            _cloud(run, *both).replace("\n", " ") for both in ((series, other), (other, series))
        ]
        of = f"{title}, {mean}: {names[0]} (solid), {names[1]} (dashed)"
    of = of if unit in (title, "dimension") else f"{of} ({unit})"
    behind = mean_band(run, series)
    if behind:
        of = f"{of}; grey: {behind[0].label}"
        lines = without_intervals(lines)
    return Panel(
        title=of,
        x=TRAINING,
        y=replace(axis_of_lines(series.metric, [*behind, *lines]), label=""),
        lines=[*behind, *lines],
        marks=marks_on(alerts, lines[0]),
    )


def heads_plot(series: MetricSeries) -> PlotlyDict | None:
    """Return a metric by attention head and layer at the last step; None if it was not measured
    head by head.
    """
    if series.by_head is None:
        return None
    plot = plotly_panel(heads_panel(series, series.by_head), height=HEIGHT - 40)
    plot["data"][0]["meta"] = {"role": "heads"}
    return plot


def profiles_plot(members: Sequence[ComparedMember], colours: Mapping[Key, str]) -> PlotlyDict:
    """Return the last profile of each run over relative depth."""
    lines = []
    for member in members:
        when = "" if member.run.finished else f", step {member.series.steps[-1]:,}"
        lines += _lines_of(member, end_lines, colours, f"{when}\ndepth %{{x:.2f}}")
    return _lines_plot(Panel(x=RELATIVE_DEPTH, lines=lines), members)


def training_plot(
    members: Sequence[ComparedMember], colours: Mapping[Key, str]
) -> PlotlyDict | None:
    """Return the mean over layers of each run during its training; None if none has two
    checkpoints.
    """
    trained = [member for member in members if len(member.series.steps) > 1]
    if not trained:
        return None
    lines = []
    for member in trained:
        lines += _lines_of(member, mean_lines, colours, "\nstep %{text}")
    return _lines_plot(Panel(x=training_axis(trained[0].series.steps), lines=lines), trained)


def losses_plot(runs: Sequence[DescribedRun], seeds: Sequence[SeedGroup]) -> PlotlyDict | None:
    """Return the losses of several runs during training, a row for each that two have; None if
    there is none.
    """
    colours = compared_colours(runs, seeds)
    rows = []
    for name, title in LOSS_TITLES.items():
        drawn = (
            loss_line(
                run.loss(name), run.label, colour=colours[run.key], run=number, dash="-", marker=""
            )
            for number, run in enumerate(runs)
        )
        if len(lines := list(filter(None, drawn))) > 1:
            rows.append(Panel(title=title, x=TRAINING, lines=lines))
    return stacked_rows(rows) if rows else None


def heatmaps_plot(members: Sequence[ComparedMember]) -> PlotlyDict | None:
    """Return heatmaps of the runs on one scale of colours; None if fewer than two have several
    steps.
    """
    trained = [member for member in members if len(member.series.steps) > 1][:MAX_PANELS]
    if len(trained) < 2:
        return None
    colours = colour_scale([member.series for member in trained])
    places = _places(len(trained))
    traces: list[PlotlyDict] = []
    layout: PlotlyDict = {"annotations": []}
    for number, (member, (across, up)) in enumerate(zip(trained, places, strict=True)):
        name = str(number + 1) if number else ""
        trace = _small_heatmap(member, colours)
        traces.append(trace | {"xaxis": f"x{name}", "yaxis": f"y{name}"})
        layout[f"xaxis{name}"] = {
            "type": "category",
            "domain": across,
            "anchor": f"y{name}",
            "nticks": 6,
            "showgrid": False,
        }
        layout[f"yaxis{name}"] = {
            "domain": up,
            "anchor": f"x{name}",
            "nticks": 4,
            "showgrid": False,
        }
        label = member.run.label
        label = label if len(label) <= _LONGEST else f"...{label[3 - _LONGEST :]}"
        layout["annotations"].append(heading(label, across[0], up[1], 13))
    n_rows = math.ceil(len(trained) / _COLUMNS)
    whole = {
        "height": _MARGINS + _PANEL_HEIGHT * n_rows,
        "coloraxis": colour_axis(colours),
        "margin": {"t": 30},
        "plot_bgcolor": EMPTY,
    }
    return {"data": traces, "layout": whole | layout}


def _places(number: int) -> list[tuple[list[float], list[float]]]:
    """Return where each of a number of panels lies, row by row from the top: its ends across and
    upwards, as shares of the figure."""
    n_columns = min(_COLUMNS, number)
    n_rows = math.ceil(number / n_columns)
    width = (1 + _GAP) / n_columns
    height = (1 + _ROW_SPACE / n_rows) / n_rows
    places = []
    for panel in range(number):
        row, column = divmod(panel, n_columns)
        left = column * width
        top = 1 - row * height
        # rounding may lead out of [0, 1], which Plotly refuses
        across = [left, min(1.0, left + width - _GAP)]
        places.append((across, [max(0.0, top - height + _ROW_SPACE / n_rows), top]))
    return places


def _small_heatmap(member: ComparedMember, colours: Axis) -> PlotlyDict:
    """Return the cells of a run by relative depth and step; the page reads its values from here."""
    series = member.series
    steps = [f"{step:,}" for step in series.steps]
    trace = cells_trace(Cells(values=series.values, rows=(), columns=steps, colours=colours))
    where = f"{escaped(member.run.label)}<br>depth %{{y:.2f}}, step %{{x}}<br>"
    return trace | {
        "y": series.depths,
        "customdata": series.values,
        "hovertemplate": where + trace["hovertemplate"],
        "meta": {"member": member.number},
    }


def _lines_of(
    member: ComparedMember,
    lines_of: Callable[..., list[Line]],
    colours: Mapping[Key, str],
    where: str,
) -> list[Line]:
    """Return the lines of a member with their hover texts; the last is that of the member itself,
    not of a seed.
    """
    # colour and marker tell runs apart, since greyscale leaves the marker alone
    look = {
        "colour": colours[member.run.key],
        "marker": "os^Dv"[member.number % 5],
        "marker_size": 4.0,
    }
    run = member.run
    *of_seeds, of_member = lines_of(
        member.series, label=run.label, run=member.number, seeds=member.seeds, **look
    )
    members = run.members if isinstance(run, SeedGroup) else ()
    described = [
        replace(line, description=f"{seed.label}{where}", run=number, seeds=(), group=run.label)
        for line, number, seed in zip(of_seeds, member.seeds, members, strict=True)
    ]
    return [*described, replace(of_member, description=f"{run.label}{where}")]


def _lines_plot(panel: Panel, members: Sequence[ComparedMember]) -> PlotlyDict:
    """Return a plot with a line for each run; the legend is above few lines, next to many."""
    few = len(members) <= MAX_BANDS
    y = axis_of_lines(members[0].series.metric, panel.lines)
    return plotly_panel(replace(panel, y=y, legend="above" if few else "right"), has_bands=few)


class ComparedMember(NamedTuple):
    """A run that has a metric, or several that are seeds of one model."""

    number: int
    """Number of the run, or of the first seed."""
    run: MeasuredRun
    series: MetricSeries
    seeds: Sequence[int] = ()
    """Numbers of the seeds."""


def compared_with(
    runs: Sequence[DescribedRun], seeds: Sequence[SeedGroup], key: tuple[str, str]
) -> list[ComparedMember]:
    """Return the members of a comparison of a metric on a subset, each of which has a line of its
    own.

    Seeds without a common step at which all have the metric are single runs.
    """
    numbers = {run.key: number for number, run in enumerate(runs)}
    groups = [group for group in seeds if key in group.series]
    members = []
    for run in with_seeds([run for run in runs if key in run.series], groups):
        of_seeds = (
            [numbers[member.key] for member in run.members] if isinstance(run, SeedGroup) else []
        )
        members.append(
            ComparedMember(
                number=(of_seeds or [numbers[run.key]])[0],
                run=run,
                series=run.series[key],
                seeds=of_seeds,
            )
        )
    return members


def compared_colours(runs: Sequence[DescribedRun], seeds: Sequence[SeedGroup]) -> dict[Key, str]:
    """Return a colour for each group of seeds, which its members share, and for each other run."""
    colours = run_colours(with_seeds(runs, seeds))
    return colours | {member.key: colours[group.key] for group in seeds for member in group.members}
