"""Draw alignment profiles, their steps, gaps between classes, changes between checkpoints, and the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from repdyn.figures.drawing import entitle
from repdyn.studies.convergence.profiles import SUMMARIES, ProfileEstimate
from repdyn.studies.convergence.resampling import THRESHOLD
from repdyn.studies.output import layer_axis, line_with_band, series_colour
from repdyn.tables.style import LOSS_COLOUR, SEQUENTIAL, SUBSET_COLOURS, styled

_BARS = "#9ecae1"
_BAND = "Band: 95 % interval of a bootstrap over sequences."
_MAX_MARKED = 40


@styled
def profile_figure(profiles: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw alignment against depth, a line for each model; against layers if all have the same number of them.

    Args:
        profiles: tables of :class:`repdyn.studies.convergence.profiles.ProfileEstimate`, by model.
    """
    figure = Figure(figsize=(7.5, 4.5))
    axes = figure.subplots()
    same_depth = len({len(table) for table in profiles.values()}) == 1
    for number, (name, table) in enumerate(profiles.items()):
        depth = table["layer"] / (1 if same_depth else len(table) - 1)
        _draw_profile(axes, depth, table, "alignment", series_colour(number), label=name)
    if same_depth:
        layer_axis(axes)
    else:
        axes.set_xlabel("relative depth (layer / last layer)")
    axes.set_ylabel("mean cosine to the last layer")
    axes.legend()
    entitle(figure, "Alignment with the last layer", _BAND)
    return figure


@styled
def gradient_figure(name: str, profile: ProfileEstimate) -> Figure:
    """Draw the steps of a profile, with their isotonic fit and their lower envelope."""
    figure = Figure(figsize=(7.5, 4.5))
    axes = figure.subplots()
    steps = profile.table.head(-1)
    errors = steps["gradient"] - steps["gradient_low"], steps["gradient_high"] - steps["gradient"]
    bars = {"color": _BARS, "capsize": 3, "label": "gradient"}
    axes.bar(steps["layer"], steps["gradient"], 0.6, yerr=np.maximum(errors, 0), **bars)
    axes.axhline(profile.rate, color="0.5", linestyle=":", label=f"average rate {profile.rate:.4f}")
    look: dict[str, Any] = {"baseline": None, "linewidth": 2, "zorder": 3}
    edges = np.arange(len(steps) + 1) - 0.5
    axes.stairs(steps["isotonic_fit"], edges, color=SUBSET_COLOURS[0], label="isotonic fit", **look)
    axes.stairs(steps["lower_envelope"], edges, color=LOSS_COLOUR, linestyle="--", label="lower envelope", **look)
    axes.axhline(0, color="black", linewidth=0.8)
    layer_axis(axes)
    axes.set_ylabel("gradient: alignment gained\nfrom this layer to the next")
    axes.legend()
    entitle(figure, f"{name}: steps of the alignment", "Bars: 95 % interval of a bootstrap over sequences.")
    return figure


@styled
def gap_figure(name: str, gaps: Mapping[tuple[str, str], pd.DataFrame]) -> Figure:
    """Draw a panel for each pair of classes; markers are filled where the gap is significant.

    Args:
        name: of the model.
        gaps: from :func:`repdyn.studies.convergence.resampling.class_gaps`.
    """
    figure = Figure(figsize=(7.5, 1.2 + 2.4 * len(gaps)))
    panels = figure.subplots(len(gaps), sharex=True, squeeze=False)[:, 0]
    for number, (axes, ((first, second), gap)) in enumerate(zip(panels, gaps.items(), strict=True)):
        colour, is_significant = series_colour(number), gap["p_holm"].to_numpy(float) < THRESHOLD
        errors = gap["gap"] - gap["gap_low"], gap["gap_high"] - gap["gap"]
        axes.axhline(0, color="black", linewidth=0.8)
        axes.errorbar(gap["layer"], gap["gap"], errors, color=colour, capsize=2)
        looks = {f"adjusted p < {THRESHOLD}": colour, "not significant": "white"}
        for (label, fill), chosen in zip(looks.items(), (is_significant, ~is_significant), strict=True):
            if chosen.any():
                look = {"color": colour, "markerfacecolor": fill, "label": label}
                axes.plot(gap["layer"][chosen], gap["gap"][chosen], "o", **look)
        axes.set_title(f"{first} minus {second}: {gap['test'].iloc[0]}, {gap['n'].iloc[0]}")
        axes.set_ylabel("gap of alignment")
        axes.legend(fontsize=8)
    layer_axis(panels[-1])
    entitle(figure, f"{name}: alignment of one class minus that of another", "Bars: 95 % interval of the test.")
    return figure


@styled
def change_figure(title: str, change: pd.DataFrame) -> Figure:
    """Draw how the alignment and its steps differ between two checkpoints."""
    figure = Figure(figsize=(7.5, 6.0))
    panels = figure.subplots(2, sharex=True)
    for axes, column, colour in zip(panels, ("alignment", "gradient"), SUBSET_COLOURS, strict=False):
        rows = change.dropna(subset=column)
        _draw_profile(axes, rows["layer"], rows, column, colour)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel(f"difference of {column}")
    layer_axis(panels[1])
    entitle(figure, title, _BAND)
    return figure


@styled
def loss_figure(name: str, table: pd.DataFrame, correlations: pd.DataFrame, loss: str) -> Figure:
    """Draw each summary of a profile against the loss of that title, checkpoint by checkpoint."""
    figure = Figure(figsize=(9, 6.5))
    panels = figure.subplots(2, -(-len(SUMMARIES) // 2)).ravel()
    for axes, (summary, found) in zip(panels, correlations.iterrows(), strict=True):
        axes.plot(table["loss"], table[summary], color="0.8", linewidth=1, zorder=1)
        axes.scatter(table["loss"], table[summary], c=np.arange(len(table)), cmap=SEQUENTIAL, zorder=2)
        axes.set_title(f"{summary}: Spearman {found['spearman']:.2f}, Pearson {found['pearson']:.2f}")
        axes.set_xlabel(loss, color=LOSS_COLOUR)
    entitle(figure, f"{name}: convergence and loss", f"{len(table)} checkpoints, from dark (first) to light (last).")
    return figure


def _draw_profile(axes: Axes, x: ArrayLike, table: pd.DataFrame, column: str, colour: str, **look: Any) -> None:
    look |= {"color": colour, "marker": "o", "markersize": 4 if len(table) <= _MAX_MARKED else 0, "band_alpha": 0.25}
    line_with_band(axes, x, table[column], table[f"{column}_low"], table[f"{column}_high"], **look)
