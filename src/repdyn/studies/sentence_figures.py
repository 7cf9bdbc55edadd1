"""Figures of the study of sentences: a panel for each way to make one vector of a sentence's tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from sklearn.decomposition import PCA

from repdyn.figures.drawing import entitle
from repdyn.studies import sentence_measurements as measured
from repdyn.studies.panels import layer_axis, line_with_band, series_colour
from repdyn.studies.sentence_measurements import FIRST, LAST, MAXIMUM, MEAN, POOLINGS
from repdyn.studies.study import select
from repdyn.tables.style import DIVERGING, styled

_COLOURS = {FIRST: "#CC79A7", MEAN: "#0072B2", LAST: "#E69F00", MAXIMUM: "#009E73"}
SIGNIFICANT = 0.05
_TITLES = {"length": "length", "distance": "distance", "dot": "dot product", "cosine": "cosine"}
_SHOWN_QUANTILES = (0.002, 0.998)


@styled
def separation_figure(name: str, table: pd.DataFrame) -> Figure:
    """Draw cosines within and between groups for each pooling, and how well they separate groups."""
    figure, panels, last = _panels_and_one(table)
    lowest = float(
        table.loc[table["vector"] != measured.SHARED_TOKENS, ["within_low", "between_low"]].to_numpy(float).min()
    )
    look = {"marker": "o", "markersize": 3}
    for pooling, panel in panels.items():
        rows = select(table, vector=pooling)
        line_with_band(panel, rows, "within", color="#009E73", label="paraphrases", **look)
        line_with_band(panel, rows, "between", color="#D55E00", label="other sentences", **look)
        panel.set(title=f"cosine: {pooling}", ylim=(min(0.0, lowest) - 0.02, 1.02))
        line_with_band(last, rows, "probability", color=_COLOURS[pooling], label=pooling, **look)
    figure.axes[0].legend(loc="lower left")
    baseline = select(table, vector=measured.SHARED_TOKENS)["probability"].item()
    last.axhline(baseline, label=measured.SHARED_TOKENS, color="0.4", linestyle="--", linewidth=1)
    last.set(title="paraphrases are closer: how often", ylim=(0.45, 1.02))
    last.legend(loc="lower right")
    layer_axis(*figure.axes)
    entitle(figure, f"{name}: paraphrases against other sentences", "bands: 95 % of a bootstrap over groups")
    return figure


@styled
def change_figure(name: str, table: pd.DataFrame) -> Figure:
    """Draw how alike the differences of one kind of change are over the layers, a panel for each pooling."""
    poolings, kinds = _poolings(table), [kind for kind in table["change"].unique() if kind != measured.ALL_KINDS]
    figure = Figure(figsize=(3.7 * len(poolings) + 1.4, 4.4))
    panels = figure.subplots(1, len(poolings), squeeze=False, sharey=True)[0]
    for panel, pooling in zip(panels, poolings, strict=True):
        rows = select(table, vector=pooling)
        for number, change in enumerate(kinds):
            one, colour = select(rows, change=change), _colour(number)
            panel.plot(one["layer"], one["within"], color=colour, label=change)
            is_clear = one["p"] < SIGNIFICANT
            for chosen, fill in ((is_clear, colour), (~is_clear, "white")):
                look = {"color": colour, "markersize": 5, "markerfacecolor": fill}
                panel.plot(one["layer"].where(chosen), one["within"].where(chosen), "o", **look)
        across = select(rows, change=measured.ALL_KINDS)
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
def kinds_figure(name: str, matrix: pd.DataFrame) -> Figure:
    """Draw the cosines of the mean differences of each two kinds at the last layer, and the largest over the layers."""
    poolings, last = _poolings(matrix), matrix["layer"].to_numpy(int).max()
    names = list(dict.fromkeys([*matrix["kind"], *matrix["other"]]))
    figure = Figure(figsize=(3.7 * len(poolings) + 1.0, 7.2))
    panels = figure.subplots(2, len(poolings), squeeze=False, height_ratios=(1.15, 1))
    for (above, below), pooling in zip(panels.T, poolings, strict=True):
        rows = select(matrix, vector=pooling)
        of_last = select(rows, layer=last)
        cells = np.full((len(names), len(names)), np.nan)
        for row in of_last.to_dict("records"):
            at = names.index(row["other"]), names.index(row["kind"])
            cells[at] = row["cosine"]
            is_clear = row["low"] > 0 or row["high"] < 0
            look = {"weight": "bold" if is_clear else "normal", "alpha": 1 if is_clear else 0.6}
            above.text(at[1], at[0], f"{row['cosine']:.2f}", ha="center", va="center", fontsize=8, **look)
        above.imshow(
            cells[1:, :-1], cmap=DIVERGING, vmin=-1, vmax=1, extent=(-0.5, len(names) - 1.5, len(names) - 0.5, 0.5)
        )
        above.set_xticks(range(len(names) - 1), names[:-1], rotation=40, ha="right")
        above.set_yticks(range(1, len(names)), names[1:])
        above.grid(visible=False)
        above.set_title(f"{pooling}, layer {last}")
        largest = of_last.assign(size=of_last["cosine"].abs()).nlargest(4, "size")
        for number, row in enumerate(largest.to_dict("records")):
            one = select(rows, kind=row["kind"], other=row["other"])
            look = {"color": _colour(number), "label": f"{row['kind']}, {row['other']}"}
            line_with_band(below, one, "cosine", ("low", "high"), band_alpha=0.12, **look)
        below.axhline(0, color="0.5", linewidth=0.8)
        below.set_ylim(-1, 1)
        below.legend(fontsize=7, loc="lower left")
        layer_axis(below)
    panels[1, 0].set_ylabel("cosine of two mean differences")
    caption = "bold: 95 % interval of a bootstrap over the changes without 0; below, the four largest of the last layer"
    entitle(figure, f"{name}: do two kinds of change point one way?", caption)
    return figure


@styled
def differences_figure(title: str, differences: np.ndarray, kinds: Sequence[str]) -> Figure:
    """Draw differences in the plane of two principal components, with an arrow for the mean of each kind."""
    found = PCA(2, svd_solver="full").fit(differences)
    figure, labels = Figure(figsize=(6.4, 5.4)), np.asarray(kinds)
    axes = figure.subplots()
    origin = found.transform(np.zeros((1, differences.shape[1])))[0]
    for number, kind in enumerate(dict.fromkeys(kinds)):
        colour = _colour(number)
        places = found.transform(differences[labels == kind])
        axes.scatter(*places.T, color=colour, s=18, linewidths=0, alpha=0.7, label=kind)
        look = {"arrowstyle": "-|>", "color": colour, "lw": 2}
        axes.annotate("", places.mean(0), origin, arrowprops=look)
    axes.plot(*origin, "k+", markersize=9)
    axes.set(xticks=[], yticks=[])
    figure.legend(loc="outside lower center", ncols=3)
    share = found.explained_variance_ratio_.sum()
    entitle(figure, title, f"PCA, {share:.0%} of the variance; arrows from no change (+) to the mean of a kind")
    return figure


@styled
def collection_figure(name: str, source: str, table: pd.DataFrame, histograms: pd.DataFrame) -> Figure:
    """Draw the cosines of all pairs of texts: quantiles over the layers, and the distribution at the last."""
    figure, panels, last_panel = _panels_and_one(table)
    last, lowest = table["layer"].to_numpy(int).max(), min(0.0, table["q01"].to_numpy(float).min())
    for pooling, panel in panels.items():
        rows, colour = select(table, vector=pooling), _COLOURS[pooling]
        for low, high, alpha in (("q01", "q99", 0.12), ("q05", "q95", 0.2), ("q25", "q75", 0.3)):
            panel.fill_between(rows["layer"], rows[low], rows[high], color=colour, alpha=alpha, linewidth=0)
        panel.plot(rows["layer"], rows["median"], color=colour)
        panel.axhline(0, color="0.5", linewidth=0.8)
        panel.set(title=f"cosine: {pooling}", ylim=(lowest - 0.03, 1.02))
        layer_axis(panel)
        bins = select(histograms, vector=pooling, layer=last)
        heights, edges = bins["count"] / bins["count"].max(), np.append(bins["low"], bins["high"].iloc[-1])
        last_panel.stairs(heights, edges, color=colour, fill=True, alpha=0.35, label=pooling)
        last_panel.stairs(heights, edges, color=colour)
    last_panel.axvline(0, color="0.5", linewidth=0.8)
    last_panel.set(title="the last layer", xlabel=f"cosine at layer {last}", yticks=[])
    last_panel.legend()
    pairs = f"{table['n'].to_numpy(int).max():,} pairs of texts"
    entitle(figure, f"{name}: how alike are any two texts?", f"{source}; {pairs}; bands: 50, 90 and 98 % of them")
    return figure


@styled
def collections_figure(title: str, caption: str, values: dict[str, dict[str, np.ndarray]]) -> Figure:
    """Draw lengths, distances, dot products and cosines of two collections, and of pairs of both, over each other."""
    figure = Figure(figsize=(10.5, 3.4))
    for axes, (quantity, name) in zip(figure.subplots(1, 4), _TITLES.items(), strict=True):
        drawn = {texts: each[quantity] for texts, each in values.items() if quantity in each}
        low, high = np.nanquantile(np.concatenate([*drawn.values()]), _SHOWN_QUANTILES)
        for number, (texts, of_pairs) in enumerate(drawn.items()):
            heights, edges = np.histogram(of_pairs, bins=60, range=(low, high), density=True)
            colour = "0.35" if texts == measured.BETWEEN else series_colour(number)
            axes.stairs(heights, edges, color=colour, fill=texts != measured.BETWEEN, alpha=0.35)
            axes.stairs(heights, edges, color=colour, label=texts, linestyle="--" if texts == measured.BETWEEN else "-")
        axes.set(title=name, yticks=[])
    handles, labels = figure.axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    entitle(figure, title, caption)
    return figure


def _panels_and_one(table: pd.DataFrame) -> tuple[Figure, dict[str, Axes], Axes]:
    """Return a figure, its panels by pooling, and one more panel on their right."""
    poolings = _poolings(table)
    figure = Figure(figsize=(2.9 * (len(poolings) + 1) + 0.6, 4.2))
    *panels, last = figure.subplots(1, len(poolings) + 1)
    return figure, dict(zip(poolings, panels, strict=True)), last


def _poolings(table: pd.DataFrame) -> list[str]:
    return [pooling for pooling in POOLINGS if pooling in set(table["vector"])]


def _colour(number: int) -> str:
    return to_hex(colormaps["tab10"](number % 10))
