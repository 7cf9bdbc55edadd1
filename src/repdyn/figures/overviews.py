"""Overviews of a family of metrics, a panel each: over depth, and averaged over layers against step.

The panels of one quantity share their scale. Bands are 95 % intervals over probes, where these are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure

from repdyn.alerts import Alert
from repdyn.figures.charts import Chart, Line, Panel, axis_of_lines, layer_axis, training_axis
from repdyn.figures.drawing import draw
from repdyn.figures.panels import (
    MARKED,
    alerts_on,
    compared,
    marker_size,
    marks_on,
    mean_lines,
    profile_lines,
    run_caption,
    run_title,
    step_colours,
    wrapped,
)
from repdyn.figures.panes import Pane, n_columns, panes_of, subsets_named
from repdyn.metrics import FAMILIES
from repdyn.store.schema import FINISHED
from repdyn.tables.designs import intervals
from repdyn.tables.frames import is_finished, measurements, members_of, of_training, select_steps
from repdyn.tables.series import MetricSeries, metric_series
from repdyn.tables.style import ORDERED, SUBSET_COLOURS, is_between, shades, short_subset_title, subset_title

MAX_STEPS = 8
_PANEL = (3.5, 2.35)
_LEGEND_WIDTH = 1.2
_TITLE_WIDTH = 50

_Series = Mapping[tuple[str, str], MetricSeries]


def depth_overview(frame: pd.DataFrame, family: str) -> Figure:
    """Draw the metrics of a family of one run over depth, a panel each.

    A line is a step, at most eight, dark to light. Where several metrics or classes of tokens share a panel a line is
    one of them at the last step, and dotted at the first.
    """
    rows = measurements(frame)
    panes, of_family = panes_of(rows, family, "depth"), _of_family(rows, family)
    series = metric_series(of_family)
    steps = select_steps(sorted(of_family.loc[of_family["value"].notna(), "step"].unique().tolist()), MAX_STEPS)
    colours = dict(zip(steps, step_colours(len(steps)), strict=True))
    several = len(steps) > 1
    by_step = several and any(len(pane.traces) == 1 for pane in panes)
    by_trace = several and any(len(pane.traces) > 1 for pane in panes)
    axis = layer_axis("layer (0 = embedding output)", 0.0, float(last_place(of_family)))
    both = f"named lines: step {steps[-1]:,}, dotted: step {steps[0]:,}" if by_trace else ""
    when = "" if several else f", {FINISHED}" if is_finished(rows) else f", at step {steps[0]:,}"
    chart = Chart(
        title=run_title(rows, f"{FAMILIES[family]} over depth{when}"),
        caption=run_caption(of_family, both, about_tokens(panes), compared(of_family), intervals(of_family)),
        panels=arranged([replace(_over_depth(series, pane, colours), x=axis) for pane in panes], panes),
        columns=n_columns(panes),
        size=board_size(panes, _LEGEND_WIDTH * by_step, _LEGEND_WIDTH),
        is_small=True,
        legend=[Line(x=(), y=(), colour=colours[step], label=f"{step:,}") for step in reversed(steps) if by_step],
        legend_title="step",
    )
    return draw(chart)


def steps_overview(frame: pd.DataFrame, family: str, alerts: Sequence[Alert] = ()) -> Figure:
    """Draw the metrics of a family of one run averaged over layers against step, a panel each, with alerts marked.

    The step axis is logarithmic beyond 1 and linear below, so that step 0 shows. The means are those of
    :func:`repdyn.tables.frames.layer_mean`; a mean over fewer layers than measured is labelled.
    """
    rows = of_training(frame, "depth_overview")
    panes, of_family = panes_of(rows, family, "step"), _of_family(rows, family)
    series, axis = metric_series(of_family), training_axis(sorted(of_family["step"].unique().tolist()))
    marked = MARKED * any(alert.metric in set(of_family["metric"]) for alert in alerts)
    chart = Chart(
        title=run_title(rows, f"{FAMILIES[family]}: means over layers during training"),
        caption=run_caption(of_family, about_tokens(panes), compared(of_family), intervals(of_family), marked),
        panels=arranged([replace(_against_step(series, pane, alerts), x=axis) for pane in panes], panes),
        columns=n_columns(panes),
        size=board_size(panes, 0.0, _LEGEND_WIDTH),
        is_small=True,
    )
    return draw(chart)


def _of_family(rows: pd.DataFrame, family: str) -> pd.DataFrame:
    is_member = rows["metric"].isin(members_of(rows, family))
    return rows if bool(is_member.all()) else rows.loc[is_member]


def arranged(panels: Sequence[Panel], panes: Sequence[Pane]) -> list[Panel]:
    """Return the panels with their titles, one scale for the panels of one quantity, and x labels on the lowest.

    A quantity before and after the feed-forward part, and on any tokens, is the same.
    """
    columns, several = n_columns(panes), len(subsets_named(panes)) > 1
    quantities = [pane.unit if pane.unit == "dimension" else pane.metric.removesuffix("_attention") for pane in panes]
    lines: defaultdict[str, list[Line]] = defaultdict(list)
    for quantity, panel in zip(quantities, panels, strict=True):
        lines[quantity] += panel.lines
    found = []
    for number, (panel, pane, quantity) in enumerate(zip(panels, panes, quantities, strict=True)):
        title = wrapped(pane.title, _TITLE_WIDTH) + (f"\n{pane.tokens}" if several and pane.tokens else "")
        x = panel.x if number + columns >= len(panes) else replace(panel.x, label="")
        y = axis_of_lines(pane.metric, lines[quantity], pane.unit)
        found.append(replace(panel, title=title + panel.title, x=x, y=y))
    return found


def board_size(panes: Sequence[Pane], legend_width: float, panel_legend_width: float = 0.0) -> tuple[float, float]:
    """Return the size of a chart with a panel for each pane and a legend of all, in inches.

    Each column with a panel of several lines is wider by ``panel_legend_width``.
    """
    columns = n_columns(panes)
    named = {number % columns for number, pane in enumerate(panes) if len(pane.traces) > 1}
    width = columns * _PANEL[0] + len(named) * panel_legend_width + legend_width
    return max(7.2, width), 1.1 + -(-len(panes) // columns) * _PANEL[1]


def last_place(rows: pd.DataFrame) -> int:
    """Return the last layer among the rows, including the one after a value between two layers."""
    cells = rows[["metric", "layer"]].drop_duplicates()
    return max(layer + is_between(metric) for metric, layer in cells.itertuples(index=False))


def about_tokens(panes: Sequence[Pane]) -> str:
    """Return which tokens all panels show, or the meaning of a short name for tokens."""
    subsets = subsets_named(panes)
    if len(subsets) == 1:
        return subset_title(subsets[0])
    return f"{short_subset_title('no_sink')}: {subset_title('no_sink')}" if "no_sink" in subsets else ""


def _over_depth(series: _Series, pane: Pane, colours: Mapping[int, str]) -> Panel:
    """Return one line per step; or one per trace at its last step, dotted at its first."""
    if len(pane.traces) == 1:
        (trace,) = pane.traces
        one = series[trace.metric, trace.subset]
        chosen = {step: colour for step, colour in colours.items() if step in one.steps_with_values}
        return Panel(lines=profile_lines(one, chosen, marker_size=3.0))
    lasts, firsts = [], []
    for trace, colour in zip(pane.traces, _colours_of(pane), strict=True):
        one = series[trace.metric, trace.subset]
        first, last = one.steps_with_values[0], one.steps_with_values[-1]
        size = marker_size(one.layers, 3.0)
        lasts += profile_lines(one, {last: colour}, label=trace.label, marker_size=size)
        if first != last:
            firsts += profile_lines(one, {first: colour}, label="", margin=None, dash=":", width=1.4, marker="")
    return _named_lines(pane, lasts, firsts)


def _against_step(series: _Series, pane: Pane, alerts: Sequence[Alert]) -> Panel:
    """Return one line per trace; its label tells if layers are left out."""
    lines, notes_on_layers = [], []
    for trace, colour in zip(pane.traces, _colours_of(pane), strict=True):
        one = series[trace.metric, trace.subset]
        look = {"colour": colour, "marker_size": marker_size(one.steps, 3.0)}
        note = ""
        if trace.layer is None:
            note = f"\n({one.layer_mean.coverage})" if one.layer_mean.is_partial else ""
            lines += mean_lines(one, label=trace.label + note, **look)
        else:
            at = one.layers.index(trace.layer)
            lines.append(Line(x=one.steps, y=one.values[at], margin=one.margins[at], label=trace.label, **look))
        notes_on_layers.append(note)
    raised = [alert for trace in pane.traces for alert in alerts_on(alerts, trace.metric, trace.subset)]
    panel = replace(_named_lines(pane, lines), marks=marks_on(raised, None))
    return replace(panel, title=notes_on_layers[0]) if len(lines) == 1 else panel


def _named_lines(pane: Pane, lines: Sequence[Line], others: Sequence[Line] = ()) -> Panel:
    legend = "right" if len(lines) > 1 else ""
    return Panel(lines=[*others, *lines], gap=lines if pane.pair else (), widens_hidden=True, legend=legend)


def _colours_of(pane: Pane) -> list[str]:
    """Return one colour per trace of a pane."""
    if pane.ordered and len(pane.traces) > 1:
        return shades(ORDERED, len(pane.traces), 0.05, 0.85)
    if pane.pair:
        return [SUBSET_COLOURS[0], SUBSET_COLOURS[-1]]
    return [SUBSET_COLOURS[number % len(SUBSET_COLOURS)] for number in range(len(pane.traces))]
