"""Figures of one run: profiles over depth, means over layers during training, and heatmaps.

Each metric of geometry and each of the user's own has these figures; other families have overviews, see
``repdyn.figures.overviews``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from repdyn.alerts import Alert
from repdyn.figures.charts import Chart, Panel, axis_of_lines, layer_axis, layer_label, training_axis
from repdyn.figures.convergence import GRADIENT, convergence
from repdyn.figures.drawing import draw
from repdyn.figures.files import draw_all
from repdyn.figures.overviews import depth_overview, steps_overview
from repdyn.figures.panels import (
    MARKED,
    alerts_on,
    compared,
    heads_panel,
    heatmap_panel,
    loss_line,
    marks_on,
    mean_lines,
    profile_lines,
    run_caption,
    run_title,
    step_colours,
    wrapped,
)
from repdyn.figures.scales import DIMENSIONS, has_scales, scales
from repdyn.metrics.names import file_stem
from repdyn.store.schema import FINISHED
from repdyn.tables.designs import intervals
from repdyn.tables.frames import (
    RunLoss,
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
    scalar,
    select_steps,
    subsets_of,
    tokens_by_step,
)
from repdyn.tables.series import MetricSeries, metric_series, thin
from repdyn.tables.style import (
    SUBSET_COLOURS,
    has_own_figures,
    metric_title,
    metric_unit,
    overview_families,
    subset_title,
)
from repdyn.utils.attempts import Attempt

MAX_STEPS = 8
MAX_COLUMNS = 3
_MAX_HEATMAP_STEPS = 48
_HEATMAP_SIZE = (7.2, 4.3)
_TITLE_WIDTH = 80
_COLUMNS = (
    *("run", "model", "causal", "step", "tokens_seen", "stage", "probe", "design", "layers", "stack", "layer", "depth"),
    *("head", "metric", "subset", "settings", "compared_to", "value", "std", "low", "high", "reason", "n_batches"),
    *("n_vectors", "n_windows", "vectors_per_window", "window_tokens", "own_window_excluded"),
)
"""Columns that the figures of a run show or describe."""


def profile_over_depth(frame: pd.DataFrame, metric: str) -> Figure:
    """Draw a metric of a run against layer, one line per step, one panel per token subset, on one axis of values.

    At most eight steps are drawn, dark to light: the first, the last, those with the lowest and the highest mean, and
    others between. The band is the 95 % interval over probes, if it is known. Layers without a value leave a gap. The
    line of a finished model is labelled "finished".
    """
    rows = measurements(frame)
    subsets, finished, shown = subsets_of(rows, metric), is_finished(rows), of_metric(rows, metric)
    mean = pd.Series(shown.groupby("step")["value"].mean())
    steps = [int(mean.index[index]) for index in thin(mean.index.tolist(), mean.tolist(), MAX_STEPS)]
    colours = dict(zip(steps, step_colours(len(steps)), strict=True))
    drawn = list(metric_series(shown).values())
    lines = [profile_lines(series, colours, is_finished=finished) for series in drawn]
    columns = min(MAX_COLUMNS, len(subsets))
    y = axis_of_lines(metric, [line for of_subset in lines for line in of_subset])
    panels = [
        Panel(
            title=subset_title(series.subset),
            x=layer_axis(layer_label(metric, series.layers[-1]), *_valued_places(series)),
            y=replace(y, label="" if number % columns else metric_unit(metric)),
            lines=lines[number],
        )
        for number, series in enumerate(drawn)
    ]
    chart = Chart(
        title=run_title(rows, f"{metric_title(metric)} over depth"),
        caption=run_caption(shown, intervals(shown)),
        panels=panels,
        columns=columns,
        size=(max(7.2, 4.6 * columns + 1.4), 4.3 * -(-len(panels) // columns)),
        legend=lines[0][::-1],
        legend_title=None if finished else "step",
    )
    return draw(chart)


def mean_over_layers(
    frame: pd.DataFrame,
    metrics: Sequence[str] = ("two_nn", "anisotropy"),
    loss: str | None = None,
    alerts: Sequence[Alert] = (),
) -> Figure:
    """Draw metrics of a run averaged over layers against step, one panel each, with the loss in the first.

    The step axis is logarithmic beyond 1 and linear below, so that step 0 shows; above it are the training tokens
    if every checkpoint has them. The band is the 95 % interval of
    :func:`repdyn.tables.frames.layer_mean`.

    Args:
        frame: rows of one run, with the scalar that is its loss.
        metrics: those that were not measured are left out.
        loss: name of the scalar; by default that of :func:`repdyn.tables.frames.loss_of_run`.
        alerts: of the run; the steps of those on a metric are marked in its panel.
    """
    rows = of_training(frame, "profile_over_depth")
    present = [metric for metric in metrics if metric in metrics_of(rows)]
    if not present:
        raise ValueError(
            f"expected one of the metrics {', '.join(metrics)}, got rows of {', '.join(metrics_of(rows))}; "
            "name one of these"
        )
    shown = rows.loc[rows["metric"].isin(present)]
    series, axis = metric_series(shown), training_axis(sorted(rows["step"].unique().tolist()))
    panels = [
        replace(
            _means_panel(metric, [one for one in series.values() if one.metric == metric]),
            x=replace(axis, label=axis.label if metric == present[-1] else ""),
            marks=marks_on(alerts_on(alerts, metric), None),
        )
        for metric in present
    ]
    tokens = tokens_by_step(rows)
    # otherwise a number of tokens has no position on the axis
    has_tokens = len(tokens) > 1 and tokens.is_monotonic_increasing and tokens.is_unique
    found = loss_of_run(frame) if loss is None else RunLoss(loss, scalar(frame, loss))
    losses = loss_line(found.values, found.name)
    panels[0] = replace(panels[0], loss=losses, tokens=tokens.to_dict() if has_tokens else None)
    marked = any(alerts_on(alerts, metric) for metric in present)
    chart = Chart(
        title=run_title(rows, "Mean over layers during training"),
        caption=run_caption(shown, intervals(shown), MARKED * marked),
        panels=panels,
        size=(7.2, 1.3 + 2.9 * len(panels)),
        shares_x=True,
    )
    return draw(chart)


def heatmap(frame: pd.DataFrame, metric: str, subset: str, alerts: Sequence[Alert] = ()) -> Figure:
    """Draw a metric of a run by layer (upwards) and measured step (to the right, equally spaced), alerts marked.

    Cells without a value are hatched. Of more than 48 measured steps, log-spaced ones are drawn, those with an alert,
    and those with the lowest and the highest value.
    """
    rows = of_training(frame, "profile_over_depth")
    shown = of_metric(rows, metric, subset)
    if shown.empty:
        measured = ", ".join(subsets_of(rows, metric))
        raise ValueError(f"expected a subset {metric} was measured on, got {subset!r}; there are {measured}")
    comparable = drop_first_comparison(shown)
    series = MetricSeries(metric, subset, shown if comparable.empty else comparable)
    with_alert = {alert.step for alert in alerts_on(alerts, metric, subset)} & {*series.steps}
    known = series.rows.dropna(subset="value")
    extremes = [int(known.loc[at(), "step"]) for at in (known["value"].idxmin, known["value"].idxmax) if len(known)]
    steps = sorted({*select_steps(series.steps, _MAX_HEATMAP_STEPS), *with_alert, *extremes})
    panel = heatmap_panel(series, alerts, steps)
    hatched = "; hatched: none that compares" if panel.cells and not np.isfinite(panel.cells.values).all() else ""
    title = f"{metric_title(metric)} by layer and step, {subset_title(subset)}{hatched}"
    caption = run_caption(shown, compared(shown), MARKED * bool(panel.marks))
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


def all_figures(frame: pd.DataFrame, attempt: Attempt = nullcontext, alerts: Sequence[Alert] = ()) -> dict[str, Figure]:
    """Return all figures of a run, by name (a stem for a file, a key for a logger).

    A metric of geometry, or of the user's own, has a profile, its place in the means over layers, and heatmaps. Any
    other family has an overview over depth and one against step, and some have figures of their own. A finished model
    has no figures against step.

    Args:
        frame: rows of one run.
        attempt: collects the errors of figures, so that the others are drawn; by default they are raised at once.
        alerts: of this run, to be marked.
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
    own = [metric for metric in metrics_of(rows) if has_own_figures(metric)]
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
        if family == "convergence" and bool((valued["metric"] == GRADIENT).any()):
            yield "convergence", drawn(convergence, members)
        if family == "change" and trained:
            for metric in members_of(valued, family):
                yield from heatmaps(metric)
    heads = frame.loc[frame["head"].notna()]
    for metric, subset in _measured_by_head(heads):
        ending = "" if subset == "all" else f"_{subset}"
        yield f"heads_{file_stem(metric)}{ending}", partial(heads_heatmap, heads, metric, subset)


