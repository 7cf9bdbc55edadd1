"""Figures of one run: metrics over depth, their means over layers during training, heatmaps, dimension against scale.

Each metric of geometry and each of the user's own has a figure over depth, its place in one of the means, and heatmaps;
those of another family share a figure over depth and one of means. Bands are 95 % intervals over probes, if known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from repdyn.alerts import Alert
from repdyn.figures.charts import (
    MARKED,
    Axis,
    Chart,
    Line,
    Panel,
    about_checkpoints,
    alerts_on,
    axis_of_lines,
    depth_axis,
    heads_panel,
    heatmap_panel,
    layer_colours,
    loss_line,
    marker_size,
    marks_on,
    mean_lines,
    profile_lines,
    run_caption,
    run_title,
    shared_axis,
    step_colours,
    training_axis,
)
from repdyn.figures.drawing import draw, draw_all
from repdyn.figures.panes import LARGE, SMALL, WIDE, Board, Pane, panes_of
from repdyn.metrics import FAMILIES, METRICS
from repdyn.metrics.metric import file_stem
from repdyn.store.schema import FINISHED
from repdyn.tables.frames import (
    drop_first_comparison,
    filled,
    in_order,
    is_finished,
    loss_of_run,
    measurements,
    members_of,
    metrics_of,
    of_heads,
    of_metric,
    of_training,
    require_subset,
    select_steps,
    subsets_of,
)
from repdyn.tables.series import MetricSeries, intervals, metric_series, thin
from repdyn.tables.style import has_own_figures, metric_title, overview_families, short_subset_title, subset_title
from repdyn.utils.attempts import Attempt

MAX_STEPS = 8
_MAX_HEATMAP_STEPS = 48
_HEATMAP_SIZE = (7.2, 4.3)
_LEGEND_WIDTH = 1.2
_COLUMNS = (
    *("run", "model", "causal", "step", "stage", "probe", "design", "layers", "stack", "layer", "depth"),
    *("head", "metric", "subset", "settings", "compared_to", "value", "std", "low", "high", "reason", "n_batches"),
    *("n_vectors", "n_windows", "vectors_per_window", "window_tokens", "own_window_excluded"),
)
"""Columns that the figures of a run show or describe."""

_Series = Mapping[tuple[str, str], MetricSeries]


def profile_over_depth(frame: pd.DataFrame, metric: str) -> Figure:
    """Draw a metric of a run over depth, one panel per token subset on one axis of values, as :func:`depth_overview`.

    The steps are the first, the last, those with the lowest and the highest mean, and others between.
    """
    rows = measurements(frame)
    subsets_of(rows, metric)  # a metric that was not measured is an error
    shown = of_metric(rows, metric)
    mean = pd.Series(shown.groupby("step")["value"].mean()).dropna()
    steps = [int(mean.index[index]) for index in thin(mean.index.tolist(), mean.tolist(), MAX_STEPS)]
    return _over_depth(shown, [metric], metric_title(metric), steps, LARGE)


def depth_overview(frame: pd.DataFrame, family: str) -> Figure:
    """Draw the metrics of a family of one run over depth, a panel each.

    A line is a step, at most eight. Where several metrics or classes of tokens share a panel a line is one of them at
    the last step, and dotted at the first. Layers without a value leave a gap.
    """
    rows = measurements(frame)
    metrics = members_of(rows, family)
    shown = rows.loc[rows["metric"].isin(metrics)]
    steps = sorted(shown.loc[shown["value"].notna(), "step"].unique().tolist())
    return _over_depth(shown, metrics, FAMILIES[family], select_steps(steps, MAX_STEPS), SMALL)


def _over_depth(
    rows: pd.DataFrame, metrics: Sequence[str], title: str, steps: Sequence[int], panel: tuple[float, float]
) -> Figure:
    board, series = Board(panes_of(rows, metrics, "depth"), panel), metric_series(rows)
    colours = dict(zip(steps, step_colours(len(steps)), strict=True))
    several = len(steps) > 1
    by_step = several and any(len(pane.traces) == 1 for pane in board.panes)
    by_trace = several and any(len(pane.traces) > 1 for pane in board.panes)
    both = f"named lines: step {steps[-1]:,}, dotted: step {steps[0]:,}" if by_trace else ""
    when = "" if several else f", {FINISHED}" if is_finished(rows) else f", at step {steps[0]:,}"
    axis = depth_axis([series[trace.metric, trace.subset] for pane in board.panes for trace in pane.traces])
    chart = board.chart(
        [replace(_depth_panel(series, pane, colours), x=axis) for pane in board.panes],
        legend_width=_LEGEND_WIDTH * by_step,
        panel_legend_width=_LEGEND_WIDTH,
        title=run_title(rows, f"{title} over depth{when}"),
        caption=run_caption(rows, both, board.about_tokens(), about_checkpoints(rows), intervals(rows)),
        legend=[Line(x=(), y=(), colour=colours[step], label=f"{step:,}") for step in reversed(steps) if by_step],
        legend_title="step",
    )
    return draw(chart)


def _depth_panel(series: _Series, pane: Pane, colours: Mapping[int, str]) -> Panel:
    """Return one line per step; or one per trace at its last step, dotted at its first."""
    if len(pane.traces) == 1:
        one = series[pane.traces[0].metric, pane.traces[0].subset]
        chosen = {step: colour for step, colour in colours.items() if step in one.steps_with_values}
        return Panel(lines=profile_lines(one, chosen), widens_hidden=True)
    lasts, firsts = [], []
    for trace, colour in zip(pane.traces, pane.colours, strict=True):
        one = series[trace.metric, trace.subset]
        first, last = one.steps_with_values[0], one.steps_with_values[-1]
        lasts += profile_lines(one, {last: colour}, label=trace.label)
        if first != last:
            firsts += profile_lines(one, {first: colour}, label="", margin=None, dash=":", width=1.4, marker="")
    return _named_lines(pane, lasts, firsts)


def _named_lines(pane: Pane, lines: Sequence[Line], others: Sequence[Line] = ()) -> Panel:
    legend = "right" if len(lines) > 1 else ""
    return Panel(lines=[*others, *lines], gap=lines if pane.pair else (), widens_hidden=True, legend=legend)


def mean_over_layers(
    frame: pd.DataFrame,
    metrics: Sequence[str] = ("two_nn", "anisotropy"),
    alerts: Sequence[Alert] = (),
) -> Figure:
    """Draw metrics of a run averaged over layers against step, below each other, with a loss in the first panel.

    Metrics that were not measured are left out; the loss is that of :func:`repdyn.tables.frames.loss_of_run`. The step
    axis is logarithmic beyond 1 and linear below, so that step 0 shows. The means are those of
    :func:`repdyn.tables.frames.layer_mean`; one over fewer layers than measured is labelled. Steps with an alert on a
    metric are marked in its panel.
    """
    rows = of_training(frame, "profile_over_depth")
    present = [metric for metric in metrics if metric in metrics_of(rows)]
    if not present:
        raise ValueError(
            f"expected one of the metrics {', '.join(metrics)}, got rows of {', '.join(metrics_of(rows))}; "
            "name one of these"
        )
    chart = _against_step(rows, present, "Mean over layers during training", alerts, WIDE)
    loss, (first, *others) = loss_of_run(frame), chart.panels
    first = replace(first, loss=loss_line(loss.values, loss.title))
    return draw(replace(chart, panels=[replace(panel, legend=panel.legend and "inside") for panel in (first, *others)]))


def steps_overview(frame: pd.DataFrame, family: str, alerts: Sequence[Alert] = ()) -> Figure:
    """Draw the metrics of a family of one run as :func:`mean_over_layers`, a small panel each, without a loss."""
    rows = of_training(frame, "depth_overview")
    title = f"{FAMILIES[family]}: means over layers during training"
    return draw(_against_step(rows, members_of(rows, family), title, alerts, SMALL))


def _against_step(
    rows: pd.DataFrame, metrics: Sequence[str], title: str, alerts: Sequence[Alert], panel: tuple[float, float]
) -> Chart:
    shown = rows.loc[rows["metric"].isin(metrics)]
    names = short_subset_title if panel == SMALL else subset_title
    board, series = Board(panes_of(shown, metrics, "step", names), panel), metric_series(shown)
    axis = training_axis(sorted(shown["step"].unique().tolist()))
    marked = MARKED * any(alert.metric in metrics for alert in alerts)
    return board.chart(
        [replace(_step_panel(series, pane, alerts), x=axis) for pane in board.panes],
        panel_legend_width=_LEGEND_WIDTH * (panel == SMALL),
        title=run_title(rows, title),
        caption=run_caption(shown, board.about_tokens(), about_checkpoints(shown), intervals(shown), marked),
    )


def _step_panel(series: _Series, pane: Pane, alerts: Sequence[Alert]) -> Panel:
    """Return one line per trace; its label tells if layers are left out."""
    lines, notes_on_layers = [], []
    # told apart without colours too
    dashes = cycle("-" if pane.ordered else ("-", "--", ":"))
    for trace, colour, dash in zip(pane.traces, pane.colours, dashes, strict=False):
        one = series[trace.metric, trace.subset]
        note, look = "", dict[str, Any](colour=colour, dash=dash)
        if trace.layer is None:
            note = f"\n({one.layer_mean.coverage})" if one.layer_mean.is_partial else ""
            lines += mean_lines(one, label=trace.label + note, **look)
        else:
            at = one.layers.index(trace.layer)
            look |= {"marker_size": marker_size(one.steps), "label": trace.label}
            lines.append(Line(x=one.steps, y=one.values[at], margin=one.margins[at], **look))
        notes_on_layers.append(note)
    raised = [alert for trace in pane.traces for alert in alerts_on(alerts, trace.metric, trace.subset)]
    panel = replace(_named_lines(pane, lines), marks=marks_on(raised, None))
    return replace(panel, title=notes_on_layers[0]) if len(lines) == 1 else panel


def heatmap(frame: pd.DataFrame, metric: str, subset: str, alerts: Sequence[Alert] = ()) -> Figure:
    """Draw a metric of a run by layer (upwards) and measured step (to the right, equally spaced), alerts marked.

    Cells without a value are hatched. Of more than 48 measured steps, log-spaced ones are drawn, those with an alert,
    and those with the lowest and the highest value. All subsets of the tokens that the frame has share their colours.
    """
    rows = of_training(frame, "profile_over_depth")
    require_subset(rows, metric, subset)
    shown = of_metric(rows, metric, subset)
    comparable = drop_first_comparison(shown)
    series = MetricSeries(metric, subset, shown if comparable.empty else comparable)
    with_alert = {alert.step for alert in alerts_on(alerts, metric, subset)} & {*series.steps}
    known = series.rows.dropna(subset="value")
    extremes = [int(known.loc[at(), "step"]) for at in (known["value"].idxmin, known["value"].idxmax) if len(known)]
    steps = sorted({*select_steps(series.steps, _MAX_HEATMAP_STEPS), *with_alert, *extremes})
    colours = shared_axis(series, metric_series(of_metric(rows, metric)), has_bands=False)
    panel = heatmap_panel(series, colours, alerts, steps)
    hatched = "; hatched: no value" if panel.cells and not np.isfinite(panel.cells.values).all() else ""
    title = f"{metric_title(metric)} by layer and step, {subset_title(subset)}{hatched}"
    caption = run_caption(shown, about_checkpoints(shown), MARKED * bool(panel.marks))
    return draw(Chart(title=run_title(shown, title), caption=caption, panels=[panel], size=_HEATMAP_SIZE))


def heads_heatmap(frame: pd.DataFrame, metric: str, subset: str) -> Figure:
    """Draw a metric of a run by attention head and layer at the last measured step, hatched where it has no value."""
    rows = of_heads(frame)
    cells = rows if rows.empty else of_metric(rows, metric, subset)
    if cells.empty:
        there = ", ".join(f"{name} ({of})" for name, of in _measured_by_head(frame)) or "none"
        raise ValueError(f"expected a metric measured head by head, got {metric!r} ({subset}); measured were {there}")
    step = max(cells["step"].tolist())
    values = cells.loc[cells["step"] == step].pivot(index="layer", columns="head", values="value").sort_index()
    panel = heads_panel(metric, values.to_numpy(float), values.index, values.columns)
    when = FINISHED if is_finished(cells) else f"at step {step:,}"
    title = run_title(cells, f"{metric_title(metric)} by layer and head, {when}, {subset_title(subset)}")
    return draw(Chart(title=title, caption=run_caption(cells), panels=[panel], size=_HEATMAP_SIZE))


def _measured_by_head(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Return each metric and token subset that has values of single attention heads."""
    rows = frame.loc[frame["layer"].notna() & frame["head"].notna() & frame["value"].notna()]
    pairs = rows.assign(subset=filled(rows["subset"], "all"))[["metric", "subset"]].drop_duplicates()
    metrics = sorted(pairs["metric"].unique())
    return [(metric, subset) for metric in metrics for subset in in_order(of_metric(pairs, metric)["subset"])]


