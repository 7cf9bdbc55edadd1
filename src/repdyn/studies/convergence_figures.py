"""Figures of the study of convergence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from repdyn.figures.drawing import entitle
from repdyn.studies.convergence_estimates import ANY_STEP, SUMMARIES, THRESHOLD
from repdyn.studies.convergence_measurements import FALLS
from repdyn.studies.panels import facets, layer_axis, line_with_band, series_colour
from repdyn.studies.study import select
from repdyn.tables.style import LOSS_COLOUR, SEQUENTIAL, SUBSET_COLOURS, styled

RELATIVE_DEPTH = "relative depth (layer / last layer)"
_BARS = "#9ecae1"
_BAND = "Band: 95 % interval of a bootstrap over sequences."
_MAX_MARKED = 40
_MOST_TICKS = 16


@styled
def profile_figure(profiles: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw alignment against depth, a line for each model; against layers if all have the same number of them."""
    figure = Figure(figsize=(7.5, 4.5))
    axes = figure.subplots()
    same_depth = len({len(table) for table in profiles.values()}) == 1
    for number, (name, table) in enumerate(profiles.items()):
        depth = table["layer"] / (1 if same_depth else len(table) - 1)
        _draw_profile(axes, table, "alignment", depth, color=series_colour(number), label=name)
    if same_depth:
        layer_axis(axes)
    else:
        axes.set_xlabel(RELATIVE_DEPTH)
    axes.set_ylabel("mean cosine to the last layer")
    axes.legend()
    entitle(figure, "Alignment with the last layer", _BAND)
    return figure


