"""Figures of one run, or of one stack of its model: profiles over depth, means over layers against step, heatmaps.

Each metric of geometry and each of the user's own has these figures; other families have overviews, see
``repdyn.figures.overviews``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import cycle

import pandas as pd
from matplotlib.figure import Figure

from repdyn.alerts import Alert
from repdyn.figures.axes import axis_of_lines, layer_axis, layer_label, training_axis
from repdyn.figures.captions import notes, run_caption, run_title, step_colours, wrapped
from repdyn.figures.charts import Chart, Panel
from repdyn.figures.convergence import GRADIENT, convergence
from repdyn.figures.drawing import draw
from repdyn.figures.files import draw_all
from repdyn.figures.heatmaps import heads_heatmap, heatmap, measured_by_head
from repdyn.figures.metric_panels import MARKED, alerts_on, loss_line, marks_on, mean_line, profile_lines
from repdyn.figures.overviews import depth_overview, steps_overview
from repdyn.figures.scales import DIMENSIONS, has_scales, scales
from repdyn.metrics.names import file_stem
from repdyn.tables.designs import intervals
from repdyn.tables.families import has_own_figures, members_of, overview_families
from repdyn.tables.frames import (
    is_finished,
    measurements,
    metrics_of,
    of_metric,
    of_training,
    scalar,
    subsets_of,
    tokens_by_step,
)
from repdyn.tables.losses import RunLoss, loss_of_run
from repdyn.tables.series import MetricSeries, metric_series, thin
from repdyn.tables.style import SUBSET_COLOURS, metric_title, metric_unit, subset_title
from repdyn.utils.attempts import Attempt

MAX_STEPS = 8
MAX_COLUMNS = 3
_TITLE_WIDTH = 80
_COLUMNS = (
    *("run", "model", "causal", "step", "tokens_seen", "stage", "probe", "design", "layers", "stack", "layer", "depth"),
    *("head", "metric", "subset", "settings", "compared_to", "value", "std", "low", "high", "reason", "n_batches"),
    *("n_vectors", "n_windows", "vectors_per_window", "window_tokens", "own_window_excluded"),
)
"""Columns that the figures of a run show or describe."""


def profile_over_depth(frame: pd.DataFrame, metric: str) -> Figure:
    """Draw a metric against layer, one line per step, one panel per token subset.

    At most eight steps are drawn, dark to light: the first, the last, those with the lowest and the highest mean, and
    others between. The band is the 95 % interval over probes, if it is known. Layers without a value leave a gap. The
    line of a finished model is labelled "finished".

    Args:
        frame: rows of one run.
        metric: a measured metric, for example "anisotropy".

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; ``metric`` not among them.
    """
    rows = measurements(frame)
    subsets, finished, shown = subsets_of(rows, metric), is_finished(rows), of_metric(rows, metric)
    mean = pd.Series(shown.groupby("step")["value"].mean())
    steps = [int(mean.index[index]) for index in thin(mean.index.tolist(), mean.tolist(), MAX_STEPS)]
    colours = dict(zip(steps, step_colours(len(steps)), strict=True))
    columns = min(MAX_COLUMNS, len(subsets))
    panels = []
    for number, series in enumerate(metric_series(shown).values()):
        lines = profile_lines(series, colours, is_finished=finished)
        unit = "" if number % columns else metric_unit(metric)
        panels.append(
            Panel(
                title=subset_title(series.subset),
                x=layer_axis(layer_label(metric, series.layers[-1]), series.places[0], series.places[-1]),
                y=axis_of_lines(metric, lines, unit),
                lines=lines,
            )
        )
    chart = Chart(
        title=run_title(rows, f"{metric_title(metric)} over depth"),
        caption=run_caption(shown, intervals(shown)),
        panels=panels,
        columns=columns,
        size=(max(7.2, 4.6 * columns + 1.4), 4.3 * -(-len(panels) // columns)),
        legend=panels[0].lines[::-1],
        legend_title=None if finished else "step",
    )
    return draw(chart)


def mean_over_layers(
    frame: pd.DataFrame,
    metrics: Sequence[str] = ("two_nn", "anisotropy"),
    loss: str | None = None,
    alerts: Sequence[Alert] = (),
) -> Figure:
    """Draw metrics averaged over layers against step, one panel each, with the loss in the first.

    The step axis is logarithmic beyond 1 and linear below, so that step 0 shows; above it are the training tokens
    if every checkpoint has them. The band is the 95 % interval of
    :func:`repdyn.tables.frames.layer_mean`.

    Args:
        frame: rows of one run, with the scalar that is its loss.
        metrics: those that were not measured are left out.
        loss: name of the scalar; by default that of :func:`repdyn.tables.losses.loss_of_run`.
        alerts: of the run; the steps of those on a metric are marked in its panel.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; none of ``metrics`` among them; a finished
            model, which has no steps.
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
        caption=run_caption(shown, notes(intervals(shown), MARKED * marked)),
        panels=panels,
        size=(7.2, 1.3 + 2.9 * len(panels)),
        shares_x=True,
    )
    return draw(chart)


