"""Pictures of several runs: profiles over depth at their ends, means over layers against the course of training.

Decoders are blue and encoders orange, light to dark by number of parameters; a run looks the same in every picture. The
stacks of a model that has several are drawn like models of their own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repdyn.figures.drawing import (
    Curve,
    drawn,
    entitle,
    lines,
    log_steps,
    log_tokens,
    name_values,
    save,
    scale,
    side_by_side,
    subplots,
)
from repdyn.figures.family_comparison import compare_family
from repdyn.figures.theme import BAND, DEPTHS, Look, comparable, ends, legend, legend_width, looks_of, numbers, profile
from repdyn.metrics.names import file_stem
from repdyn.tables.designs import intervals, sampling_of_runs
from repdyn.tables.families import has_own_figures, overview_families
from repdyn.tables.frames import LayerMean, in_order, layer_mean, metrics_of, of_metric, select_steps
from repdyn.tables.runs import Key, MeasuredRun, listed, spans
from repdyn.tables.style import metric_title, metric_unit, styled, subset_title
from repdyn.utils.attempts import Attempt, attempts

_N_MARKED = 8
_MIN_WIDTH = 7.2
_MAX_NAMES = 3
_TITLE_WIDTH = 66
_MAX_WHO = 30


@styled
def profiles(frame: pd.DataFrame, metric: str) -> Figure:
    """A metric against relative depth, one line per run at its last measured step, one panel per token subset.

    The band is the 95 % interval over probes, where it is known. Layers without a value leave a gap, and the caption
    names them.

    Args:
        frame: rows of several runs, each measured on one probe.
        metric: one that at least one of the runs was measured with.

    Raises:
        ValueError: a run with several models or probes; runs that do not compare; ``metric`` not among their rows.
    """
    runs = comparable(frame)
    looks = looks_of(runs)
    drawn = [run for run in runs if metric in metrics_of(run.rows)]
    if not drawn:
        measured = ", ".join(sorted({metric for run in runs for metric in metrics_of(run.rows)}))
        raise ValueError(f"expected a measured metric, got {metric!r}; measured were {measured}")
    rows = pd.concat([of_metric(run.at_end(), metric) for run in drawn])
    subsets = in_order(rows["subset"].unique())
    when, at_ends = ends(drawn)
    labels = [run.label + end for run, end in zip(drawn, at_ends, strict=True)]
    columns, n_rows = side_by_side(len(subsets))
    figure = Figure(figsize=(max(_MIN_WIDTH, 4.4 * columns + legend_width(labels)), 4.6 * n_rows))
    panels = subplots(figure, len(subsets))
    for panel, subset in zip(panels, subsets, strict=True):
        lines(panel, [profile(run, metric, subset, looks[run.key]) for run in drawn], shade=BAND)
        panel.set_title(subset_title(subset))
        panel.set_xlabel("relative depth (0 = embedding output, 1 = last layer)")
        panel.set_xlim(*DEPTHS)
        scale(panel, metric, of_metric(rows, metric, subset)["value"].to_numpy(float))
    for panel in panels[::columns]:
        panel.set_ylabel(metric_unit(metric))
    legend(figure, drawn, looks, labels)
    notes = f"{when}; {intervals(rows)}".removesuffix("; ")
    sampled = sampling_of_runs({run.label: of_metric(run.at_end(), metric) for run in drawn})
    caption = f"{notes}\n{sampled}{_left_out(drawn, metric)}"
    entitle(figure, f"{metric_title(metric)} over depth, {numbers(drawn)}", caption)
    return figure


@styled
def means_over_layers(frame: pd.DataFrame, metrics: Sequence[str] | None = None) -> Figure:
    """Metrics averaged over layers against training, one line per run, one panel per metric and token subset.

    Training is counted in tokens where all the drawn runs know theirs, else in steps; the axis is logarithmic and
    shows its zero. Runs with one checkpoint are left out, and the title says how many. The band is the 95 % interval
    of :func:`repdyn.tables.frames.layer_mean`. A run averaged over fewer layers than it has says so in the
    legend, and where that is not so in every panel, in the panel's title.

    Args:
        frame: rows of several runs, each measured on one probe.
        metrics: those that were not measured are left out; None for those of geometry and the user's own.

    Raises:
        ValueError: a run with several models or probes; runs that do not compare; no run with two checkpoints; none of
            ``metrics`` among their rows.
    """
    runs = comparable(frame)
    looks = looks_of(runs)
    drawn = [run for run in runs if len(run.steps) > 1]
    if not drawn:
        raise ValueError("expected a run with several checkpoints, got none; draw profiles instead")
    rows = pd.concat([run.rows for run in drawn])
    wanted = [m for m in metrics_of(rows) if (has_own_figures(m) if metrics is None else m in metrics)]
    panes = [(m, s) for m in reversed(wanted) for s in in_order(of_metric(rows, m)["subset"].unique())]
    if not panes:
        raise ValueError(f"expected other metrics, got rows of {', '.join(metrics_of(rows))}; name some of these")
    means = {pane: _means(drawn, *pane) for pane in panes}
    used = {run.key: [found[run.key] for found in means.values() if run.key in found] for run in drawn}
    labels = [run.label + _layers_used(used[run.key]) for run in drawn]
    varying = [run for run in drawn if _varies(used[run.key])]
    figure = Figure(figsize=(6.4 + legend_width(labels), 1.3 + 2.4 * len(panes)))
    panels = figure.subplots(len(panes), 1, squeeze=False, sharex=True)[:, 0]
    by_tokens = all(run.tokens.max() > 0 for run in drawn)
    for panel, (metric, subset) in zip(panels, panes, strict=True):
        found = means[metric, subset]
        courses = [_course(run, found[run.key], by_tokens, looks[run.key]) for run in drawn if run.key in found]
        lines(panel, courses, shade=BAND)
        title = f"{metric_title(metric)}, {subset_title(subset)}{_fewer(varying, found)}"
        panel.set_title(textwrap.fill(title, _TITLE_WIDTH, break_on_hyphens=False), loc="left")
        name_values(panel, metric)
        scale(panel, metric, np.concatenate([values for values, *_ in courses]))
    _name_course(panels[-1], drawn, by_tokens)
    legend(figure, drawn, looks, labels)
    n_left = len(runs) - len(drawn)
    left = f"; {n_left} with one checkpoint left out" if n_left else ""
    shown = {run.label: run.rows.loc[run.rows["metric"].isin(wanted)] for run in drawn}
    caption = "\n".join(filter(None, [intervals(pd.concat(shown.values())), sampling_of_runs(shown)]))
    entitle(figure, f"Mean over layers during training, {numbers(drawn)}{left}", caption)
    return figure


def comparison_figures(frame: pd.DataFrame, attempt: Attempt = nullcontext) -> dict[str, Figure]:
    """Every comparison these runs have the rows for, by name.

    A metric of geometry, or of the user's own, has its profiles and its place in the means over layers; any other
    family has its profiles in one overview.

    Args:
        frame: rows of several runs, each measured on one probe.
        attempt: keeps what a figure raises for later, so that the others are drawn; without it that is raised at once.

    Raises:
        ValueError: a run with several models or probes; runs that do not compare.
    """
    runs = comparable(frame)
    at_end = pd.concat([run.at_end() for run in runs])
    metrics = sorted(at_end["metric"].unique())
    own = [metric for metric in metrics if has_own_figures(metric)]
    # a profile needs the end alone, and to check all rows for each figure takes longer than to draw it
    drawings: dict[str, Callable[[], Figure]] = {f"profiles_{file_stem(m)}": partial(profiles, at_end, m) for m in own}
    if any(run.rows.loc[run.rows["metric"].isin(own), "step"].nunique() > 1 for run in runs):
        # a run that has none of these metrics keeps its place among the colours
        kept = pd.concat([frame.loc[frame["metric"].isin(own)], at_end.loc[~at_end["metric"].isin(own)]])
        drawings["means_over_layers"] = partial(means_over_layers, kept)
    for family in overview_families(at_end.loc[at_end["value"].notna(), "metric"].unique()):
        drawings[f"compare_{family}"] = partial(compare_family, at_end, family)
    return drawn(drawings, attempt)


def write_comparison(frame: pd.DataFrame, folder: Path, attempt: Attempt | None = None) -> list[Path]:
    """Write every comparison as PNG (150 dpi) and SVG; the same rows give the same bytes.

    Args:
        frame: rows of several runs, each measured on one probe.
        folder: made where it is missing; files of the same name are replaced.
        attempt: keeps the failures for a caller who has more to do; raised here without it.

    Returns:
        The files written.

    Raises:
        ValueError: a run with several models or probes; runs that do not compare.
        Exception: what the first failing figure raised, once the others are written.
    """
    with attempts(attempt) as each:
        return save(comparison_figures(frame, each), Path(folder), each)


def _means(runs: Sequence[MeasuredRun], metric: str, subset: str) -> dict[Key, LayerMean]:
    """By run, those that were not measured so left out."""
    return {run.key: layer_mean(run.rows, metric, subset) for run in runs if len(of_metric(run.rows, metric, subset))}


def _course(run: MeasuredRun, means: LayerMean, by_tokens: bool, look: Look) -> Curve:
    mean, margin = means.mean, means.margin
    steps = mean.index.tolist()
    marked = [steps.index(step) for step in select_steps(steps, _N_MARKED)] if steps else []
    if by_tokens:
        mean, margin = (series.rename(index=run.tokens.to_dict()) for series in (mean, margin))
    return mean, margin, {**look, "markevery": marked}


def _layers_used(means: Sequence[LayerMean]) -> str:
    """What to add to the name of a run; nothing where it is averaged over all of its layers in every panel."""
    drawn = [one for one in means if one.n_used]
    used = sorted({one.n_used for one in drawn})
    if not any(one.n_used < one.n_layers for one in drawn):
        return ""
    span = f"{used[0]}" if len(used) == 1 else f"{used[0]}-{used[-1]}"
    return f" ({span} of {max(one.n_layers for one in drawn)} layers)"


def _varies(means: Sequence[LayerMean]) -> bool:
    return len({one.n_used for one in means if one.n_used}) > 1


def _fewer(varying: Sequence[MeasuredRun], means: Mapping[Key, LayerMean]) -> str:
    """What to add to a panel's title: those of ``varying`` that in it are averaged over fewer layers than they have."""
    names = [run.label for run in varying if run.key in means and 0 < means[run.key].n_used < means[run.key].n_layers]
    who = ", ".join(names)
    if len(who) > _MAX_WHO:
        who = f"{len(names)} of {len(means)} runs"
    return f" (over fewer layers: {who})" if names else ""


def _left_out(runs: Sequence[MeasuredRun], metric: str) -> str:
    """A line for the caption on the layers that lack a value on at least one subset; empty where none does."""
    by_layers: dict[str, list[str]] = {}
    for run in runs:
        rows = of_metric(run.at_end(), metric)
        if layers := sorted(rows.loc[rows["value"].isna(), "layer"].unique().tolist()):
            by_layers.setdefault(spans(layers), []).append(run.label)
    if not by_layers:
        return ""
    return f"\nlayers left out: {listed({where: _some(names) for where, names in by_layers.items()})}"


def _some(names: Sequence[str]) -> list[str]:
    left = len(names) - _MAX_NAMES
    return [*names[:_MAX_NAMES], f"{left} more"] if left > 0 else list(names)


def _name_course(axes: Axes, runs: Sequence[MeasuredRun], by_tokens: bool) -> None:
    if by_tokens:
        log_tokens(axes, [count for run in runs for count in run.tokens])
    else:
        log_steps(axes, [step for run in runs for step in run.steps])
