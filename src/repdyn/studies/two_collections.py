"""Two collections of texts in one space: how far apart they lie, and their distributions over each other."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from repdyn.figures.drawing import entitle
from repdyn.studies.embedding_tables import RowPairs, cosine_matrix, describe, norms, pair_values, sample_pairs
from repdyn.studies.panels import series_colour
from repdyn.studies.sentence_measurements import SentenceVectors, nearest_in_group
from repdyn.tables.style import styled

BETWEEN = "one of each"
"""The pairs of a text of the one collection and one of the other."""
_TITLES = {"length": "length", "distance": "distance", "dot": "dot product", "cosine": "cosine"}
_SHOWN_QUANTILES = (0.002, 0.998)


def collection_values(one: SentenceVectors, labels: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Return lengths, and distances, dot products and cosines of all pairs, within each of two collections and between.

    Args:
        labels: (n,) the collection of each text.
    """
    first, second = (torch.from_numpy(one.vectors[labels == name]) for name in dict.fromkeys(labels))
    places = torch.cartesian_prod(torch.arange(len(first)), torch.arange(len(second)))
    within = zip(dict.fromkeys(labels), (first, second), strict=True)
    values = {name: {"length": norms(rows), **pair_values(rows, sample_pairs(len(rows)))} for name, rows in within}
    return {**values, BETWEEN: pair_values(first, RowPairs(places[:, 0], places[:, 1], True), second)}


def collections_table(vectors: Iterable[SentenceVectors], labels: np.ndarray) -> pd.DataFrame:
    """Return the distributions of :func:`collection_values` for each layer and pooling.

    Returns:
        A row for each collection, and for pairs of both, and quantity; ``nearest`` is the share of all texts whose
        largest cosine is with a text of their own collection.
    """
    parts = []
    for one in vectors:
        nearest = nearest_in_group(np.nan_to_num(cosine_matrix(one.vectors)), labels)
        for texts, quantities in collection_values(one, labels).items():
            keys = {**one.keys, "texts": texts, "nearest": nearest}
            parts += [{**keys, "quantity": name, **describe(values)} for name, values in quantities.items()]
    return pd.DataFrame(parts)


@styled
def collections_figure(title: str, caption: str, values: dict[str, dict[str, np.ndarray]]) -> Figure:
    """Draw lengths, distances, dot products and cosines of two collections, and of pairs of both, over each other."""
    figure = Figure(figsize=(10.5, 3.4))
    for axes, (quantity, name) in zip(figure.subplots(1, 4), _TITLES.items(), strict=True):
        drawn = {texts: each[quantity] for texts, each in values.items() if quantity in each}
        low, high = np.nanquantile(np.concatenate([*drawn.values()]), _SHOWN_QUANTILES)
        for number, (texts, of_pairs) in enumerate(drawn.items()):
            heights, edges = np.histogram(of_pairs, bins=60, range=(low, high), density=True)
            colour = "0.35" if texts == BETWEEN else series_colour(number)
            axes.stairs(heights, edges, color=colour, fill=texts != BETWEEN, alpha=0.35)
            axes.stairs(heights, edges, color=colour, label=texts, linestyle="--" if texts == BETWEEN else "-")
        axes.set(title=name, yticks=[])
    handles, labels = figure.axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    entitle(figure, title, caption)
    return figure