def _means_panel(metric: str, series: Sequence[MetricSeries]) -> Panel:
    labels = [f"{subset_title(one.subset)} ({one.layer_mean.coverage})" for one in series]
    lines = [
        mean_line(one, colour=colour, label=label)
        for one, colour, label in zip(series, cycle(SUBSET_COLOURS), labels, strict=False)
    ]
    title = metric_title(metric) if len(series) > 1 else f"{metric_title(metric)}, {labels[0]}"
    return Panel(
        title=wrapped(title, _TITLE_WIDTH),
        y=axis_of_lines(metric, lines),
        lines=lines,
        widens_hidden=True,
        legend="inside" if len(series) > 1 else "",
    )


def all_figures(frame: pd.DataFrame, attempt: Attempt = nullcontext, alerts: Sequence[Alert] = ()) -> dict[str, Figure]:
    """Return all figures of a run, by name (a stem for a file, a key for a logger).

    A metric of geometry, or of the user's own, has a profile, its place in the means over layers, and heatmaps. Any
    other family has an overview over depth and one against step, and some have figures of their own. A finished model
    has no figures against step.

    Args:
        frame: rows of one run.
        attempt: collects the errors of figures, so that the others are drawn; by default they are raised at once.
        alerts: of this run, to be marked.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none.
    """
    # the other columns would be copied with each selection of rows
    frame = pd.DataFrame(frame[[name for name in _COLUMNS if name in frame]])
    rows = measurements(frame)
    own = [metric for metric in metrics_of(rows) if has_own_figures(metric)]
    drawings: dict[str, Callable[[], Figure]] = {
        f"profile_{file_stem(metric)}": partial(profile_over_depth, of_metric(rows, metric), metric) for metric in own
    }
    if own and not is_finished(rows):
        with_loss = frame.loc[frame["layer"].isna() | frame["metric"].isin(own)]
        drawings["mean_over_layers"] = partial(mean_over_layers, with_loss, sorted(own, reverse=True), alerts=alerts)
        for metric in own:
            drawings |= _heatmaps(of_metric(rows, metric), metric, alerts)
    return draw_all(drawings | _overviews(frame, rows, alerts), attempt)


def _overviews(frame: pd.DataFrame, rows: pd.DataFrame, alerts: Sequence[Alert]) -> dict[str, Callable[[], Figure]]:
    """Return the figures of each family with a value."""
    trained, valued = not is_finished(rows), rows.loc[rows["value"].notna(), ["metric"]]
    drawings: dict[str, Callable[[], Figure]] = {}
    for family in overview_families(valued["metric"].unique()):
        of_family = partial(_selected, rows, members_of(rows, family))
        drawings[f"depth_{family}"] = partial(_drawn, depth_overview, of_family, family)
        if trained:
            drawings[f"steps_{family}"] = partial(_drawn, steps_overview, of_family, family, alerts)
        if family == "dimension" and has_scales(valued):
            drawings["scales"] = partial(_drawn, scales, partial(_selected, rows, DIMENSIONS))
        if family == "convergence" and bool((valued["metric"] == GRADIENT).any()):
            drawings["convergence"] = partial(_drawn, convergence, of_family)
        if family == "change" and trained:
            for metric in members_of(valued, family):
                drawings |= _heatmaps(of_metric(rows, metric), metric, alerts)
    of_heads = frame.loc[frame["head"].notna()]
    for metric, subset in measured_by_head(of_heads):
        ending = "" if subset == "all" else f"_{subset}"
        drawings[f"heads_{file_stem(metric)}{ending}"] = partial(heads_heatmap, of_heads, metric, subset)
    return drawings


def _drawn(draw_rows: Callable[..., Figure], rows: Callable[[], pd.DataFrame], *args: object) -> Figure:
    """Draw rows that are selected only now, since those of all figures together would be a second table."""
    return draw_rows(rows(), *args)


def _selected(rows: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    return rows.loc[rows["metric"].isin([*metrics])]


def _heatmaps(rows: pd.DataFrame, metric: str, alerts: Sequence[Alert] = ()) -> dict[str, Callable[[], Figure]]:
    subsets = subsets_of(rows, metric)
    return {f"heatmap_{file_stem(metric)}_{one}": partial(heatmap, rows, metric, one, alerts) for one in subsets}