GRIDE = tuple(name for name in METRICS if name.startswith("gride_"))
_MAX_SCALE_STEPS = 3
_MAX_LAYERS = 7
_SINGLE_SCALE = {"two_nn": ("TwoNN", "s"), "levina_bickel": ("Levina-Bickel", "D")}
"""Estimates at one scale, with their name and marker."""
DIMENSIONS = (*GRIDE, *_SINGLE_SCALE)
"""The metrics of the figure."""
_AXIS = Axis(
    label="neighbours k (logarithmic)", limits=(2, 32), log_from=1.0, ticks={k: str(k) for k in (2, 4, 8, 16, 32)}
)


def has_scales(valued: pd.DataFrame) -> bool:
    """Return whether there are two scales to draw among rows with values."""
    return len(set(valued["metric"]) & set(GRIDE)) > 1


def scales(frame: pd.DataFrame) -> Figure:
    """Draw the dimension by Gride against its scale k: a panel for each of three steps, a line for each of 7 layers.

    If there are fewer steps or layers, all are drawn. An estimate that falls with k indicates noise, one that rises a
    curved or folded cloud. TwoNN is drawn at 2 neighbours, Levina-Bickel at its own number. The tokens are those of the
    first subset, in the order of :func:`repdyn.tables.frames.in_order`.
    """
    rows = measurements(frame)
    known = rows.loc[rows["metric"].isin(DIMENSIONS) & rows["value"].notna()]
    gride = known.loc[known["metric"].isin(GRIDE)]
    if not has_scales(gride):
        raise ValueError(f"expected two of {', '.join(GRIDE)} with values, got fewer; measure several scales")
    subset = in_order(gride["subset"].unique())[0]
    # TwoNN, which has no such setting, is that of 2 neighbours
    known = known.loc[known["subset"] == subset].assign(
        k=lambda cells: cells["settings"].map(lambda settings: json.loads(settings).get("k", 2)).astype(int)
    )
    steps = select_steps(sorted(gride["step"].unique().tolist()), _MAX_SCALE_STEPS)
    layers = sorted(gride["layer"].unique().tolist())
    chosen = np.linspace(0, len(layers) - 1, min(len(layers), _MAX_LAYERS)).round().astype(int)
    layers = [layers[index] for index in chosen]
    colours = dict(zip(layers, layer_colours(len(layers)), strict=True))
    shown = known.loc[known["metric"].isin(GRIDE) & known["step"].isin(steps)]
    lines = {
        step: [
            line
            for layer, colour in colours.items()
            for line in _lines_over_scales(known.loc[(known["step"] == step) & (known["layer"] == layer)], colour)
        ]
        for step in steps
    }
    y = axis_of_lines("two_nn", [line for of_step in lines.values() for line in of_step], "dimension")
    titles = [FINISHED if is_finished(rows) else f"step {step:,}" for step in steps]
    of_layers = [Line(x=(), y=(), colour=colours[layer], label=f"layer {layer}") for layer in reversed(layers)]
    of_points = [
        Line(x=(), y=(), colour="0.3", label=name, marker=marker, dash="none", marker_size=6)
        for metric, (name, marker) in _SINGLE_SCALE.items()
        if metric in set(known["metric"])
    ]
    chart = Chart(
        title=run_title(rows, "Intrinsic dimension against scale"),
        caption=run_caption(known, subset_title(subset), intervals(shown, "bars")),
        panels=[
            Panel(title=titles[number], x=_AXIS, y=replace(y, label="" if number else y.label), lines=lines[step])
            for number, step in enumerate(steps)
        ],
        columns=len(steps),
        size=(max(7.2, 1.6 + 3.6 * len(steps)), 4.2),
        legend=[*of_layers, *of_points],
    )
    return draw(chart)


