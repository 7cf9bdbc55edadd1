"""Figures that compare runs: profiles over relative depth, means over layers during training,
families of metrics.

A hue stands for a class of models, blue and others for decoders, orange and others for encoders,
light to dark by number of parameters; a run has the same colour and marker in every figure. The
stacks of a model are drawn as separate models. Seeds of one model are drawn as one line, their
mean, with the interval over seeds as its band, above a thin line for each seed.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from repdyn.metrics.names import file_stem
from repdyn.utils.attempts import Attempt
from repdyn.utils.printing import plural
from repdyn.views.charts.axes import RELATIVE_DEPTH, training_axis
from repdyn.views.charts.description import Axis, Line, Panel
from repdyn.views.charts.lines import about_checkpoints, end_lines, mean_lines, notes, run_colours
from repdyn.views.charts.on_matplotlib import LEGEND_ROWS, draw, draw_all
from repdyn.views.display import FAMILIES, display_of
from repdyn.views.figures.panes import LARGE, SMALL, WIDE, Board, Trace, in_panel_order, panes_of
from repdyn.views.tables.frames import concatenated, in_registry_order, log_spaced
from repdyn.views.tables.runs import Key, MeasuredRun
from repdyn.views.tables.seeds import INTERVAL, SeedGroup
from repdyn.views.tables.series import MetricSeries, intervals
from repdyn.views.tables.style import KINDS, has_own_figures, metric_title, overview_families
from repdyn.views.tables.texts import brief_sampling
from repdyn.views.tables.words import spans

_MAX_MARKERS = 12
_MARKERS = "os^DvPX*<>"


def _looks(runs: Sequence[MeasuredRun]) -> dict[Key, dict[str, Any]]:
    """Return colour, marker and band of each run, the same in every figure of these runs."""
    colours = run_colours(runs)
    return {
        run.key: {
            "colour": colours[run.key],
            # no two of the first runs share a marker, which greyscale leaves
            "marker": _MARKERS[number % len(_MARKERS)],
            "marker_size": 4.5,
            "band_opacity": 0.2 if isinstance(run, SeedGroup) else 0.1,
        }
        for number, run in enumerate(runs)
    }


def _valued(runs: Sequence[MeasuredRun]) -> set[tuple[str, str]]:
    """Return the metrics with their subsets that have a value at the end of some run."""
    valued: set[tuple[str, str]] = set()
    for run in runs:
        valued |= {
            key for key, series in run.series.items() if not np.isnan(series.values[:, -1]).all()
        }
    return valued


def profiles(runs: Sequence[MeasuredRun], metric: str) -> Figure:
    """Draw a metric over relative depth, a panel for each subset on one axis of values."""
    return over_depth(runs, [metric], metric_title(metric), LARGE)


def over_depth(
    runs: Sequence[MeasuredRun], metrics: Sequence[str], title: str, panel: tuple[float, float]
) -> Figure:
    """Draw metrics over relative depth, one line per run at its last measured step.

    A panel for each metric and subset; two classes of tokens that are compared with each other
    share one, the second dashed. Values between two layers are drawn between them. Layers without a
    value leave a gap.
    """
    looks = _looks(runs)
    drawn = [run for run in runs if any(metric in metrics for metric, _ in run.series)]
    keys = sorted(
        (key for key in _valued(runs) if key[0] in metrics), key=lambda key: metrics.index(key[0])
    )
    board = Board(panes_of(keys, "runs"), panel, drawn[0].vectors_of)
    when, suffixes = _end_checkpoints(drawn)
    ends = [run.at_end() for run in drawn]
    cells = [of_run.loc[of_run["metric"].isin(metrics)] for of_run in ends]
    panels = _panels(
        board, RELATIVE_DEPTH, drawn, lambda run, series: end_lines(series, **looks[run.key])
    )
    caption = notes(
        when,
        _about_pairs(board),
        board.about_tokens(),
        about_checkpoints(concatenated(cells)),
        _about_values(drawn, cells),
    )
    chart = board.chart(
        panels,
        is_over_depth=True,
        title=f"{title} over depth, {_count_kinds(drawn)}",
        caption=caption,
        **_legend(drawn, suffixes, looks),
    )
    return draw(chart)


def _panels(
    board: Board,
    x: Axis,
    runs: Sequence[MeasuredRun],
    lines_of: Callable[[MeasuredRun, MetricSeries], list[Line]],
) -> list[Panel]:
    """Return a panel for each pane with the lines of each run that has its metric; those of a
    second class dashed.
    """

    def lines_of_trace(trace: Trace) -> list[Line]:
        having = [run for run in runs if trace.key in run.series]
        return [line for run in having for line in lines_of(run, run.series[trace.key])]

    panels = []
    for pane in board.panes:
        dashed = zip(pane.traces, ("-", "--"), strict=False)
        lines = [
            replace(line, dash=dash) for trace, dash in dashed for line in lines_of_trace(trace)
        ]
        panels.append(Panel(x=x, lines=lines))
    return panels


def means_over_layers(
    runs: Sequence[MeasuredRun], metrics: Sequence[str] = ("two_nn", "anisotropy")
) -> Figure:
    """Draw metrics averaged over layers against training, one line per run, one panel per metric
    and subset.

    The panels of a metric share the axis of values. The x axis is in tokens if all runs have token
    counts, otherwise in steps; it is logarithmic and shows zero. Runs with one checkpoint are left
    out, and the title says how many. The legend tells which runs are averaged over fewer layers
    than they have.
    """
    looks = _looks(runs)
    drawn = [run for run in runs if len(run.steps) > 1]
    measured = [metric for metric in metrics if any(metric in run.metrics() for run in drawn)]
    # one axis for all: steps of models with other batches do not compare
    by_tokens = all(run.tokens.max() > 0 for run in drawn)
    extents = [run.tokens if by_tokens else run.steps for run in drawn]
    axis = training_axis(list(chain.from_iterable(extents)), in_tokens=by_tokens)
    keys = set(chain.from_iterable(run.keys_of(measured) for run in drawn))
    in_order = sorted(keys, key=lambda key: measured.index(key[0]))
    board = Board(panes_of(in_order, "runs"), WIDE, drawn[0].vectors_of)

    def lines_of(run: MeasuredRun, series: MetricSeries) -> list[Line]:
        return _mean_lines(run, series, looks[run.key], by_tokens=by_tokens)

    title = f"Mean over layers during training, {_count_kinds(drawn)}"
    if len(drawn) < len(runs):
        title += f"; {len(runs) - len(drawn)} with one checkpoint left out"
    suffixes = [_averaged_layers(run, keys) for run in drawn]
    cells = [run.rows_of(measured) for run in drawn]
    chart = board.chart(
        _panels(board, axis, drawn, lines_of),
        title=title,
        caption=notes(_about_pairs(board), _about_values(drawn, cells)),
        **_legend(drawn, suffixes, looks),
    )
    return draw(chart)


def _mean_lines(
    run: MeasuredRun, series: MetricSeries, look: Mapping[str, Any], *, by_tokens: bool
) -> list[Line]:
    """Return the mean of a metric over layers with its band, against tokens or steps."""
    lines = mean_lines(series, **look)
    steps = [int(step) for step in lines[-1].x]
    x = run.tokens[steps].tolist() if by_tokens else steps
    return [replace(line, x=x, marked=log_spaced(steps, _MAX_MARKERS)) for line in lines]


def _averaged_layers(run: MeasuredRun, keys: Container[tuple[str, str]]) -> str:
    """Return how many layers the means of a run are over; empty where all panels have all."""
    all_means = [series.layer_mean for key, series in run.series.items() if key in keys]
    means = [mean for mean in all_means if mean.n_used]
    if not any(mean.is_partial for mean in means):
        return ""
    used = sorted({mean.n_used for mean in means})
    return f" ({spans(used)} of {max(mean.n_layers for mean in means)} layers)"


def comparison_figures(
    runs: Sequence[MeasuredRun], attempt: Attempt = nullcontext
) -> dict[str, Figure]:
    """Return all figures that compare these runs, in the order of
    :func:`repdyn.views.tables.seeds.with_seeds`, by name.

    A metric of geometry, or of the user's own, has its profiles and its place in the means over
    layers; any other family has its profiles in one overview. ``attempt`` collects the errors of
    figures, so that others are drawn.
    """
    valued = sorted({metric for metric, _ in _valued(runs)})
    single = [metric for metric in valued if has_own_figures(metric)]
    drawings: dict[str, Callable[[], Figure]] = {
        f"profiles_{file_stem(metric)}": partial(profiles, runs, metric) for metric in single
    }
    if any(run.rows_of(single)["step"].nunique() > 1 for run in runs):
        drawings["means_over_layers"] = partial(means_over_layers, runs, in_panel_order(single))
    for family in overview_families(valued):
        members = in_registry_order(
            metric for metric in valued if display_of(metric).family == family
        )
        drawings[f"compare_{family}"] = partial(over_depth, runs, members, FAMILIES[family], SMALL)
    return draw_all(drawings, attempt)


def _about_pairs(board: Board) -> str:
    has_pairs = any(pane.pair for pane in board.panes)
    return "dashed: the second of two classes" if has_pairs else ""


def _about_values(runs: Sequence[MeasuredRun], cells: Sequence[pd.DataFrame]) -> str:
    """Return how many vectors the drawn rows of each run rest on, and what their bands mean."""
    single = [
        of_run for run, of_run in zip(runs, cells, strict=True) if not isinstance(run, SeedGroup)
    ]
    bands = [intervals(concatenated(single))] if single else []
    if len(single) < len(runs):
        bands.append(f"{'band of seeds' if single else 'band'}: {INTERVAL}, each a thin line")
    return notes(brief_sampling(concatenated(cells)), *bands)


def _legend(
    runs: Sequence[MeasuredRun], suffixes: Sequence[str], looks: Mapping[Key, dict[str, Any]]
) -> dict[str, Any]:
    """Return the legend of a chart, the runs under a heading for each kind with a suffix behind
    each name, and the width in inches that it takes."""
    entries: list[Line | str] = []
    for kind, members in groupby(
        zip(runs, suffixes, strict=True), key=lambda member: member[0].causal
    ):
        group = list(members)
        entries.append(_plural(kind, len(group)))
        entries += [Line(x=(), y=(), label=run.label + end, **looks[run.key]) for run, end in group]
    longest = max(len(entry.label) for entry in entries if isinstance(entry, Line))
    # with room for headings
    n_columns = math.ceil((len(runs) + len(KINDS)) / LEGEND_ROWS)
    return {"legend": entries, "legend_width": n_columns * (0.7 + 0.085 * longest)}


def _count_kinds(runs: Sequence[MeasuredRun]) -> str:
    kinds = Counter(run.causal for run in runs)
    return ", ".join(f"{number} {_plural(kind, number)}" for kind, number in kinds.items())


def _plural(kind: bool | None, number: int) -> str:
    return "of unknown kind" if kind is None else plural(number, KINDS[kind])


def _end_checkpoints(runs: Sequence[MeasuredRun]) -> tuple[str, list[str]]:
    """Return the checkpoints of the profiles as text, and a suffix for the name of each run if they
    differ.
    """
    last = {run.steps[-1] for run in runs if not run.finished}
    if not last:
        return "finished models", ["" for _ in runs]
    if len(last) == 1:
        when = f"at step {last.pop():,}"
        if any(run.finished for run in runs):
            when += " or finished"
        return when, ["" for _ in runs]
    return "at the last measured step", [
        "" if run.finished else f", step {run.steps[-1]:,}" for run in runs
    ]
