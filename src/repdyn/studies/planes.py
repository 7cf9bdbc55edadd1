"""Show clouds of vectors in a plane: principal components, t-SNE, and UMAP where it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor

from repdyn.studies.panels import legend_below, panels, series_colour
from repdyn.tables.style import SEQUENTIAL

MAX_POINTS = 3000
"""Largest number of vectors in a plane: t-SNE of more takes minutes."""
_PERPLEXITY = 30


def methods() -> tuple[str, ...]:
    """Return the methods at hand."""
    return ("PCA", "t-SNE", *(("UMAP",) if find_spec("umap") else ()))


def plane(vectors: np.ndarray, method: str, seed: int) -> tuple[np.ndarray, float | None]:
    """Return places of vectors in a plane, (n, 2), and the share of variance along both axes, which PCA alone has.

    t-SNE and UMAP keep neighbourhoods: distances between groups and the sizes of groups mean nothing there.
    """
    if method == "PCA":
        found = PCA(2, svd_solver="full").fit(vectors)
        return found.transform(vectors), float(found.explained_variance_ratio_.sum())
    if method == "t-SNE":
        perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
        return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(vectors), None
    from umap import UMAP

    return UMAP(random_state=seed, n_jobs=1, n_neighbors=min(15, len(vectors) - 1)).fit_transform(vectors), None


def plane_table(vectors: Tensor, labels: Mapping[str, Sequence[Any]] | pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return the places of vectors by every method: columns of ``labels``, method, share, x, y.

    Of more than :data:`MAX_POINTS` vectors some are drawn, equally often of each value of the last label.
    """
    frame = pd.DataFrame(labels)
    if len(frame) > MAX_POINTS:
        groups = frame.groupby(frame.columns[-1], sort=False)
        frame = (
            groups.sample(frac=1, random_state=seed)
            .groupby(frame.columns[-1], sort=False)
            .head(max(1, MAX_POINTS // groups.ngroups))
        )
    chosen = vectors[torch.tensor(frame.index.tolist())].detach().cpu().float().numpy()
    parts = []
    for method in methods():
        places, share = plane(chosen, method, seed)
        parts.append(frame.assign(method=method, share=share, x=places[:, 0], y=places[:, 1]))
    return pd.concat(parts, ignore_index=True)


def plane_figure(title: str, caption: str, table: pd.DataFrame, group: str, order: str | None = None) -> Figure:
    """Draw a plane for each method, coloured by group, or within the last group by a number in the column ``order``."""
    by_method = table.groupby("method", sort=False)
    size = 4.1 * by_method.ngroups + 0.6, 4.6
    figure, [grid] = panels(title, caption, size, 1, by_method.ngroups, squeeze=False)
    for axes, (method, drawn) in zip(grid, by_method, strict=True):
        for number, (name, points) in enumerate(drawn.groupby(group, sort=False)):
            numbers = [] if order is None else points[order].to_numpy(float)
            look: dict[str, Any] = {"s": 9 if len(points) > 300 else 16, "linewidths": 0, "alpha": 0.7, "label": name}
            if len(numbers) and np.isfinite(numbers).all():
                dots = axes.scatter(points["x"], points["y"], c=numbers, cmap=SEQUENTIAL, **look)
                if axes is grid[0]:
                    figure.colorbar(dots, ax=figure.axes, label=order, shrink=0.6)
            else:
                axes.scatter(points["x"], points["y"], color=series_colour(number), **look)
        share = drawn["share"].iloc[0]
        title = str(method) if pd.isna(share) else f"{method}, {share:.0%} of the variance"
        axes.set(title=title, xticks=[], yticks=[])
    if len(labels := grid[0].get_legend_handles_labels()[1]) > 1:
        legend_below(figure, grid[0], min(6, len(labels)), markerscale=1.5)
    return figure