def _lines_over_scales(cells: pd.DataFrame, colour: str) -> Iterator[Line]:
    """Yield the estimates of one layer at one step: a line over scales, and points for those at one scale."""
    gride = cells.loc[cells["metric"].isin(GRIDE)].sort_values("k")
    looks = [(gride, {"margin": gride["margin"].to_numpy(float), "kind": "points"})]
    for metric, (_, marker) in _SINGLE_SCALE.items():
        looks.append((cells.loc[cells["metric"] == metric], {"marker": marker, "dash": "none", "marker_size": 6}))
    for rows, look in looks:
        yield Line(x=rows["k"].tolist(), y=rows["value"].to_numpy(float), colour=colour, **look)


def all_figures(frame: pd.DataFrame, attempt: Attempt = nullcontext, alerts: Sequence[Alert] = ()) -> dict[str, Figure]:
    """Return all figures of a run, by name (a stem for a file, a key for a logger).

    A finished model has no figures against step, and a metric without any value none at all. ``attempt`` collects the
    errors of figures, so that the others are drawn; by default they are raised at once.
    """
    # the other columns would be copied with each selection of rows
    frame = pd.DataFrame(frame[[name for name in _COLUMNS if name in frame]])
    return draw_all(dict(_drawings(frame, measurements(frame), alerts)), attempt)


