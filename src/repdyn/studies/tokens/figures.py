"""Pictures of tokens against the vocabulary: a sentence's ways through the layers, and what a text shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from repdyn.figures.drawing import entitle
from repdyn.studies.tokens.text import NEIGHBOURS
from repdyn.tables.style import SEQUENTIAL, SUBSET_COLOURS, styled

STATES = {"attention": "after the attention", "block": "after the block (0: what enters the first)"}
COLOURS = {"function": SUBSET_COLOURS[0], "content": SUBSET_COLOURS[3]}
_QUANTITIES = {"cosine": "cosine to the own input embedding", "rank": "closer rows of the vocabulary (rank)"}
# more cells than that hold no text
_MAX_CELLS = 400
_MAX_NAMED = 20


@styled
def trajectory_figure(name: str, sentence: str, table: pd.DataFrame, quantity: str, about: str) -> Figure:
    """One line for each token across the layers, after attention and after the block.

    Args:
        name: of the model.
        sentence: what was typed.
        table: of one stack, as in :class:`repdyn.studies.tokens.sentence.Trajectories`.
        quantity: "cosine" or "rank".
        about: what the vocabulary was, for the caption.
    """
    figure = Figure(figsize=(11, 5.2))
    states = _states(table)
    panels = figure.subplots(1, len(states), sharex=True, sharey=True, squeeze=False)[0]
    looks = list(_looks(len(set(table["position"]))))
    for axes, state in zip(panels, states, strict=True):
        of_state = only(table, "state", state)
        for (_, line), look in zip(of_state.groupby("position"), looks, strict=True):
            axes.plot(line["layer"], line[quantity], label=line["token"].iloc[0], **look)
        axes.set_title(STATES[state])
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if quantity == "rank":
        _rank_axis(panels[0], max(table["rank"]))
    panels[0].set_ylabel(_QUANTITIES[quantity])
    if len(looks) <= _MAX_NAMED:
        figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside right center", fontsize=9)
    entitle(figure, f"{name}: {sentence}", about)
    return figure


def _looks(n_tokens: int) -> Iterator[dict[str, Any]]:
    """Colours that are told apart, or that follow the sentence where there are many tokens."""
    palette = colormaps["tab10" if n_tokens <= 10 else "tab20" if n_tokens <= _MAX_NAMED else SEQUENTIAL]
    for number in range(n_tokens):
        colour = palette(number) if n_tokens <= _MAX_NAMED else palette(number / (n_tokens - 1))
        yield {"color": colour, "marker": "o", "markersize": 3, "linewidth": 1.4}


@styled
def heatmap(name: str, sentence: str, table: pd.DataFrame, nearest: pd.DataFrame, about: str) -> Figure:
    """Tokens by layers, after the block: colour for the cosine, in each cell the nearest token of the vocabulary.

    Args:
        name, sentence, about: as for :func:`trajectory_figure`.
        table, nearest: of one stack, as in :class:`repdyn.studies.tokens.sentence.Trajectories`.
    """
    of_blocks = only(table, "state", "block")
    cosines = of_blocks.pivot(index="position", columns="layer", values="cosine")
    first = only(only(nearest, "state", "block"), "place", 1)
    names = first.pivot(index="position", columns="layer", values="nearest")
    n_tokens, n_layers = cosines.shape
    figure = Figure(figsize=(min(2.2 + 0.85 * n_layers, 16), 1.8 + 0.32 * n_tokens))
    axes = figure.subplots()
    shown = axes.imshow(cosines, cmap=SEQUENTIAL, aspect="auto", interpolation="nearest")
    axes.grid(False)
    axes.set_yticks(range(n_tokens), of_blocks.groupby("position")["token"].first())
    axes.set_xticks(range(n_layers), cosines.columns)
    axes.set_xlabel("layer")
    figure.colorbar(shown, ax=axes, label=_QUANTITIES["cosine"])
    if cosines.size <= _MAX_CELLS:
        middle = np.nanmean([cosines.to_numpy().min(), cosines.to_numpy().max()])
        for (row, column), cosine in np.ndenumerate(cosines.to_numpy()):
            colour = "black" if cosine > middle else "white"
            text = str(names.iloc[row, column])[:10]
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=7, parse_math=False)
    cells = " Cells: nearest token of the vocabulary." if cosines.size <= _MAX_CELLS else ""
    entitle(figure, f"{name}: {sentence}", about + cells)
    return figure


@styled
def class_figure(name: str, text: str, table: pd.DataFrame) -> Figure:
    """Function words and content words across the layers of one stack: mean cosine, ranks, and the share of rank 0."""
    states = _states(table)
    figure = Figure(figsize=(11, 9))
    panels = figure.subplots(3, len(states), sharex=True, sharey="row", squeeze=False)
    for column, state in enumerate(states):
        cosine, rank, kept = panels[:, column]
        for label, lines in only(table, "state", state).groupby("class", sort=False):
            layers, colour = lines["layer"].to_numpy(), COLOURS[str(label)]
            look = {"marker": "o", "markersize": 3.5, "color": colour}
            count = f"{label} words ({lines['tokens'].iloc[0]:,} tokens)"
            cosine.plot(layers, lines["cosine"].to_numpy(), label=count, **look)
            rank.plot(layers, lines["rank"].to_numpy(), **look)
            bounds = lines["rank_q25"].to_numpy(), lines["rank_q75"].to_numpy()
            rank.fill_between(layers, *bounds, color=colour, alpha=0.18, linewidth=0)
            kept.plot(layers, lines["kept"].to_numpy(), **look)
        cosine.set_title(STATES[state])
        kept.set_xlabel("layer")
        kept.set_ylim(0, 1.03)
        kept.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0, 0].set_ylabel("mean cosine to the\nown input embedding")
    panels[1, 0].set_ylabel("closer rows of the\nvocabulary (rank)")
    panels[2, 0].set_ylabel("share of rank 0")
    _rank_axis(panels[1, 0], max(table["rank_q75"]))
    panels[0, -1].legend()
    entitle(figure, f"{name}: words of {text}", "Ranks: median, and the band from the first to the third quartile.")
    return figure


@styled
def step_figure(name: str, text: str, table: pd.DataFrame) -> Figure:
    """Mean cosine between the steps of two tokens, within a sequence and between sequences, layer by layer."""
    figure = Figure(figsize=(7.5, 4.2))
    axes = figure.subplots()
    looks = {"within": ("of one sequence", SUBSET_COLOURS[0]), "between": ("of different sequences", SUBSET_COLOURS[1])}
    for column, (label, colour) in looks.items():
        axes.plot(table["layer"] + 0.5, table[column], marker="o", markersize=4, color=colour, label=label)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel("between layers")
    axes.set_ylabel("mean cosine of two tokens' steps")
    axes.set_ylim(min(0.0, 1.1 * float(table[["within", "between"]].min(axis=None))), 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    entitle(figure, f"{name}: do tokens move together?", f"Steps from one layer to the next, {text}; 1: all alike.")
    return figure


@styled
def density_figure(name: str, text: str, table: pd.DataFrame) -> Figure:
    """How crowded it is around the input embeddings of function words and of content words, and against frequency."""
    figure = Figure(figsize=(11, 4.4))
    left, right = figure.subplots(1, 2, sharey=True)
    edges = np.histogram_bin_edges(table["density"], bins=24)
    for label, rows in table.groupby("class", sort=False):
        colour, count = COLOURS[str(label)], f"{label} words ({len(rows):,} tokens of the vocabulary)"
        shares = np.full(len(rows), 1 / len(rows))
        values = rows["density"].to_numpy()
        left.hist(values, edges, weights=shares, orientation="horizontal", color=colour, alpha=0.55, label=count)
        right.scatter(rows["count"], rows["density"], s=9, color=colour, alpha=0.6, linewidths=0)
    left.set_xlabel("share of the class")
    left.set_ylabel(f"mean cosine to the {NEIGHBOURS} nearest other rows")
    left.legend()
    right.set_xscale("log")
    right.set_xlabel("occurrences in the text")
    entitle(figure, f"{name}: how crowded the input embeddings are", f"Tokens of {text}.")
    return figure


def _rank_axis(axes: Axes, highest: float) -> None:
    """Logarithmic from 1 on, with 0 below it."""
    axes.set_yscale("symlog", linthresh=1, linscale=0.3)
    axes.set_ylim(-0.15, max(2.0, 1.5 * highest))
    powers = [10.0**power for power in range(9) if 10.0**power <= axes.get_ylim()[1]]
    axes.set_yticks([0, *powers], ["0", *(f"{power:,.0f}" for power in powers)])
    axes.yaxis.set_minor_locator(NullLocator())


def _states(table: pd.DataFrame) -> list[str]:
    return [state for state in STATES if state in set(table["state"])]


def only(table: pd.DataFrame, column: str, value: object) -> pd.DataFrame:
    """The lines with a value; None stands for none."""
    return cast(pd.DataFrame, table[table[column].isna() if value is None else table[column] == value])
