"""Pictures of one run, or of one stack of its model: profiles over depth, means over layers against step, heatmaps.

Metrics of geometry, and those that the table of metrics does not know, have such pictures each; those of any other
family are drawn together, see ``repdyn.figures.overviews``.

Everything goes through matplotlib's object interface: no global state, no display, safe inside a training process.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from repdyn.alerts import Alert
from repdyn.figures.alert_marks import MARKED, alerts_on, mark_steps
from repdyn.figures.convergence import GRADIENT, convergence
from repdyn.figures.drawing import (
    drawn,
    entitle_run,
    line,
    log_steps,
    name_values,
    save,
    scale,
    side_by_side,
    subplots,
    tokens_above,
)
from repdyn.figures.heatmaps import heads_heatmap, heatmap, measured_by_head
from repdyn.figures.overviews import depth_overview, steps_overview
from repdyn.figures.scales import DIMENSIONS, has_scales, scales
from repdyn.metrics.names import file_stem
from repdyn.store.schema import FINISHED
from repdyn.tables.designs import intervals
from repdyn.tables.families import has_own_figures, is_between, members_of, overview_families, places
from repdyn.tables.frames import (
    LayerMean,
    grid,
    is_finished,
    layer_mean,
    measurements,
    metrics_of,
    of_metric,
    of_training,
    scalar,
    select_steps,
    subsets_of,
    tokens_by_step,
)
from repdyn.tables.scalars import LOSS
from repdyn.tables.style import (
    LOSS_COLOUR,
    SEQUENTIAL,
    SUBSET_COLOURS,
    metric_title,
    metric_unit,
    styled,
    subset_title,
)
from repdyn.utils.attempts import Attempt, attempts

_MAX_STEPS = 8
_TITLE_WIDTH = 80


@styled
def profile_over_depth(frame: pd.DataFrame, metric: str) -> Figure:
    """A metric against layer, one line per step, one panel per token subset.

    At most eight steps are drawn: the first, the last, and log-spaced ones between, dark to light. The band is
    the 95 % interval over probes, where it is known. Layers without a value leave a gap. The one line of a model of
    which only the end is published is called "finished".

    Args:
        frame: rows of one run.
        metric: a measured metric, for example "anisotropy".

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; ``metric`` not among them.
    """
    rows = measurements(frame)
    subsets, finished = subsets_of(rows, metric), is_finished(rows)
    columns, n_rows = side_by_side(len(subsets))
    figure = Figure(figsize=(max(7.2, 4.6 * columns + 1.4), 4.3 * n_rows))
    panels = subplots(figure, len(subsets))
    steps = select_steps(sorted(of_metric(rows, metric)["step"].unique()), _MAX_STEPS)
    colours = colormaps[SEQUENTIAL](np.linspace(0, 0.92, len(steps)))
    for panel, subset in zip(panels, subsets, strict=True):
        values, margins = grid(rows, metric, subset), grid(rows, metric, subset, "margin")
        layers = values.index
        values, margins = (table.set_axis(places(metric, layers.tolist())) for table in (values, margins))
        for step, colour in zip(steps, colours, strict=True):
            if step in values:
                name = FINISHED if finished else f"{step:,}"
                line(panel, values.loc[:, step], margins.loc[:, step], color=colour, label=name, marker="o")
        panel.set_title(subset_title(subset))
        panel.set_xlabel(f"layer (0 = embedding output, {_last(metric, layers)})")
        panel.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        margin = 0.04 * max(1, values.index[-1] - values.index[0])
        panel.set_xlim(values.index[0] - margin, values.index[-1] + margin)
        scale(panel, metric, values.to_numpy(float))
    for panel in panels[::columns]:
        panel.set_ylabel(metric_unit(metric))
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], title=None if finished else "step", loc="outside right center")
    shown = of_metric(rows, metric)
    entitle_run(figure, shown, f"{metric_title(metric)} over depth", intervals(shown))
    return figure


@styled
def mean_over_layers(
    frame: pd.DataFrame,
    metrics: Sequence[str] = ("two_nn", "anisotropy"),
    loss: str = LOSS,
    alerts: Sequence[Alert] = (),
) -> Figure:
    """Metrics averaged over layers against step, one panel each, with the training loss beside the first.

    The step axis is logarithmic beyond 1 and linear below, so that step 0 shows; above it stand the training tokens
    where every checkpoint knows them. The band is the 95 % interval of
    :func:`repdyn.tables.frames.layer_mean`.

    Args:
        frame: rows of one run; its scalar ``loss`` is drawn where it is stored.
        metrics: those that were not measured are left out.
        loss: name of the scalar.
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
    figure = Figure(figsize=(7.2, 1.3 + 2.9 * len(present)))
    panels = figure.subplots(len(present), 1, squeeze=False, sharex=True)[:, 0]
    for panel, metric in zip(panels, present, strict=True):
        _draw_means(panel, rows, metric)
        mark_steps(panel, sorted({alert.step for alert in alerts_on(alerts, metric)}))
    _draw_loss(panels[0], scalar(frame, loss), loss)
    log_steps(panels[-1], sorted(rows["step"].unique()))
    tokens = tokens_by_step(rows)
    if len(tokens) > 1 and tokens.is_monotonic_increasing and tokens.is_unique:  # else no place for a count
        tokens_above(panels[0], tokens)
    marked = any(alerts_on(alerts, metric) for metric in present)
    shown = rows.loc[rows["metric"].isin(present)]
    notes = "; ".join(filter(None, [intervals(shown), MARKED * marked]))
    entitle_run(figure, shown, "Mean over layers during training", notes)
    return figure