def _drawings(
    frame: pd.DataFrame, rows: pd.DataFrame, alerts: Sequence[Alert]
) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Yield the figures, whose rows are selected when they are drawn: all together would be a second table."""

    def drawn(draw_rows: Callable[..., Figure], metrics: Sequence[str], *given: object) -> Callable[[], Figure]:
        return lambda: draw_rows(rows.loc[rows["metric"].isin([*metrics])], *given)

    def heatmaps(metric: str) -> Iterator[tuple[str, Callable[[], Figure]]]:
        for subset in subsets_of(rows, metric):
            yield f"heatmap_{file_stem(metric)}_{subset}", drawn(heatmap, [metric], metric, subset, alerts)

    trained, valued = not is_finished(rows), rows.loc[rows["value"].notna(), ["metric"]]
    own = [metric for metric in metrics_of(valued) if has_own_figures(metric)]
    for metric in own:
        yield f"profile_{file_stem(metric)}", drawn(profile_over_depth, [metric], metric)
    if own and trained:
        with_loss = frame.loc[frame["layer"].isna() | frame["metric"].isin(own)]
        yield "mean_over_layers", partial(mean_over_layers, with_loss, sorted(own, reverse=True), alerts=alerts)
        for metric in own:
            yield from heatmaps(metric)
    for family in overview_families(valued["metric"].unique()):
        members = members_of(rows, family)
        yield f"depth_{family}", drawn(depth_overview, members, family)
        if trained:
            yield f"steps_{family}", drawn(steps_overview, members, family, alerts)
        if family == "dimension" and has_scales(valued):
            yield "scales", drawn(scales, DIMENSIONS)
        if family == "change" and trained:
            for metric in members_of(valued, family):
                yield from heatmaps(metric)
    heads = frame.loc[frame["head"].notna()]
    for metric, subset in _measured_by_head(heads):
        ending = "" if subset == "all" else f"_{subset}"
        yield f"heads_{file_stem(metric)}{ending}", partial(heads_heatmap, heads, metric, subset)
