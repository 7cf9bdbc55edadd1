"""Pictures of several runs: profiles over depth at their ends, means over layers against the course of training.

Decoders are blue and encoders orange, light to dark by number of parameters; a run looks the same in every picture. The
stacks of a model that has several are drawn like models of their own.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from repdyn.views.attempts import Attempt, attempts
from repdyn.views.drawing import Curve, drawn, entitle, lines, log_steps, log_tokens, name_values, save, scale
from repdyn.views.frames import LayerMean, counts, in_order, layer_mean, metrics_of, of_metric, select_steps
from repdyn.views.runs import Key, MeasuredRun, differences, listed, measured_runs, spans
from repdyn.views.style import KIND_COLOURS, KINDS, metric_title, metric_unit, styled, subset_title

Look: TypeAlias = dict[str, Any]
"""Colour and marker of a run, as matplotlib takes them."""

_MARKERS = "os^DvPX*<>"
_N_MARKED = 8
_SHADES = (0.42, 1.0)
_ONLY_SHADE = 0.75
_BAND = 0.1
_LEGEND_ROWS = 20
_MIN_WIDTH = 7.2
_DEPTHS = (-0.04, 1.04)
_MAX_NAMES = 3
_TITLE_WIDTH = 66
_MAX_WHO = 30


@styled
def profiles(frame: pd.DataFrame, metric: str) -> Figure:
    """A metric against relative depth, one line per run at its last measured step, one panel per token subset.

    The band is one standard deviation over batches to either side. Layers without a value leave a gap, and the caption
    names them.

    Args:
        frame: rows of several runs, each measured on one probe.
        metric: one that at least one of the runs was measured with.

    Raises:
        ValueError: a run with several models or probes; runs that do not compare; ``metric`` not among their rows.
    """
    runs = _comparable(frame)
    looks = _looks(runs)
    drawn = [run for run in runs if metric in metrics_of(run.rows)]
    if not drawn:
        measured = ", ".join(sorted({metric for run in runs for metric in metrics_of(run.rows)}))
        raise ValueError(f"expected a measured metric, got {metric!r}; measured were {measured}")
    rows = pd.concat([of_metric(run.at_end(), metric) for run in drawn])
    subsets = in_order(rows["subset"].unique())
    when, ends = _ends(drawn)
    labels = [run.label + end for run, end in zip(drawn, ends, strict=True)]
    figure = Figure(figsize=(max(_MIN_WIDTH, 4.4 * len(subsets) + _legend_width(labels)), 4.6))
    panels = figure.subplots(1, len(subsets), squeeze=False, sharex=True)[0]
    for panel, subset in zip(panels, subsets, strict=True):
        lines(panel, [_profile(run, metric, subset, looks[run.key]) for run in drawn], shade=_BAND)
        panel.set_title(subset_title(subset))
        panel.set_xlabel("relative depth (0 = embedding output, 1 = last layer)")
        panel.set_xlim(*_DEPTHS)
        scale(panel, metric, of_metric(rows, metric, subset)["value"].to_numpy(float))
    panels[0].set_ylabel(metric_unit(metric))
    _legend(figure, drawn, looks, labels)
    caption = f"{when}; {counts(rows)}{_left_out(drawn, metric)}"
    entitle(figure, f"{metric_title(metric)} over depth, {_numbers(drawn)}", caption)
    return figure


@styled
def means_over_layers(frame: pd.DataFrame) -> Figure:
    """Every metric averaged over layers against training, one line per run, one panel per metric and token subset.

    Training is counted in tokens where all the drawn runs know theirs, else in steps; the axis is logarithmic and
    shows its zero. Runs with one checkpoint are left out, and the title says how many. The band is the spread of
    :func:`repdyn.views.frames.layer_mean` to either side. A run averaged over fewer layers than it has says so in the
    legend, and where that is not so in every panel, in the panel's title.

    Args:
        frame: rows of several runs, each measured on one probe.

    Raises:
        ValueError: a run with several models or probes; runs that do not compare; no run with two checkpoints.
    """
    runs = _comparable(frame)
    looks = _looks(runs)
    drawn = [run for run in runs if len(run.steps) > 1]
    if not drawn:
        raise ValueError("expected a run with several checkpoints, got none; draw profiles instead")
    rows = pd.concat([run.rows for run in drawn])
    panes = [(m, s) for m in reversed(metrics_of(rows)) for s in in_order(of_metric(rows, m)["subset"].unique())]
    means = {pane: _means(drawn, *pane) for pane in panes}
    used = {run.key: [found[run.key] for found in means.values() if run.key in found] for run in drawn}
    labels = [run.label + _layers_used(used[run.key]) for run in drawn]
    varying = [run for run in drawn if _varies(used[run.key])]
    figure = Figure(figsize=(6.4 + _legend_width(labels), 1.3 + 2.4 * len(panes)))
    panels = figure.subplots(len(panes), 1, squeeze=False, sharex=True)[:, 0]
    by_tokens = all(run.tokens.max() > 0 for run in drawn)
    for panel, (metric, subset) in zip(panels, panes, strict=True):
        found = means[metric, subset]
        courses = [_course(run, found[run.key], by_tokens, looks[run.key]) for run in drawn if run.key in found]
        lines(panel, courses, shade=_BAND)
        title = f"{metric_title(metric)}, {subset_title(subset)}{_fewer(varying, found)}"
        panel.set_title(textwrap.fill(title, _TITLE_WIDTH, break_on_hyphens=False), loc="left")
        name_values(panel, metric)
        scale(panel, metric, np.concatenate([values for values, *_ in courses]))
    _name_course(panels[-1], drawn, by_tokens)
    _legend(figure, drawn, looks, labels)
    n_left = len(runs) - len(drawn)
    left = f"; {n_left} with one checkpoint left out" if n_left else ""
    entitle(figure, f"Mean over layers during training, {_numbers(drawn)}{left}", counts(rows))
    return figure


def comparison_figures(frame: pd.DataFrame, attempt: Attempt = nullcontext) -> dict[str, Figure]:
    """Every comparison these runs have the rows for, by name.

    Args:
        frame: rows of several runs, each measured on one probe.
        attempt: keeps what a figure raises for later, so that the others are drawn; without it that is raised at once.

    Raises:
        ValueError: a run with several models or probes; runs that do not compare.
    """
    runs = _comparable(frame)
    metrics = sorted({metric for run in runs for metric in metrics_of(run.rows)})
    drawings = {f"profiles_{metric}": partial(profiles, frame, metric) for metric in metrics}
    if any(len(run.steps) > 1 for run in runs):
        drawings["means_over_layers"] = partial(means_over_layers, frame)
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


def _comparable(frame: pd.DataFrame) -> list[MeasuredRun]:
    runs = measured_runs(frame)
    if why := differences(runs):
        raise ValueError(f"expected runs that compare, got {why}; choose among them")
    return runs


def _looks(runs: Sequence[MeasuredRun]) -> dict[Key, Look]:
    """Colours from light to dark within each kind, and a marker for each run of a kind."""
    looks: dict[Key, Look] = {}
    for kind, members in groupby(runs, key=lambda run: run.causal):
        group = list(members)
        shades = np.linspace(*_SHADES, len(group)) if len(group) > 1 else [_ONLY_SHADE]
        for number, (run, shade) in enumerate(zip(group, shades, strict=True)):
            colour = to_hex(colormaps[KIND_COLOURS[kind]](shade))
            looks[run.key] = {"color": colour, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 4.5}
    return looks


def _profile(run: MeasuredRun, metric: str, subset: str, look: Look) -> Curve:
    cells = of_metric(run.at_end(), metric, subset)
    depths = cells["depth"].to_numpy(float)
    values, spreads = (pd.Series(cells[column].to_numpy(float), index=depths) for column in ("value", "std"))
    return values, spreads, look


def _means(runs: Sequence[MeasuredRun], metric: str, subset: str) -> dict[Key, LayerMean]:
    """By run, those that were not measured so left out."""
    return {run.key: layer_mean(run.rows, metric, subset) for run in runs if len(of_metric(run.rows, metric, subset))}


def _course(run: MeasuredRun, means: LayerMean, by_tokens: bool, look: Look) -> Curve:
    mean, std = means.mean, means.std
    steps = mean.index.tolist()
    marked = [steps.index(step) for step in select_steps(steps, _N_MARKED)] if steps else []
    if by_tokens:
        mean, std = (series.rename(index=run.tokens.to_dict()) for series in (mean, std))
    return mean, std, {**look, "markevery": marked}


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


def _legend(figure: Figure, runs: Sequence[MeasuredRun], looks: Mapping[Key, Look], labels: Sequence[str]) -> None:
    """The runs, under a heading for each kind, in the order of the comparison."""
    handles: list[Line2D] = []
    for kind, members in groupby(zip(runs, labels, strict=True), key=lambda member: member[0].causal):
        group = list(members)
        handles.append(Line2D([], [], linestyle="none", label=_plural(kind, len(group))))
        handles += [Line2D([], [], label=label, **looks[run.key]) for run, label in group]
    legend = figure.legend(handles=handles, loc="outside right center", ncols=math.ceil(len(handles) / _LEGEND_ROWS))
    for text, handle in zip(legend.get_texts(), handles, strict=True):
        if handle.get_linestyle() == "None":
            text.set_fontweight("bold")


def _legend_width(labels: Sequence[str]) -> float:
    """Inches."""
    n_columns = math.ceil((len(labels) + len(KINDS)) / _LEGEND_ROWS)
    return n_columns * (0.7 + 0.085 * max(map(len, labels)))


def _numbers(runs: Sequence[MeasuredRun]) -> str:
    """How many of each kind there are."""
    kinds = [(kind, len(list(members))) for kind, members in groupby(runs, key=lambda run: run.causal)]
    return ", ".join(f"{number} {_plural(kind, number)}" for kind, number in kinds)


def _plural(kind: bool | None, number: int) -> str:
    return f"{KINDS[kind]}{'s' * (number > 1)}" if kind is not None else "of unknown kind"


def _ends(runs: Sequence[MeasuredRun]) -> tuple[str, list[str]]:
    """Which checkpoints the profiles are of: in a few words, and what to add to each run's name where they differ."""
    last = {run.steps[-1] for run in runs if not run.finished}
    nothing = [""] * len(runs)
    if not last:
        return "finished models", nothing
    if len(last) == 1:
        return f"at step {last.pop():,}{' or finished' * any(run.finished for run in runs)}", nothing
    return "at the last measured step", ["" if run.finished else f", step {run.steps[-1]:,}" for run in runs]
