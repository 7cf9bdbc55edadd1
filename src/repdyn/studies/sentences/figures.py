"""Draw sentence vectors over the layers: paraphrases, changes, and the cosines of a collection."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from repdyn.figures.drawing import entitle
from repdyn.studies.output import layer_axis, line_with_band, select
from repdyn.studies.sentences.tables import ALL_KINDS, SHARED_TOKENS
from repdyn.studies.sentences.vectors import FIRST, LAST, MEAN, POOLINGS
from repdyn.tables.style import styled

_COLOURS = {FIRST: "#CC79A7", MEAN: "#0072B2", LAST: "#E69F00"}
SIGNIFICANT = 0.05


@styled
def separation_figure(name: str, table: pd.DataFrame) -> Figure:
    """Draw cosines within and between groups for each pooling, and how well they separate groups.

    Args:
        name: of the model, or of one stack of it.
        table: of :func:`repdyn.studies.sentences.tables.separation_table`, one stack and the baseline.
    """
    of_vectors, baseline = table.loc[table["vector"] != SHARED_TOKENS], select(table, vector=SHARED_TOKENS)
    poolings = _poolings(of_vectors)
    figure = Figure(figsize=(3.4 * (len(poolings) + 1) + 0.6, 4.2))
    panels = figure.subplots(1, len(poolings) + 1, squeeze=False)[0]
    lowest = float(of_vectors[["within_low", "between_low"]].to_numpy(float).min())
    curves = {"within": ("#009E73", "paraphrases"), "between": ("#D55E00", "other sentences")}
    drawn = [
        (panel, pooling, column, colour, label)
        for panel, pooling in zip(panels, poolings, strict=False)
        for column, (colour, label) in curves.items()
    ]
    drawn += [(panels[-1], pooling, "probability", _COLOURS[pooling], pooling) for pooling in poolings]
    for panel, pooling, column, colour, label in drawn:
        rows = select(of_vectors, vector=pooling)
        values = (rows[end] for end in ("layer", column, f"{column}_low", f"{column}_high"))
        line_with_band(panel, *values, color=colour, marker="o", markersize=3, label=label)
    for panel, pooling in zip(panels, poolings, strict=False):
        panel.set_title(f"cosine: {pooling}")
        panel.set_ylim(min(0.0, lowest) - 0.02, 1.02)
    panels[0].legend(loc="lower left")
    look = {"color": "0.4", "linestyle": "--", "linewidth": 1}
    panels[-1].axhline(baseline["probability"].item(), label=SHARED_TOKENS, **look)
    panels[-1].set_title("paraphrases are closer: how often")
    panels[-1].set_ylim(0.45, 1.02)
    panels[-1].legend(loc="lower right")
    layer_axis(*panels)
    entitle(figure, f"{name}: paraphrases against other sentences", "bands: 95 % of a bootstrap over groups")
    return figure


@styled
def change_figure(name: str, table: pd.DataFrame) -> Figure:
    """Draw how alike the differences of one kind of change are over the layers, a panel for each pooling.

    Args:
        name: of the model, or of one stack of it.
        table: of :func:`repdyn.studies.sentences.tables.change_table`, of one stack.
    """
    poolings, changes = _poolings(table), [change for change in table["change"].unique() if change != ALL_KINDS]
    figure = Figure(figsize=(3.7 * len(poolings) + 1.4, 4.4))
    panels = figure.subplots(1, len(poolings), squeeze=False, sharey=True)[0]
    for panel, pooling in zip(panels, poolings, strict=True):
        rows = select(table, vector=pooling)
        for number, change in enumerate(changes):
            one, colour = select(rows, change=change), to_hex(colormaps["tab10"](number % 10))
            panel.plot(one["layer"], one["within"], color=colour, label=change)
            is_clear = one["p"] < SIGNIFICANT
            for chosen, fill in ((is_clear, colour), (~is_clear, "white")):
                look = {"color": colour, "markersize": 5, "markerfacecolor": fill}
                panel.plot(one["layer"].where(chosen), one["within"].where(chosen), "o", **look)
        across = select(rows, change=ALL_KINDS)
        panel.plot(across["layer"], across["across"], color="0.4", linestyle="--", label="different kinds")
        panel.axhline(0, color="0.7", linewidth=0.8, zorder=0)
        panel.set_title(pooling)
    panels[0].set_ylabel("mean cosine of two differences")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    layer_axis(*panels)
    caption = f"hollow: not larger than across kinds (p >= {SIGNIFICANT}, permutation test, not corrected)"
    entitle(figure, f"{name}: does one kind of change move sentences one way?", caption)
    return figure


@styled
def collection_figure(name: str, source: str, table: pd.DataFrame, histograms: pd.DataFrame) -> Figure:
    """Draw the cosines of all pairs of texts: quantiles over the layers, and the distribution at the last.

    Args:
        name: of the model, or of one stack of it.
        source: of the texts.
        table, histograms: of :mod:`repdyn.studies.sentences.tables`, of one stack.
    """
    poolings, last = _poolings(table), table["layer"].to_numpy(int).max()
    figure = Figure(figsize=(3.4 * (len(poolings) + 1) + 0.6, 4.2))
    panels = figure.subplots(1, len(poolings) + 1, squeeze=False)[0]
    lowest = min(0.0, table["q01"].to_numpy(float).min())
    for panel, pooling in zip(panels, poolings, strict=False):
        rows, colour = select(table, vector=pooling), _COLOURS[pooling]
        for low, high, alpha in (("q01", "q99", 0.12), ("q05", "q95", 0.2), ("q25", "q75", 0.3)):
            panel.fill_between(rows["layer"], rows[low], rows[high], color=colour, alpha=alpha, linewidth=0)
        panel.plot(rows["layer"], rows["median"], color=colour)
        panel.axhline(0, color="0.5", linewidth=0.8)
        panel.set_ylim(lowest - 0.03, 1.02)
        panel.set_title(f"cosine: {pooling}")
        bins = select(histograms, vector=pooling, layer=last)
        heights, edges = bins["count"] / bins["count"].max(), np.append(bins["low"], bins["high"].iloc[-1])
        panels[-1].stairs(heights, edges, color=colour, fill=True, alpha=0.35, label=pooling)
        panels[-1].stairs(heights, edges, color=colour)
    layer_axis(*panels[:-1])
    panels[-1].axvline(0, color="0.5", linewidth=0.8)
    panels[-1].set_yticks([])
    panels[-1].set_xlabel(f"cosine at layer {last}")
    panels[-1].set_title("the last layer")
    panels[-1].legend()
    pairs = f"{table['n'].to_numpy(int).max():,} pairs of texts"
    entitle(figure, f"{name}: how alike are any two texts?", f"{source}; {pairs}; bands: 50, 90 and 98 % of them")
    return figure


def _poolings(table: pd.DataFrame) -> list[str]:
    return [pooling for pooling in POOLINGS if pooling in set(table["vector"])]
