"""Draw alignment profiles, their steps, gaps between classes, changes between checkpoints, and the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from repdyn.figures.drawing import entitle
from repdyn.studies.charts import layer_axis, line_with_band, series_colour
from repdyn.studies.convergence.gaps import THRESHOLD, ClassGap
from repdyn.studies.convergence.loss import SUMMARIES
from repdyn.studies.convergence.profiles import ProfileEstimate
from repdyn.tables.alignment_profile import isotonic_fit, lower_envelope
from repdyn.tables.style import LOSS_COLOUR, SEQUENTIAL, SUBSET_COLOURS, styled

_BARS = "#9ecae1"
_BAND = "Band: 95 % interval of a bootstrap over sequences."
_MAX_MARKED = 40


@styled
def profile_figure(estimates: Mapping[str, ProfileEstimate]) -> Figure:
    """Draw alignment against depth, a line for each model; against layers if all have the same number of them."""
    figure = Figure(figsize=(7.5, 4.5))
    axes = figure.subplots()
    same_depth = len({len(one.alignment) for one in estimates.values()}) == 1
    for number, (name, one) in enumerate(estimates.items()):
        depth = np.arange(len(one.alignment)) / (1 if same_depth else len(one.alignment) - 1)
        look = _look(depth, series_colour(number))
        line_with_band(axes, depth, one.alignment, *one.alignment_interval, label=name, **look)
    if same_depth:
        layer_axis(axes)
    else:
        axes.set_xlabel("relative depth (layer / last layer)")
    axes.set_ylabel("mean cosine to the last layer")
    axes.legend()
    entitle(figure, "Alignment with the last layer", _BAND)
    return figure


@styled
def gradient_figure(name: str, one: ProfileEstimate) -> Figure:
    """Draw the steps of a profile, with their isotonic fit and their lower envelope."""
    figure = Figure(figsize=(7.5, 4.5))
    axes = figure.subplots()
    errors = one.steps - one.steps_interval.low, one.steps_interval.high - one.steps
    layers, bars = np.arange(len(one.steps)), {"color": _BARS, "capsize": 3, "label": "gradient"}
    axes.bar(layers, one.steps, 0.6, yerr=np.maximum(errors, 0), **bars)
    axes.axhline(one.rate, color="0.5", linestyle=":", label=f"average rate {one.rate:.4f}")
    look: dict[str, Any] = {"baseline": None, "linewidth": 2, "zorder": 3}
    edges = np.arange(len(one.steps) + 1) - 0.5
    axes.stairs(isotonic_fit(one.steps), edges, color=SUBSET_COLOURS[0], label="isotonic fit", **look)
    axes.stairs(lower_envelope(one.steps), edges, color=LOSS_COLOUR, linestyle="--", label="lower envelope", **look)
    axes.axhline(0, color="black", linewidth=0.8)
    layer_axis(axes)
    axes.set_ylabel("gradient: alignment gained\nfrom this layer to the next")
    axes.legend()
    entitle(figure, f"{name}: steps of the alignment", "Bars: 95 % interval of a bootstrap over sequences.")
    return figure


@styled
def gap_figure(name: str, gaps: Mapping[tuple[str, str], ClassGap]) -> Figure:
    """Draw a panel for each pair of classes; markers are filled where the gap is significant."""
    figure = Figure(figsize=(7.5, 1.2 + 2.4 * len(gaps)))
    panels = figure.subplots(len(gaps), sharex=True, squeeze=False)[:, 0]
    for number, (axes, (pair, gap)) in enumerate(zip(panels, gaps.items(), strict=True)):
        layers, colour = np.arange(len(gap.mean)), series_colour(number)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.errorbar(layers, gap.mean, (gap.mean - gap.low, gap.high - gap.mean), color=colour, capsize=2)
        looks = {f"adjusted p < {THRESHOLD}": colour, "not significant": "white"}
        for (label, fill), chosen in zip(looks.items(), (gap.is_significant, ~gap.is_significant), strict=True):
            if chosen.any():
                look = {"color": colour, "markerfacecolor": fill, "label": label}
                axes.plot(layers[chosen], gap.mean[chosen], "o", **look)
        axes.set_title(f"{pair[0]} minus {pair[1]}: {gap.test}, {gap.n}")
        axes.set_ylabel("gap of alignment")
        axes.legend(fontsize=8)
    layer_axis(panels[-1])
    entitle(figure, f"{name}: alignment of one class minus that of another", "Bars: 95 % interval of the test.")
    return figure


@styled
def change_figure(title: str, change: ProfileEstimate) -> Figure:
    """Draw how the alignment and its steps differ between two checkpoints."""
    figure = Figure(figsize=(7.5, 6.0))
    panels = figure.subplots(2, sharex=True)
    parts = {
        "difference of alignment": (change.alignment, change.alignment_interval),
        "difference of gradient": (change.steps, change.steps_interval),
    }
    for axes, (label, (values, interval)), colour in zip(panels, parts.items(), SUBSET_COLOURS, strict=False):
        layers = np.arange(len(values))
        line_with_band(axes, layers, values, *interval, **_look(layers, colour))
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel(label)
    layer_axis(panels[1])
    entitle(figure, title, _BAND)
    return figure


@styled
def loss_figure(name: str, table: pd.DataFrame, correlations: pd.DataFrame) -> Figure:
    """Draw each summary of a profile against the training loss, checkpoint by checkpoint."""
    figure = Figure(figsize=(9, 6.5))
    panels = figure.subplots(2, -(-len(SUMMARIES) // 2)).ravel()
    for axes, (summary, found) in zip(panels, correlations.iterrows(), strict=True):
        axes.plot(table["loss"], table[summary], color="0.8", linewidth=1, zorder=1)
        axes.scatter(table["loss"], table[summary], c=np.arange(len(table)), cmap=SEQUENTIAL, zorder=2)
        axes.set_title(f"{summary}: Spearman {found['spearman']:.2f}, Pearson {found['pearson']:.2f}")
        axes.set_xlabel("training loss", color=LOSS_COLOUR)
    entitle(figure, f"{name}: convergence and loss", f"{len(table)} checkpoints, from dark (first) to light (last).")
    return figure


def _look(x: np.ndarray, colour: str) -> dict[str, Any]:
    return {"color": colour, "marker": "o", "markersize": 4 if len(x) <= _MAX_MARKED else 0, "band_alpha": 0.25}
