"""Pictures of sentence vectors over the layers: paraphrases, changes, and the cosines of a collection."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from repdyn.figures.drawing import entitle
from repdyn.studies.sentences.changes import ALL_KINDS
from repdyn.studies.sentences.results import WORDS
from repdyn.studies.sentences.vectors import FIRST, KINDS, LAST, MEAN
from repdyn.tables.style import styled

_COLOURS = {FIRST: "#CC79A7", MEAN: "#0072B2", LAST: "#E69F00"}
_WITHIN, _BETWEEN = "#009E73", "#D55E00"
SIGNIFICANT = 0.05


@styled
def separation_figure(name: str, table: pd.DataFrame) -> Figure:
    """Cosines within and between groups for each kind of vector, and how well they tell groups apart.

    Args:
        name: of the model, or of one stack of it.
        table: of :func:`repdyn.studies.sentences.results.separation_table`, one stack and the line of words.
    """
    of_vectors, words = table.loc[table["vector"] != WORDS], table.loc[table["vector"] == WORDS].iloc[0]
    kinds = _kinds(of_vectors)
    figure = Figure(figsize=(3.4 * (len(kinds) + 1) + 0.6, 4.2))
    panels = figure.subplots(1, len(kinds) + 1, squeeze=False)[0]
    lowest = float(of_vectors[["within_low", "between_low"]].to_numpy(float).min())
    for panel, kind in zip(panels, kinds, strict=False):
        rows = of_vectors.loc[of_vectors["vector"] == kind]
        for column, colour, label in (
            ("within", _WITHIN, "paraphrases"),
            ("between", _BETWEEN, "other sentences"),
        ):
            _band(panel, rows, column, colour, label)
        panel.set_title(f"cosine: {kind}")
        panel.set_ylim(min(0.0, lowest) - 0.02, 1.02)
    panels[0].legend(loc="lower left")
    for kind in kinds:
        _band(panels[-1], of_vectors.loc[of_vectors["vector"] == kind], "probability", _COLOURS[kind], kind)
    panels[-1].axhline(words.to_dict()["probability"], color="0.4", linestyle="--", linewidth=1, label=WORDS)
    panels[-1].set_title("paraphrases are closer: how often")
    panels[-1].set_ylim(0.45, 1.02)
    panels[-1].legend(loc="lower right")
    _layers(panels)
    entitle(figure, f"{name}: paraphrases against other sentences", "bands: 95 % of a bootstrap over groups")
    return figure


@styled
def change_figure(name: str, table: pd.DataFrame) -> Figure:
    """How alike the differences of one kind of change are over the layers, a panel for each kind of vector.

    Args:
        name: of the model, or of one stack of it.
        table: of :func:`repdyn.studies.sentences.results.change_table`, of one stack.
    """
    vectors, changes = _kinds(table), [change for change in table["change"].unique() if change != ALL_KINDS]
    figure = Figure(figsize=(3.7 * len(vectors) + 1.4, 4.4))
    panels = figure.subplots(1, len(vectors), squeeze=False, sharey=True)[0]
    for panel, vector in zip(panels, vectors, strict=True):
        rows = table.loc[table["vector"] == vector]
        for number, change in enumerate(changes):
            one = rows.loc[rows["change"] == change]
            colour = to_hex(colormaps["tab10"](number % 10))
            panel.plot(one["layer"], one["within"], color=colour, label=change)
            clear = one["p"] < SIGNIFICANT
            panel.plot(one["layer"].where(clear), one["within"].where(clear), "o", color=colour, markersize=5)
            panel.plot(
                one["layer"].where(~clear), one["within"].where(~clear), "o", color=colour, markersize=5, mfc="white"
            )
        across = rows.loc[rows["change"] == ALL_KINDS]
        panel.plot(across["layer"], across["across"], color="0.4", linestyle="--", label="different kinds")
        panel.axhline(0, color="0.7", linewidth=0.8, zorder=0)
        panel.set_title(vector)
    panels[0].set_ylabel("mean cosine of two differences")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    _layers(panels)
    caption = f"hollow: not larger than across kinds (p >= {SIGNIFICANT}, permutation test, not corrected)"
    entitle(figure, f"{name}: does one kind of change move sentences one way?", caption)
    return figure


@styled
def collection_figure(name: str, source: str, table: pd.DataFrame, histograms: pd.DataFrame) -> Figure:
    """Cosines of all pairs of texts: quantiles over the layers, and the whole distribution at the last.

    Args:
        name: of the model, or of one stack of it.
        source: of the texts.
        table, histograms: of :mod:`repdyn.studies.sentences.results`, of one stack.
    """
    kinds = _kinds(table)
    figure = Figure(figsize=(3.4 * (len(kinds) + 1) + 0.6, 4.2))
    panels = figure.subplots(1, len(kinds) + 1, squeeze=False)[0]
    lowest = min(0.0, table["q01"].to_numpy(float).min())
    for panel, kind in zip(panels, kinds, strict=False):
        rows, colour = table.loc[table["vector"] == kind], _COLOURS[kind]
        for low, high, shade in (("q01", "q99", 0.12), ("q05", "q95", 0.2), ("q25", "q75", 0.3)):
            panel.fill_between(rows["layer"], rows[low], rows[high], color=colour, alpha=shade, linewidth=0)
        panel.plot(rows["layer"], rows["median"], color=colour)
        panel.axhline(0, color="0.5", linewidth=0.8)
        panel.set_ylim(lowest - 0.03, 1.02)
        panel.set_title(f"cosine: {kind}")
    last = table["layer"].to_numpy(int).max()
    for kind in kinds:
        rows = histograms.loc[(histograms["vector"] == kind) & (histograms["layer"] == last)]
        heights, edges = rows["count"].to_numpy(float), np.append(rows["low"], rows["high"].iloc[-1])
        panels[-1].stairs(heights / heights.max(), edges, color=_COLOURS[kind], fill=True, alpha=0.35, label=kind)
        panels[-1].stairs(heights / heights.max(), edges, color=_COLOURS[kind])
    panels[-1].axvline(0, color="0.5", linewidth=0.8)
    panels[-1].set_yticks([])
    panels[-1].set_xlabel(f"cosine at layer {last}")
    panels[-1].set_title("the last layer")
    panels[-1].legend()
    _layers(panels[:-1])
    pairs = f"{table['n'].to_numpy(int).max():,} pairs of texts"
    entitle(figure, f"{name}: how alike are any two texts?", f"{source}; {pairs}; bands: 50, 90 and 98 % of them")
    return figure


def _kinds(table: pd.DataFrame) -> list[str]:
    """The kinds of vector that a table has lines of."""
    return [kind for kind in KINDS if kind in set(table["vector"])]


def _band(axes: Axes, rows: pd.DataFrame, column: str, colour: str, label: str) -> None:
    axes.fill_between(
        rows["layer"], rows[f"{column}_low"], rows[f"{column}_high"], color=colour, alpha=0.2, linewidth=0
    )
    axes.plot(rows["layer"], rows[column], color=colour, marker="o", markersize=3, label=label)


def _layers(panels: np.ndarray) -> None:
    for panel in panels:
        panel.set_xlabel("layer")
        panel.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
