"""Pictures of a study of convergence: profiles, their steps, gaps between classes, the change between checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from repdyn.figures.drawing import entitle
from repdyn.studies.convergence.bootstrap import Interval
from repdyn.studies.convergence.loss import SUMMARIES, Correlation
from repdyn.studies.convergence.results import Uncertain
from repdyn.studies.convergence.splits import Gap
from repdyn.tables.alignment_profile import isotonic_fit, lower_envelope
from repdyn.tables.style import LOSS_COLOUR, SEQUENTIAL, SUBSET_COLOURS, styled

THRESHOLD = 0.05
"""Of the adjusted p-values, from which on a gap is marked."""

_ALIGNMENT = "mean cosine to the last layer"
_STEP = "gradient: alignment gained\nfrom this layer to the next"
_BARS = "#9ecae1"
_BAND = "Band: 95 % interval of a bootstrap over sequences."


@styled
def profile_figure(found: Mapping[str, Uncertain]) -> Figure:
    """Alignment against depth, one line for each model; against layer where all have the same number of them."""
    figure = Figure(figsize=(7.5, 4.5))
    axes = figure.subplots()
    same = len({len(one.alignment) for one in found.values()}) == 1
    for number, (name, one) in enumerate(found.items()):
        depth = np.arange(len(one.alignment)) / (1 if same else len(one.alignment) - 1)
        _line(axes, depth, one.alignment, one.alignment_interval, label=name, color=_colour(number), marker="o")
    axes.set_xlabel("layer" if same else "relative depth (layer / last layer)")
    axes.set_ylabel(_ALIGNMENT)
    if same:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    entitle(figure, "Alignment with the last layer", _BAND)
    return figure


@styled
def gradient_figure(name: str, one: Uncertain) -> Figure:
    """The steps of one profile, with their isotonic fit and their lower envelope."""
    figure = Figure(figsize=(7.5, 4.5))
    axes = figure.subplots()
    layers = np.arange(len(one.steps))
    errors = one.steps - one.steps_interval.low, one.steps_interval.high - one.steps
    axes.bar(layers, one.steps, 0.6, yerr=np.maximum(errors, 0), color=_BARS, capsize=3, label="gradient")
    axes.axhline(one.rate, color="0.5", linestyle=":", label=f"average rate {one.rate:.4f}")
    look: dict[str, Any] = {"baseline": None, "linewidth": 2, "zorder": 3}
    edges = np.arange(len(one.steps) + 1) - 0.5
    axes.stairs(isotonic_fit(one.steps), edges, color=SUBSET_COLOURS[0], label="isotonic fit", **look)
    axes.stairs(lower_envelope(one.steps), edges, color=LOSS_COLOUR, linestyle="--", label="lower envelope", **look)
    axes.axhline(0, color="black", linewidth=0.8)
    _by_layer(axes, _STEP)
    axes.legend()
    entitle(figure, f"{name}: steps of the alignment", "Bars: 95 % interval of a bootstrap over sequences.")
    return figure


@styled
def gap_figure(name: str, gaps: Mapping[tuple[str, str], Gap]) -> Figure:
    """One panel for each pair of classes; filled where the gap is significant after Holm's correction."""
    figure = Figure(figsize=(7.5, 1.2 + 2.4 * len(gaps)))
    panels = figure.subplots(len(gaps), sharex=True, squeeze=False)[:, 0]
    for number, (axes, (pair, gap)) in enumerate(zip(panels, gaps.items(), strict=True)):
        layers, colour = np.arange(len(gap.mean)), _colour(number)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.errorbar(layers, gap.mean, (gap.mean - gap.low, gap.high - gap.mean), color=colour, capsize=2)
        marked = gap.p_holm < THRESHOLD
        axes.plot(layers[marked], gap.mean[marked], "o", color=colour, label=f"adjusted p < {THRESHOLD}")
        if not marked.all():
            axes.plot(layers[~marked], gap.mean[~marked], "o", color=colour, markerfacecolor="white", label="not so")
        axes.set_title(f"{pair[0]} minus {pair[1]}: {gap.test}, {gap.n}")
        axes.set_ylabel("gap of alignment")
        axes.legend(fontsize=8)
    _by_layer(panels[-1], panels[-1].get_ylabel())
    entitle(figure, f"{name}: alignment of one class minus that of another", "Bars: 95 % interval of the test.")
    return figure


@styled
def change_figure(title: str, found: Uncertain) -> Figure:
    """How the alignment and its steps differ between two checkpoints."""
    figure = Figure(figsize=(7.5, 6.0))
    above, below = figure.subplots(2, sharex=True)
    layers = np.arange(len(found.alignment))
    _line(above, layers, found.alignment, found.alignment_interval, color=SUBSET_COLOURS[0], marker="o")
    _line(below, layers[:-1], found.steps, found.steps_interval, color=SUBSET_COLOURS[1], marker="o")
    for axes in (above, below):
        axes.axhline(0, color="black", linewidth=0.8)
    above.set_ylabel("difference of alignment")
    _by_layer(below, "difference of gradient")
    entitle(figure, title, _BAND)
    return figure


@styled
def loss_figure(name: str, table: pd.DataFrame, found: Sequence[Correlation]) -> Figure:
    """Each summary of a profile against the training loss, checkpoint by checkpoint."""
    figure = Figure(figsize=(9, 6.5))
    panels = figure.subplots(2, -(-len(SUMMARIES) // 2)).ravel()
    for axes, one in zip(panels, found, strict=True):
        order = np.arange(len(table))
        axes.plot(table["loss"], table[one.summary], color="0.8", linewidth=1, zorder=1)
        axes.scatter(table["loss"], table[one.summary], c=order, cmap=SEQUENTIAL, zorder=2)
        axes.set_title(f"{one.summary}: Spearman {one.spearman:.2f}, Pearson {one.pearson:.2f}")
        axes.set_xlabel("training loss", color=LOSS_COLOUR)
    entitle(figure, f"{name}: convergence and loss", f"{len(table)} checkpoints, from dark (first) to light (last).")
    return figure


def _line(axes: Axes, x: np.ndarray, values: np.ndarray, interval: Interval, *, color: str, **look: Any) -> None:
    axes.plot(x, values, color=color, markersize=4 if len(x) <= 40 else 0, **look)
    axes.fill_between(x, interval.low, interval.high, color=color, alpha=0.25, linewidth=0)


def _by_layer(axes: Axes, label: str) -> None:
    axes.set_xlabel("layer")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _colour(number: int) -> str:
    return f"C{number % 10}" if number >= len(SUBSET_COLOURS) else SUBSET_COLOURS[number]
