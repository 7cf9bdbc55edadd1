"""Figures of one run: profiles over depth, means over layers during training, heatmaps, convergence, scales.

Each metric of geometry and each of the user's own has profile, mean and heatmaps; other families have overviews, see
``repdyn.figures.overviews``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
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
    alerts_on,
    axis_of_lines,
    compared,
    heads_panel,
    heatmap_panel,
    layer_axis,
    layer_label,
    loss_line,
    marks_on,
    mean_lines,
    profile_lines,
    run_caption,
    run_title,
    step_colours,
    training_axis,
    wrapped,
)
from repdyn.figures.drawing import draw, draw_all
from repdyn.figures.overviews import depth_overview, last_place, steps_overview
from repdyn.metrics import METRICS
from repdyn.metrics.metric import file_stem
from repdyn.store.schema import FINISHED
from repdyn.tables.designs import intervals
from repdyn.tables.fits import isotonic_fit, lower_envelope
from repdyn.tables.frames import (
    NO_CLASSES,
    defined_subsets,
    drop_first_comparison,
    filled,
    grid,
    in_order,
    is_finished,
    loss_of_run,
    measurements,
    members_of,
    metrics_of,
    of_heads,
    of_metric,
    of_training,
    select_steps,
    subsets_of,
    tokens_by_step,
)
from repdyn.tables.series import MetricSeries, metric_series, thin
from repdyn.tables.style import (
    LOSS_COLOUR,
    ORDERED,
    SUBSET_COLOURS,
    has_own_figures,
    metric_title,
    metric_unit,
    overview_families,
    shades,
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
    alerts: Sequence[Alert] = (),
) -> Figure:
    """Draw metrics of a run averaged over layers against step, one panel each, with a loss in the first.

    Metrics that were not measured are left out; the loss is that of :func:`repdyn.tables.frames.loss_of_run`. The step
    axis is logarithmic beyond 1 and linear below, so that step 0 shows; above it are the training tokens if every
    checkpoint has them. The band is the 95 % interval of :func:`repdyn.tables.frames.layer_mean`. Steps with an alert
    on a metric are marked in its panel.
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
    loss = loss_of_run(frame)
    losses = loss_line(loss.values, loss.name)
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
    has no figures against step. ``attempt`` collects the errors of figures, so that the others are drawn; by default
    they are raised at once.
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


ALIGNMENT, GRADIENT = "alignment", "alignment_gradient"


def convergence(frame: pd.DataFrame) -> Figure:
    """Draw alignment and its gradient at the last measured step of a run, on all tokens and, if known, without sinks.

    With the alignment, the constant rate that would lead from its first value to its last; with the gradient, its
    isotonic fit, which pools layers, and the monotone lower envelope, which is a bound.
    """
    rows = measurements(frame)
    known = defined_subsets(rows, GRADIENT) if GRADIENT in metrics_of(rows) else []
    if not known:
        raise ValueError(f"expected values of {GRADIENT}, got none; measure it on a model with two layers or more")
    subsets = [subset for subset in in_order(known) if subset in NO_CLASSES] or in_order(known)
    step = max(rows.loc[(rows["metric"] == GRADIENT) & rows["value"].notna(), "step"].tolist())
    axis = layer_axis("layer (0 = embedding output)", 0.0, float(last_place(rows)))
    panels = [make(rows, subset, step) for subset in subsets for make in (_alignment_panel, _gradient_panel)]
    shown = rows.loc[rows["metric"].isin([ALIGNMENT, GRADIENT]) & rows["subset"].isin(subsets)]
    when = FINISHED if is_finished(rows) else f"at step {step:,}"
    chart = Chart(
        title=run_title(rows, f"Convergence to the last layer, {when}"),
        caption=run_caption(shown, intervals(shown.loc[shown["step"] == step], "band and bars")),
        panels=[replace(panel, x=axis) for panel in panels],
        columns=2,
        size=(10.6, 1.0 + 3.2 * len(subsets)),
        is_small=True,
    )
    return draw(chart)


def _alignment_panel(rows: pd.DataFrame, subset: str, step: int) -> Panel:
    title = f"{metric_title(ALIGNMENT)}, {subset_title(subset)}"
    if ALIGNMENT not in metrics_of(rows) or subset not in defined_subsets(rows, ALIGNMENT):
        return Panel(title=f"{title}: not measured", y=Axis(label=metric_unit(ALIGNMENT)))
    layers, values, margins = _at(rows, ALIGNMENT, subset, step)
    (first, last), ends = layers[[0, -1]].tolist(), values[[0, -1]].tolist()
    rate = (ends[1] - ends[0]) / (last - first) if last > first else np.nan
    look: dict[str, Any] = {"colour": "0.45", "dash": "--", "width": 1.2, "marker": ""}
    return Panel(
        title=f"{title}\nat layer {first:.0f}: {ends[0]:.3g}; average rate {rate:.3g} per layer",
        y=Axis(label=metric_unit(ALIGNMENT), limits=(min(0.0, float(values.min())), float(values.max()))),
        lines=[
            Line(x=layers, y=values, margin=margins, label="alignment", colour=SUBSET_COLOURS[0]),
            Line(x=(first, last), y=ends, label="constant rate", **look),
        ],
        legend="right",
    )