def steps_figure(profiles: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the steps of each profile in a panel of its own, with their isotonic fit and their lower envelope."""

    def draw(axes: Axes, table: pd.DataFrame) -> None:
        steps = table.head(-1)
        bars = {"color": _BARS, "capsize": 3, "label": "gradient"}
        axes.bar(steps["layer"], steps["gradient"], 0.6, yerr=_errors(steps, "gradient"), **bars)
        axes.axhline(float(np.mean(steps["gradient"])), color="0.5", linestyle=":", label="average rate")
        look: dict[str, Any] = {"edges": np.arange(len(steps) + 1) - 0.5, "baseline": None, "linewidth": 2, "zorder": 3}
        axes.stairs(steps["isotonic_fit"], color=SUBSET_COLOURS[0], label="isotonic fit", **look)
        axes.stairs(steps["lower_envelope"], color=LOSS_COLOUR, linestyle="--", label="lower envelope", **look)
        axes.axhline(0, color="black", linewidth=0.8)
        layer_axis(axes)

    caption = "Bars: 95 % interval of a bootstrap over sequences."
    label = "gradient: alignment gained\nfrom this layer to the next"
    return facets("Steps of the alignment", caption, profiles, draw, label)


def bound_figure(profiles: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the gradient of each layer against its alignment, with the largest non-decreasing function below it."""

    def draw(axes: Axes, table: pd.DataFrame) -> None:
        steps = table.head(-1).sort_values("alignment")
        edges = [min(0.0, steps["alignment"].iloc[0]), *steps["alignment"]]
        axes.stairs(steps["bound"], edges, baseline=None, color=LOSS_COLOUR, linewidth=2, label="bound f")
        axes.plot(steps["alignment"], steps["gradient"], "o", color=SUBSET_COLOURS[0], label="a layer, by its number")
        _number(axes, steps["layer"], steps["alignment"], steps["gradient"])
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xlabel("alignment of the layer, A")

    caption = "The bound f is the largest non-decreasing function with G >= f(A)."
    return facets("Gradient against alignment", caption, profiles, draw, "gradient to the next layer, G")


def falls_figure(tables: Mapping[str, pd.DataFrame], marked: Sequence[str]) -> Figure:
    """Draw the share of each model's tokens that fall at each step and at any, by size, with some classes as marks."""

    def draw(axes: Axes, table: pd.DataFrame) -> None:
        places = {layer: place for place, layer in enumerate(table["layer"].unique())}
        for number, size in enumerate(FALLS):
            shown = select(table, more_than=size, **{"class": "all"})
            look: dict[str, Any] = {"yerr": _errors(shown, "share"), "ecolor": "0.4"}
            look |= {"color": (_BARS, SUBSET_COLOURS[0])[number], "label": f"all tokens, by more than {size:g}"}
            axes.bar(range(len(shown)), shown["share"], 0.7 - 0.3 * number, **look)
        for number, of_class in enumerate(name for name in marked if name in set(table["class"])):
            rows = select(table, more_than=FALLS[0], **{"class": of_class})
            marks = {"marker": "<>^vsDPX*"[number % 9], "color": f"C{number + 1}", "s": 22, "zorder": 3}
            axes.scatter([places[layer] for layer in rows["layer"]], rows["share"], label=of_class, **marks)
        every = -(-len(places) // _MOST_TICKS)
        shown = [(place, layer) for layer, place in places.items() if place % every == 0 or layer == ANY_STEP]
        axes.set_xticks([place for place, _ in shown], [f"{layer}" for _, layer in shown])
        axes.set_xlabel("layer before the step; any: at least one step")

    caption = "Marks: falls of any size, by class. Grey lines: 95 % interval of a bootstrap over sequences."
    label = "share of tokens whose cosine\nto the final vector falls"
    return facets("Tokens that do not approach their final vector", caption, tables, draw, label)


def levels_figure(tables: Mapping[str, pd.DataFrame], pairs: Sequence[tuple[str, str]]) -> Figure:
    """Draw the alignment of classes that are compared, a panel for each pair and all models in each."""

    def draw(axes: Axes, pair: tuple[str, str]) -> None:
        for number, (name, table) in enumerate(tables.items()):
            for of_class, dashes in zip(pair, ("-", "--"), strict=True):
                rows = select(table, **{"class": of_class})
                look = {"color": series_colour(number), "linestyle": dashes, "label": f"{name}, {of_class}"}
                _draw_profile(axes, rows, "alignment", rows["layer"] / max(1, len(rows) - 1), **look)
        axes.set_xlabel(RELATIVE_DEPTH)

    panels = {" and ".join(pair): pair for pair in pairs}
    return facets("Alignment by class", _BAND, panels, draw, "mean cosine to the last layer", legends=True)


@styled
def skipped_figure(skipped: Mapping[str, pd.DataFrame], profiles: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw final alignment and loss without each block against the gradient that the block adds, a column a model."""
    figure = Figure(figsize=(2.5 + 3.4 * len(skipped), 6.4))
    grid = figure.subplots(2, len(skipped), sharey="row", squeeze=False)
    for panels, (name, table) in zip(grid.T, skipped.items(), strict=True):
        without = table.tail(-1)
        gradient = profiles[name]["gradient"].to_numpy()[without["layer"]]
        for axes, column in zip(panels, ("final_alignment", "loss"), strict=True):
            axes.plot(gradient, without[column], "o", color=SUBSET_COLOURS[0])
            _number(axes, without["layer"] + 1, gradient, without[column])
            axes.set_xlabel("gradient that the block adds, G")
            axes.axhline(table[column].iloc[0], color="0.5", linestyle=":", label="whole model")
        panels[0].set_title(name)
        if reason := table["reason"].iloc[0]:
            panels[1].set_xticks([])
            panels[1].text(0.5, 0.5, f"no loss:\n{reason}", transform=panels[1].transAxes, ha="center", wrap=True)
    grid[0, 0].set_ylabel("cosine of the last states to\nthose of the whole model")
    grid[1, 0].set_ylabel("loss")
    grid[0, 0].legend(fontsize=8)
    entitle(figure, "What is lost without one block", "Numbers: the block left out, from 1.")
    return figure


@styled
def gap_figure(name: str, gaps: Mapping[tuple[str, str], pd.DataFrame]) -> Figure:
    """Draw a panel for each pair of classes; markers are filled where the gap is significant."""
    figure = Figure(figsize=(7.5, 1.2 + 2.4 * len(gaps)))
    panels = figure.subplots(len(gaps), sharex=True, sharey=True, squeeze=False)[:, 0]
    for number, (axes, ((first, second), gap)) in enumerate(zip(panels, gaps.items(), strict=True)):
        colour, is_significant = series_colour(number), gap["p_holm"].to_numpy(float) < THRESHOLD
        axes.axhline(0, color="black", linewidth=0.8)
        axes.errorbar(gap["layer"], gap["gap"], _errors(gap, "gap"), color=colour, capsize=2)
        looks = {f"adjusted p < {THRESHOLD}": colour, "not significant": "white"}
        for (label, fill), chosen in zip(looks.items(), (is_significant, ~is_significant), strict=True):
            if chosen.any():
                look = {"color": colour, "markerfacecolor": fill, "label": label}
                axes.plot(gap["layer"][chosen], gap["gap"][chosen], "o", **look)
        axes.set(title=f"{first} minus {second}: {gap['test'].iloc[0]}, {gap['n'].iloc[0]}", ylabel="gap of alignment")
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
        _draw_profile(axes, change.dropna(subset=column), column, color=colour)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel(f"difference of {column}")
    layer_axis(panels[1])
    entitle(figure, title, _BAND)
    return figure


@styled
def correlation_figure(run: str, scalar: str, table: pd.DataFrame, correlations: pd.DataFrame) -> Figure:
    """Draw each summary of a profile against a scalar of the run, checkpoint by checkpoint."""
    columns = -(-len(SUMMARIES) // 2)
    figure = Figure(figsize=(1 + 4 * columns, 6.5))
    panels = figure.subplots(2, columns).ravel()
    for unused in panels[len(SUMMARIES) :]:
        unused.remove()
    for axes, (summary, found) in zip(panels, correlations.set_index("summary").iterrows(), strict=False):
        axes.plot(table["value"], table[summary], color="0.8", linewidth=1, zorder=1)
        axes.scatter(table["value"], table[summary], c=np.arange(len(table)), cmap=SEQUENTIAL, zorder=2)
        axes.set_title(f"{summary}:\nSpearman {found['spearman']:.2f}, Pearson {found['pearson']:.2f}")
        axes.set_xlabel(scalar, color=LOSS_COLOUR)
    caption = f"{len(table)} checkpoints, from dark (first) to light (last)."
    entitle(figure, f"{run}: convergence and {scalar}", caption)
    return figure


def _draw_profile(axes: Axes, table: pd.DataFrame, column: str, x: ArrayLike | None = None, **look: Any) -> None:
    look |= {"marker": "o", "markersize": 4 if len(table) <= _MAX_MARKED else 0, "band_alpha": 0.25}
    line_with_band(axes, table, column, x=x, **look)


def _errors(table: pd.DataFrame, column: str) -> np.ndarray:
    """Return the distances of the ends of an interval to the value, (2, n)."""
    return np.maximum((table[column] - table[f"{column}_low"], table[f"{column}_high"] - table[column]), 0)


def _number(axes: Axes, numbers: ArrayLike, x: ArrayLike, y: ArrayLike) -> None:
    """Write a number beside each point, unless that of another point is there."""
    places = np.column_stack([np.asarray(x, float), np.asarray(y, float)])
    room = np.ptp(places, axis=0) * (0.04, 0.05)
    taken: list[np.ndarray] = []
    for number, place in zip(np.asarray(numbers), places, strict=True):
        if not any((np.abs(place - other) < room).all() for other in taken):
            taken.append(place)
            axes.annotate(f"{number}", tuple(place), (4, 4), textcoords="offset points", fontsize=8)