def _means_panel(metric: str, series: Sequence[MetricSeries]) -> Panel:
    labels = [f"{subset_title(one.subset)} ({one.layer_mean.coverage})" for one in series]
    lines = [
        line
        for one, colour, label in zip(series, cycle(SUBSET_COLOURS), labels, strict=False)
        for line in mean_lines(one, colour=colour, label=label)
    ]
    title = metric_title(metric) if len(series) > 1 else f"{metric_title(metric)}, {labels[0]}"
    return Panel(
        title=wrapped(title, _TITLE_WIDTH),
        y=axis_of_lines(metric, lines),
        lines=lines,
        widens_hidden=True,
        legend="inside" if len(series) > 1 else "",
    )


def _valued_places(series: MetricSeries) -> tuple[float, float]:
    """Return the places of the first and the last layer with a value; of all layers if none has one."""
    places = series.places[~np.isnan(series.values).all(axis=1)]
    return tuple((places if len(places) else series.places)[[0, -1]].tolist())


def _measured_by_head(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Return each metric and token subset that has values of single attention heads."""
    rows = frame.loc[frame["layer"].notna() & frame["head"].notna() & frame["value"].notna()]
    pairs = rows.assign(subset=filled(rows["subset"], "all"))[["metric", "subset"]].drop_duplicates()
    metrics = sorted(pairs["metric"].unique())
    return [(metric, subset) for metric in metrics for subset in in_order(of_metric(pairs, metric)["subset"])]
