"""Overviews of a family of metrics, a panel each: over depth, and averaged over layers against step.

The panels of one quantity share their scale. Bands are 95 % intervals over probes, where these are known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd
from matplotlib.figure import Figure

from repdyn.alerts import Alert
from repdyn.figures.charts import (
    MARKED,
    Chart,
    Line,
    Panel,
    alerts_on,
    axis_of_lines,
    compared,
    layer_axis,
    marker_size,
    marks_on,
    mean_lines,
    profile_lines,
    run_caption,
    run_title,
    step_colours,
    training_axis,
    wrapped,
)
from repdyn.figures.drawing import draw
from repdyn.metrics import FAMILIES, metric_info
from repdyn.metrics.metric import base_name
from repdyn.store.schema import FINISHED
from repdyn.tables.designs import intervals
from repdyn.tables.frames import (
    NO_CLASSES,
    defined_subsets,
    in_order,
    is_finished,
    measurements,
    members_of,
    of_metric,
    of_training,
    select_steps,
    undefined,
)
from repdyn.tables.series import MetricSeries, metric_series
from repdyn.tables.style import (
    ORDERED,
    SUBSET_COLOURS,
    is_between,
    metric_title,
    metric_unit,
    shades,
    short_subset_title,
    subset_title,
)

PAIRS = (("frequent", "rare"), ("function", "content"), ("simple", "complex"))
"""Classes of tokens that are compared with each other."""
_MAX_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Trace:
    """One line: a metric on a token subset, under a label that distinguishes it from the others of the panel."""

    metric: str
    subset: str
    label: str
    layer: int | None = None
    """The layer of a line against step; None for the mean over layers."""


@dataclass(frozen=True, slots=True)
class Pane:
    """One panel of an overview, whose metrics share a scale."""

    title: str
    tokens: str
    """The tokens as text; empty if the lines are labelled with them."""
    traces: tuple[Trace, ...]
    ordered: bool = False
    """Whether the lines have an order, shown by their colours."""
    pair: bool = False
    """Whether there are two lines with a gap to be shaded."""

    @property
    def metric(self) -> str:
        return self.traces[0].metric

    @property
    def unit(self) -> str:
        return metric_unit(self.metric)


def panes_of(rows: pd.DataFrame, family: str, along: Literal["depth", "step", "runs"]) -> list[Pane]:
    """Return the panels of the metrics of a family that have a value.

    Over depth, metrics on one scale that differ in a number share a panel, and any other metric has one for all tokens
    and one without sinks. Against step these two share one, with the embedding output for metrics that show it. Two
    contrasted classes of tokens share one, and so do all other classes. Of several runs, each metric and subset has a
    panel of its own, except contrasted classes.
    """
    groups: dict[str, list[str]] = {}
    for metric in members_of(rows, family):
        if defined_subsets(rows, metric):
            # a variant with other settings does not belong to the group
            panel = metric_info(metric).panel if metric == base_name(metric) and along != "runs" else ""
            groups.setdefault(panel or metric, []).append(metric)
    panes: list[Pane] = []
    for panel, metrics in groups.items():
        by_metric = {metric: defined_subsets(rows, metric) for metric in metrics}
        subsets = in_order({subset for measured in by_metric.values() for subset in measured})
        if len(metrics) > 1:
            for subset in subsets:
                of_subset = [metric for metric in metrics if subset in by_metric[metric]]
                traces = tuple(Trace(metric, subset, metric_info(metric).line) for metric in of_subset)
                panes.append(Pane(panel, short_subset_title(subset), traces, ordered=True))
            continue
        (metric,) = metrics
        pairs = [pair for pair in PAIRS if set(pair) <= set(subsets)]
        whole = [subset for subset in subsets if subset in NO_CLASSES]
        classes = [name for name in subsets if name not in whole and not any(name in pair for pair in pairs)]
        title = metric_title(metric)
        if along == "step" and whole:
            traces = [Trace(metric, subset, short_subset_title(subset)) for subset in whole]
            panes.append(Pane(title, *_with_embeddings(rows, traces)))
        else:
            alone = [*whole, *classes] if along == "runs" else whole
            panes += [_single(title, metric, subset) for subset in alone]
        panes += [
            Pane(title, " and ".join(pair), tuple(Trace(metric, name, name) for name in pair), pair=True)
            for pair in pairs
        ]
        if along != "runs" and len(classes) == 1:
            panes.append(_single(title, metric, classes[0]))
        elif along != "runs" and classes:
            panes.append(Pane(title, "classes of tokens", tuple(Trace(metric, name, name) for name in classes)))
    if not panes:
        reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in undefined(rows).items())
        raise ValueError(f"expected a value of the family {family!r} at some layer and step, got none; {reasons}")
    # metrics with fewer panels than fit a row come last if one metric fills a row
    counts = Counter(pane.metric for pane in panes)
    of_one = max(counts.values())
    return sorted(panes, key=lambda pane: counts[pane.metric] < of_one) if 2 < of_one <= _MAX_COLUMNS else panes


def subsets_named(panes: Sequence[Pane]) -> list[str]:
    """Return the token subsets that have a line, in order."""
    return in_order({trace.subset for pane in panes for trace in pane.traces})


def n_columns(panes: Sequence[Pane]) -> int:
    """Return the number of panels in a row, such that those of one metric share a row if possible."""
    counts = set(Counter(pane.metric for pane in panes).values())
    if 2 < max(counts) <= _MAX_COLUMNS:
        return max(counts)
    if counts == {2}:
        return _MAX_COLUMNS if len(panes) > 6 else 2
    if len(panes) in {4, 2, 1}:
        return min(2, len(panes))
    return 3 if len(panes) <= 9 and len(panes) not in {7, 8} else _MAX_COLUMNS


def _with_embeddings(rows: pd.DataFrame, traces: Sequence[Trace]) -> tuple[str, tuple[Trace, ...]]:
    """Return the common tokens of the lines, and the lines, with the embedding output if the metric shows it."""
    first, tokens = traces[0], traces[0].label if len(traces) == 1 else ""
    embeddings = rows.loc[rows["layer"] == 0, ["metric", "subset", "value"]]
    there = bool(of_metric(embeddings, first.metric, first.subset)["value"].notna().any())
    if not metric_info(first.metric).shows_embeddings or not there:
        return tokens, tuple(traces)
    if tokens:
        return tokens, (replace(first, label="mean over layers"), replace(first, label="layer 0", layer=0))
    return tokens, (*traces, replace(first, label=f"{first.label},\nlayer 0", layer=0))


def _single(title: str, metric: str, subset: str) -> Pane:
    return Pane(title, short_subset_title(subset), (Trace(metric, subset, short_subset_title(subset)),))


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