def _gradient_panel(rows: pd.DataFrame, subset: str, step: int) -> Panel:
    layers, values, margins = _at(rows, GRADIENT, subset, step)
    fit, bound = isotonic_fit(values), lower_envelope(values)
    blue, text = SUBSET_COLOURS[0], f"{metric_title(GRADIENT)}, {subset_title(subset)}"
    return Panel(
        title=f"{text}\nfit {_ends(fit)}; envelope {_ends(bound)}",
        y=Axis(label=metric_unit(GRADIENT), is_signed=True),
        lines=[
            Line(x=layers + 0.5, y=values, margin=margins, kind="bars", label="gradient", colour=blue),
            Line(x=layers, y=fit, kind="steps", label="isotonic fit", colour=LOSS_COLOUR),
            Line(x=layers, y=bound, kind="steps", label="lower envelope", colour="0.2", dash="--", width=1.5),
        ],
        legend="right",
    )


def _at(rows: pd.DataFrame, metric: str, subset: str, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the layers with a value at a step, the values, and half of their 95 % intervals."""
    values = grid(rows, metric, subset).loc[:, step].dropna()
    margins = grid(rows, metric, subset, "margin").loc[values.index, step]
    return values.index.to_numpy(float), values.to_numpy(float), margins.to_numpy(float)


def _ends(values: Sequence[float] | np.ndarray) -> str:
    """Describe a curve by its first and last value.

    >>> _ends([0.25, 0.25]), _ends([0.1, 0.5])
    ('0.25 throughout', '0.1 to 0.5')
    """
    low, high = f"{values[0]:.3g}", f"{values[-1]:.3g}"
    return f"{low} throughout" if low == high else f"{low} to {high}"


GRIDE = tuple(name for name in METRICS if name.startswith("gride_"))
_MAX_STEPS = 3
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
    known = known.loc[known["subset"] == subset]
    steps = select_steps(sorted(gride["step"].unique().tolist()), _MAX_STEPS)
    layers = sorted(gride["layer"].unique().tolist())
    chosen = np.linspace(0, len(layers) - 1, min(len(layers), _MAX_LAYERS)).round().astype(int)
    layers = [layers[index] for index in chosen]
    colours = dict(zip(layers, shades(ORDERED, len(layers), 0, 0.9), strict=True))
    shown = known.loc[known["metric"].isin(GRIDE) & known["step"].isin(steps)]
    lines = {
        step: [line for layer, colour in colours.items() for line in _layer_lines(known, step, layer, colour)]
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
    bars = intervals(shown, "bars")
    chart = Chart(
        title=run_title(rows, "Intrinsic dimension against scale"),
        caption=run_caption(known, subset_title(subset), bars),
        panels=[
            Panel(title=titles[number], x=_AXIS, y=replace(y, label="" if number else y.label), lines=lines[step])
            for number, step in enumerate(steps)
        ],
        columns=len(steps),
        size=(max(7.2, 1.6 + 3.6 * len(steps)), 4.2),
        legend=[*of_layers, *of_points],
    )
    return draw(chart)


def _layer_lines(known: pd.DataFrame, step: int, layer: int, colour: str) -> Iterator[Line]:
    """Yield the estimates of one layer at one step: a line over scales, and points for those at one scale."""
    rows = known.loc[(known["step"] == step) & (known["layer"] == layer)]
    pairs = zip(rows["metric"], rows["settings"], strict=True)
    rows = rows.assign(k=[2 if metric == "two_nn" else int(json.loads(settings)["k"]) for metric, settings in pairs])
    cells = rows.loc[rows["metric"].isin(GRIDE)].sort_values("k")
    margins = cells["margin"].to_numpy(float)
    yield Line(x=cells["k"].tolist(), y=cells["value"].to_numpy(float), margin=margins, colour=colour, kind="points")
    for metric, (_, marker) in _SINGLE_SCALE.items():
        cells = rows.loc[rows["metric"] == metric]
        look = {"marker": marker, "dash": "none", "marker_size": 6}
        yield Line(x=cells["k"].tolist(), y=cells["value"].to_numpy(float), colour=colour, **look)