def all_figures(frame: pd.DataFrame, attempt: Attempt = nullcontext, alerts: Sequence[Alert] = ()) -> dict[str, Figure]:
    """Every figure this run has the rows for, by name (a stem for a file, a key for a logger).

    A metric of geometry, or of the user's own, has a profile, its place in the means over layers, and heatmaps. Any
    other family has an overview over depth and one against step, and what suits it alone. A model of which only the end
    is published has nothing against step.

    Args:
        frame: rows of one run.
        attempt: keeps what a figure raises for later, so that the others are drawn; without it that is raised at once.
        alerts: of this run, to be marked.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none.
    """
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
    return drawn(drawings | _overviews(frame, rows, alerts), attempt)


def _overviews(frame: pd.DataFrame, rows: pd.DataFrame, alerts: Sequence[Alert]) -> dict[str, Callable[[], Figure]]:
    """Of each family that has a value; what has none is named in the summary."""
    trained, valued = not is_finished(rows), rows.loc[rows["value"].notna()]
    drawings: dict[str, Callable[[], Figure]] = {}
    for family in overview_families(valued["metric"].unique()):
        of_family = rows.loc[rows["metric"].isin(members_of(rows, family))]
        drawings[f"depth_{family}"] = partial(depth_overview, of_family, family)
        if trained:
            drawings[f"steps_{family}"] = partial(steps_overview, of_family, family, alerts)
        if family == "dimension" and has_scales(valued):
            drawings["scales"] = partial(scales, rows.loc[rows["metric"].isin([*DIMENSIONS])])
        if family == "convergence" and bool((valued["metric"] == GRADIENT).any()):
            drawings["convergence"] = partial(convergence, of_family)
        if family == "change" and trained:
            for metric in members_of(valued, family):
                drawings |= _heatmaps(of_family, metric, alerts)
    of_heads = frame.loc[frame["head"].notna()]
    for metric, subset in measured_by_head(of_heads):
        ending = "" if subset == "all" else f"_{subset}"
        drawings[f"heads_{file_stem(metric)}{ending}"] = partial(heads_heatmap, of_heads, metric, subset)
    return drawings


def _heatmaps(rows: pd.DataFrame, metric: str, alerts: Sequence[Alert] = ()) -> dict[str, Callable[[], Figure]]:
    subsets = subsets_of(rows, metric)
    return {f"heatmap_{file_stem(metric)}_{one}": partial(heatmap, rows, metric, one, alerts) for one in subsets}


def write_figures(
    frame: pd.DataFrame, folder: Path, attempt: Attempt | None = None, alerts: Sequence[Alert] = ()
) -> list[Path]:
    """Write every figure as PNG (150 dpi) and SVG; the same rows give the same bytes.

    Args:
        frame: rows of one run.
        folder: made where it is missing; files of the same name are replaced.
        attempt: keeps the failures for a caller who has more to do; raised here without it.
        alerts: of the run, to be marked.

    Returns:
        The files written.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none.
        Exception: what the first failing figure raised, once the others are written.
    """
    with attempts(attempt) as each:
        return save(all_figures(frame, each, alerts), Path(folder), each)


def _last(metric: str, layers: pd.Index) -> str:
    return "each value between two" if is_between(metric) else f"last measured: {layers[-1]}"


def _draw_means(panel: Axes, rows: pd.DataFrame, metric: str) -> None:
    subsets = subsets_of(rows, metric)
    labels = []
    for number, (subset, colour) in enumerate(zip(subsets, cycle(SUBSET_COLOURS))):
        means = layer_mean(rows, metric, subset)
        labels.append(f"{subset_title(subset)} ({_layers_used(means)})")
        # each over the one before and thinner, so that two that coincide are both seen
        width = max(1.2, 4.5 - 3 * number) if len(subsets) > 1 else 2
        line(panel, means.mean, means.margin, color=colour, label=labels[-1], marker="o", linewidth=width)
    name_values(panel, metric)
    alone = len(subsets) == 1
    title = f"{metric_title(metric)}, {labels[0]}" if alone else metric_title(metric)
    panel.set_title(textwrap.fill(title, _TITLE_WIDTH, break_on_hyphens=False), loc="left")
    if not alone:
        panel.legend(loc="best")
    scale(panel, metric, of_metric(rows, metric)["value"].to_numpy(float))


def _layers_used(means: LayerMean) -> str:
    if means.n_used == 0:
        return "no value"
    return f"{means.n_used} layers" if means.n_used == means.n_layers else f"{means.n_used} of {means.n_layers} layers"


def _draw_loss(panel: Axes, losses: pd.Series, name: str) -> None:
    if losses.empty:
        return
    twin = panel.twinx()
    twin.grid(False)
    twin.spines["right"].set(visible=True, color=LOSS_COLOUR)
    twin.plot(
        losses.index, losses.to_numpy(), color=LOSS_COLOUR, linestyle="--", linewidth=1.4, marker="x", markersize=3
    )
    twin.set_ylabel(f"{name} (dashed)", color=LOSS_COLOUR)
    twin.tick_params(axis="y", colors=LOSS_COLOUR)
