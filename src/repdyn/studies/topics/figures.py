"""Pictures of a study of topics: gaps over depth beside their controls, and the gap of every head."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from repdyn.figures.drawing import entitle
from repdyn.studies.topics.gaps import AttentionGap, Gap
from repdyn.studies.topics.measured import TABLE, TopicMeasurements
from repdyn.tables.style import DIVERGING, SUBSET_COLOURS, styled

TELLING = 3.0
"""Standard errors from 0, from which on a head's gap is printed in bold."""
_MOST_NUMBERS = 16
"""Heads beside each other that leave room for a number in each cell."""
_EVEN = "times even attention"


@styled
def depth_figure(found: Mapping[str, TopicMeasurements]) -> Figure:
    """Gaps of the embeddings, and of the attention beyond its control, one line for each model."""
    figure = Figure(figsize=(9.5, 4.6))
    left, right = figure.subplots(1, 2)
    for number, (name, one) in enumerate(found.items()):
        colour = f"C{number % 10}" if number >= len(SUBSET_COLOURS) else SUBSET_COLOURS[number]
        _embeddings(left, one, name, colour)
        _attention(right, one, colour)
    left.set_ylabel("gap of the cosine")
    right.set_ylabel(f"gap of the attention minus control,\nmean over heads, {_EVEN}")
    for axes in (left, right):
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(fontsize=8)
    entitle(
        figure,
        "Topic gaps: words of one topic minus words of different topics",
        "Left: solid as the topics are, dashed with the topics of other documents (band: its standard deviation over "
        "them); square: input embeddings, each word once (bar: the same). Right: bars of two standard errors.",
    )
    return figure


@styled
def heads_figure(name: str, one: TopicMeasurements) -> Figure:
    """The gap of each head of each layer minus its control, as a multiple of even attention."""
    gaps = {layer: gap for layer, gap in one.attention.items() if isinstance(gap, AttentionGap)}
    n_heads = max(len(gap.value) for gap in gaps.values())
    values, errors = (np.full((len(gaps), n_heads), np.nan) for _ in range(2))
    for row, gap in enumerate(gaps.values()):
        values[row, : len(gap.value)], errors[row, : len(gap.value)] = gap.difference, gap.error
    values, errors = values * one.length, errors * one.length
    figure = Figure(figsize=(min(11.0, 2.5 + 0.6 * n_heads), 1.8 + 0.4 * len(gaps)))
    axes = figure.subplots()
    limit = float(np.nanmax(np.abs(values))) or 1.0
    image = axes.imshow(values, cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto", origin="lower")
    figure.colorbar(image, ax=axes, label=f"gap minus control,\n{_EVEN}")
    axes.grid(False)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_yticks(range(len(gaps)), [str(layer) for layer in gaps])
    if n_heads <= _MOST_NUMBERS:
        _numbers(axes, values, errors, limit)
    entitle(figure, f"{name}: topic gap of each head", f"Bold: {TELLING:g} standard errors from 0, or more.")
    return figure


def _embeddings(axes: Axes, one: TopicMeasurements, name: str, colour: str) -> None:
    gaps = {layer: gap for (layer, product), gap in one.embeddings.items() if product == "cosine"}
    layers = {layer: gap for layer, gap in gaps.items() if isinstance(layer, int) and isinstance(gap, Gap)}
    places = list(layers)
    control, spread = (np.array([getattr(gap, of) for gap in layers.values()]) for of in ("control", "control_std"))
    axes.plot(places, [gap.value for gap in layers.values()], color=colour, marker="o", markersize=4, label=name)
    axes.plot(places, control, color=colour, linestyle="--", linewidth=1.2)
    axes.fill_between(places, control - spread, control + spread, color=colour, alpha=0.18, linewidth=0)
    if isinstance(table := gaps.get(TABLE), Gap):
        axes.errorbar([-0.35], [table.value], table.control_std, color=colour, marker="s", markersize=5, capsize=2)


def _attention(axes: Axes, one: TopicMeasurements, colour: str) -> None:
    means = {layer: gap.mean_over_heads for layer, gap in one.attention.items() if isinstance(gap, AttentionGap)}
    values, errors = (
        np.array([getattr(gap, of)[0] for gap in means.values()]) * one.length for of in ("difference", "error")
    )
    axes.errorbar(list(means), values, 2 * errors, color=colour, marker="o", markersize=4, capsize=2)


def _numbers(axes: Axes, values: np.ndarray, errors: np.ndarray, limit: float) -> None:
    for (row, column), value in np.ndenumerate(values):
        weight = "bold" if abs(value) >= TELLING * errors[row, column] else "normal"
        colour = "white" if abs(value) > 0.6 * limit else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour, weight=weight)
