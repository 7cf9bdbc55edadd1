"""Figures of one run: metrics over depth, their means over layers during training, heatmaps.

Each metric of geometry and each of the user's own has a figure over depth, its place in one of the
means, and heatmaps; those of another family share a figure over depth and one of means. Bands are
95% intervals over probes, if known.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, cycle
from typing import TypeAlias

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from repdyn.metrics.names import file_stem
from repdyn.store.schema import FINISHED
from repdyn.utils.attempts import Attempt
from repdyn.views.charts.axes import depth_axis, training_axis
from repdyn.views.charts.description import Chart, Line, Panel
from repdyn.views.charts.lines import (
    MARKED,
    about_checkpoints,
    alerts_on,
    heads_panel,
    heatmap_panel,
    loss_line,
    marker_size,
    marks_on,
    mean_band,
    mean_lines,
    other_cloud,
    profile_band,
    profile_lines,
    run_caption,
    run_title,
    step_colours,
    without_intervals,
)
from repdyn.views.charts.on_matplotlib import draw, draw_all
from repdyn.views.display import FAMILIES
from repdyn.views.figures.panes import (
    LARGE,
    SMALL,
    WIDE,
    Board,
    Pane,
    Trace,
    in_panel_order,
    panes_of,
)
from repdyn.views.tables.frames import LOSS_TITLES, loss_of_run, select_steps
from repdyn.views.tables.runs import MeasuredRun
from repdyn.views.tables.series import MetricSeries, intervals, on_shared_layers
from repdyn.views.tables.style import (
    has_own_figures,
    metric_title,
    overview_families,
    short_subset_title,
    subset_title,
)

MAX_STEPS = 8
_HEATMAP_SIZE = (7.2, 4.3)
_LEGEND_WIDTH = 1.2
_Series = Mapping[tuple[str, str], MetricSeries]
Drawing: TypeAlias = Callable[[], Figure]


def over_depth(
    run: MeasuredRun, metrics: Sequence[str], title: str, panel: tuple[float, float]
) -> Figure:
    """Draw metrics of a run over depth, a panel of this size for each and each subset.

    A line is a step, at most eight. Where several metrics or classes of tokens share a panel a line
    is one of them at the last step, and dotted at the first. Layers without a value leave a gap.
    """
    measured = {step for key in run.keys_of(metrics) for step in run.series[key].steps_with_values}
    steps = select_steps(sorted(measured), MAX_STEPS)
    rows = run.rows_of(metrics)
    board = Board(panes_of(run.keys_of(metrics), "depth"), panel, run.vectors_of)
    colours = dict(zip(steps, step_colours(len(steps)), strict=True))
    n_traces = {len(pane.traces) for pane in board.panes}
    both = ""
    legend: list[Line] = []
    if len(steps) > 1 and 1 in n_traces:
        legend = [
            Line(x=(), y=(), colour=colours[step], label=f"{step:,}") for step in reversed(steps)
        ]
    if len(steps) > 1 and n_traces != {1}:
        both = f"named lines: step {steps[-1]:,}, dotted: step {steps[0]:,}"
    traces = chain.from_iterable(pane.traces for pane in board.panes)
    axis = depth_axis([run.series[trace.key] for trace in traces])
    chart = board.chart(
        [replace(_depth_panel(run, pane, colours), x=axis) for pane in board.panes],
        legend_width=_LEGEND_WIDTH if legend else 0.0,
        panel_legend_width=_LEGEND_WIDTH,
        is_over_depth=True,
        title=run_title(run, f"{title} over depth{_only_step(run, steps)}"),
        caption=run_caption(
            rows,
            both,
            board.about_tokens(),
            about_checkpoints(rows),
            _about_intervals(run, rows),
            _about_baselines(run, at_end=True),
        ),
        legend=legend,
        legend_title="step",
    )
    return draw(chart)


def _only_step(run: MeasuredRun, steps: Sequence[int]) -> str:
    """Return the end of a title: when a profile was measured; empty where there are several."""
    if len(steps) > 1:
        return ""
    return f", {FINISHED}" if run.finished else f", at step {steps[0]:,}"


def _depth_panel(run: MeasuredRun, pane: Pane, colours: Mapping[int, str]) -> Panel:
    """Return one line per step; or one per trace at its last step, dotted at its first. The band of
    baselines at the last step is behind a single trace, and behind the first of several."""
    series = run.series
    shown = series[pane.traces[0].key]
    behind = profile_band(run, shown, shown.steps_with_values[-1])
    if len(pane.traces) == 1:
        with_values = set(shown.steps_with_values)
        chosen = {step: colour for step, colour in colours.items() if step in with_values}
        lines = profile_lines(shown, chosen)
        return Panel(lines=[*behind, *(without_intervals(lines) if behind else lines)])
    at_last: list[Line] = []
    at_first: list[Line] = []
    for trace, colour in zip(pane.traces, pane.colours, strict=True):
        of_trace = series[trace.key]
        first = of_trace.steps_with_values[0]
        last = of_trace.steps_with_values[-1]
        at_last += profile_lines(of_trace, {last: colour}, label=trace.label)
        if first != last:
            at_first += profile_lines(
                of_trace, {first: colour}, label="", band=None, dash=":", width=1.4, marker=""
            )
    at_last = without_intervals(at_last) if behind else at_last
    return _named_lines(pane, at_last, [*behind, *at_first])


def _named_lines(pane: Pane, lines: Sequence[Line], others: Sequence[Line] = ()) -> Panel:
    legend = "right" if len(lines) > 1 else ""
    return Panel(lines=[*others, *lines], gap=lines if pane.pair else (), legend=legend)


def mean_over_layers(run: MeasuredRun, metrics: Sequence[str] = ("two_nn", "anisotropy")) -> Figure:
    """Draw metrics of a run averaged over layers against step, below each other, with a loss in the
    first panel.

    The loss is that of :func:`repdyn.views.tables.frames.loss_of_run`. The step axis is logarithmic
    beyond 1 and linear below, so that step 0 shows. A mean over fewer layers than measured is
    labelled. Steps with an alert on a metric are marked in its panel.
    """
    chart = _against_step(run, metrics, "Mean over layers during training", WIDE)
    name, losses = loss_of_run(run.frame)
    first, *others = chart.panels
    first = replace(first, loss=loss_line(losses, LOSS_TITLES[name]))
    return draw(
        replace(
            chart,
            panels=[replace(panel, legend=panel.legend and "inside") for panel in (first, *others)],
        )
    )


def steps_overview(run: MeasuredRun, family: str) -> Figure:
    """Draw the metrics of a family of one run as :func:`mean_over_layers`, a small panel each,
    without a loss.
    """
    title = f"{FAMILIES[family]}: means over layers during training"
    return draw(_against_step(run, run.metrics(family), title, SMALL))


def _against_step(
    run: MeasuredRun, metrics: Sequence[str], title: str, panel: tuple[float, float]
) -> Chart:
    rows = run.rows_of(metrics)
    keys = run.keys_of(metrics)
    embeddings = [key for key in keys if _has_embeddings(run.series[key])]
    names = partial(short_subset_title if panel == SMALL else subset_title, of=run.vectors_of)
    board = Board(panes_of(keys, "step", names, embeddings), panel, run.vectors_of)
    axis = training_axis(sorted(rows["step"].unique().tolist()))
    has_alerts = any(alert.metric in metrics for alert in run.alerts)
    return board.chart(
        [replace(_step_panel(run, pane), x=axis) for pane in board.panes],
        panel_legend_width=_LEGEND_WIDTH if panel == SMALL else 0.0,
        title=run_title(run, title),
        caption=run_caption(
            rows,
            board.about_tokens(),
            about_checkpoints(rows),
            _about_intervals(run, rows),
            _about_baselines(run),
            MARKED if has_alerts else "",
        ),
    )


def _about_intervals(run: MeasuredRun, rows: pd.DataFrame) -> str:
    """Return what the bands of lines mean; empty where all have that of baselines behind them."""
    cells = rows[["metric", "subset"]].drop_duplicates()
    has_all = all(key in run.bands for key in cells.itertuples(index=False, name=None))
    return "" if has_all else intervals(rows)


def _about_baselines(run: MeasuredRun, *, at_end: bool = False) -> str:
    when = " at the last step" if at_end else ""
    return f"grey: range and median of {len(run.baselines)} baselines{when}" if run.bands else ""


def _has_embeddings(series: MetricSeries) -> bool:
    """Return whether layer 0, the embedding output, has a value."""
    return series.layers[0] == 0 and not np.isnan(series.values[0]).all()


def _step_panel(run: MeasuredRun, pane: Pane) -> Panel:
    """Return one line per trace; its label tells if layers are left out. The band of baselines is
    behind the first mean."""
    series = run.series
    behind: list[Line] = []
    lines: list[Line] = []
    notes_on_layers: list[str] = []
    # told apart without colours too
    dashes = cycle("-" if pane.ordered else ("-", "--", ":"))
    for trace, colour, dash in zip(pane.traces, pane.colours, dashes, strict=False):
        of_trace = series[trace.key]
        if trace.layer is None:
            drawn, note = _trace_of_means(series, of_trace)
            label = trace.label + note
            behind = behind or mean_band(run, drawn)
            lines += mean_lines(drawn, label=label, colour=colour, dash=dash)
            notes_on_layers.append(note)
        else:
            lines.append(_trace_of_layer(of_trace, trace, colour=colour, dash=dash))
            notes_on_layers.append("")
    raised = [alert for trace in pane.traces for alert in alerts_on(run.alerts, *trace.key)]
    lines = without_intervals(lines) if behind else lines
    panel = replace(_named_lines(pane, lines, behind), marks=marks_on(raised, None))
    return replace(panel, title=notes_on_layers[0]) if len(lines) == 1 else panel


def _trace_of_means(series: _Series, of_trace: MetricSeries) -> tuple[MetricSeries, str]:
    """Return the series whose layers are averaged, those that both clouds have, and a note where
    some are left out.
    """
    n_layers = of_trace.layer_mean.n_layers
    beside = other_cloud(of_trace, series)
    if beside is not None:
        of_trace, _ = on_shared_layers(of_trace, beside)
    coverage = replace(of_trace.layer_mean, n_layers=n_layers)
    return of_trace, f"\n({coverage.coverage})" if coverage.is_partial else ""


def _trace_of_layer(series: MetricSeries, trace: Trace, *, colour: str, dash: str) -> Line:
    assert trace.layer is not None
    row = series.layers.index(trace.layer)
    return Line(
        x=series.steps,
        y=series.values[row],
        band=(series.lows[row], series.highs[row]),
        colour=colour,
        dash=dash,
        marker_size=marker_size(series.steps),
        label=trace.label,
    )


def heatmap(run: MeasuredRun, metric: str, subset: str) -> Figure:
    """Draw a metric of a run by layer (upwards) and measured step (to the right, equally spaced),
    alerts marked.

    Cells without a value are hatched. The colours are those of
    :func:`repdyn.views.charts.axes.heatmap_scale`.
    """
    series = run.series[metric, subset]
    panel = heatmap_panel(run, series)
    hatched = (
        "; hatched: no value" if panel.cells and not np.isfinite(panel.cells.values).all() else ""
    )
    title = (
        f"{metric_title(metric)} by layer and step, {subset_title(subset, run.vectors_of)}{hatched}"
    )
    shown = run.rows_of([metric], subset)
    marked = MARKED if panel.marks else ""
    caption = run_caption(shown, about_checkpoints(shown), marked)
    return draw(
        Chart(title=run_title(run, title), caption=caption, panels=[panel], size=_HEATMAP_SIZE)
    )


def heads_heatmap(run: MeasuredRun, metric: str, subset: str) -> Figure:
    """Draw a metric of a run by attention head and layer at the last measured step, hatched where
    it has no value.
    """
    series = run.series[metric, subset]
    panel = heads_panel(series, np.asarray(series.by_head)[-1:])
    when = FINISHED if run.finished else f"at step {series.steps[-1]:,}"
    title = (
        f"{metric_title(metric)} by layer and head, {when}, {subset_title(subset, run.vectors_of)}"
    )
    caption = run_caption(run.rows_of([metric], subset))
    return draw(
        Chart(title=run_title(run, title), caption=caption, panels=[panel], size=_HEATMAP_SIZE)
    )


def all_figures(run: MeasuredRun, attempt: Attempt = nullcontext) -> dict[str, Figure]:
    """Return all figures of a run, by name (a stem for a file, a key for a logger).

    A finished model has no figures against step, and a metric without any value none at all.
    ``attempt`` collects the errors of figures, so that the others are drawn; by default they are
    raised at once.
    """
    drawings = _own_drawings(run) | _family_drawings(run) | _head_drawings(run)
    return draw_all(drawings, attempt)


def _own_drawings(run: MeasuredRun) -> dict[str, Drawing]:
    """Return what draws the metrics that have figures of their own."""
    metrics = [metric for metric in run.metrics() if has_own_figures(metric)]
    drawings: dict[str, Drawing] = {
        f"profile_{file_stem(metric)}": partial(
            over_depth, run, [metric], metric_title(metric), LARGE
        )
        for metric in metrics
    }
    if not metrics or run.finished:
        return drawings
    drawings["mean_over_layers"] = partial(mean_over_layers, run, in_panel_order(metrics))
    for metric in metrics:
        drawings |= _heatmap_drawings(run, metric)
    return drawings


def _family_drawings(run: MeasuredRun) -> dict[str, Drawing]:
    """Return what draws the metrics of a family in one figure."""
    drawings: dict[str, Drawing] = {}
    for family in overview_families(run.metrics()):
        metrics = run.metrics(family)
        drawings[f"depth_{family}"] = partial(over_depth, run, metrics, FAMILIES[family], SMALL)
        if run.finished:
            continue
        drawings[f"steps_{family}"] = partial(steps_overview, run, family)
        for metric in metrics if family == "change" else ():
            drawings |= _heatmap_drawings(run, metric)
    return drawings


def _heatmap_drawings(run: MeasuredRun, metric: str) -> dict[str, Drawing]:
    return {
        f"heatmap_{file_stem(metric)}_{subset}": partial(heatmap, run, metric, subset)
        for name, subset in run.series
        if name == metric
    }


def _head_drawings(run: MeasuredRun) -> dict[str, Drawing]:
    drawings: dict[str, Drawing] = {}
    for (metric, subset), series in run.series.items():
        if series.by_head is not None and not np.isnan(series.by_head).all():
            ending = "" if subset == "all" else f"_{subset}"
            drawings[f"heads_{file_stem(metric)}{ending}"] = partial(
                heads_heatmap, run, metric, subset
            )
    return drawings
