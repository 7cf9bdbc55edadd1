"""Draw the figures of studies: panels side by side, bands, images, attention heads, vectors in a
plane.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor

from repdyn.views.charts.on_matplotlib import entitle
from repdyn.views.tables.style import DIVERGING, SEQUENTIAL, SUBSET_COLOURS

T = TypeVar("T")

# far from those of SUBSET_COLOURS, and from each other
_MORE_COLOURS = ("C4", "C5", "0.45", "#56B4E9", "#A6761D", "black")
# what the hues of tokens are mixed with, and the share of it
_SHADES = (("black", 0.0), ("black", 0.5), ("white", 0.5))
_MAX_COLUMNS = 3
_MAX_ENTRIES = 5
"""Of a legend inside a panel."""
_MAX_NUMBERED = 16
"""Heads that leave room for a number in each cell."""
MAX_POINTS = 3000
"""Largest number of vectors in a plane of t-SNE or UMAP, which take minutes for more."""
_PERPLEXITY = 30
_LEGEND_DOT = 24
"""Size of a dot in the legend of a plane."""


def series_colour(number: int) -> str:
    """Return the colour of one of several series."""
    colours = (*SUBSET_COLOURS, *_MORE_COLOURS)
    return colours[number % len(colours)]


def token_colour(number: int) -> str:
    """Return the colour of one of the tokens of a sentence, of which there are 30: ten hues, then
    the same ones darker, then paler.
    """
    shade, hue = divmod(number % (10 * len(_SHADES)), 10)
    towards, share = _SHADES[shade]
    colour = (1 - share) * np.array(to_rgb(f"C{hue}")) + share * np.array(to_rgb(towards))
    return to_hex(tuple(colour.tolist()))


def panels(
    title: str,
    caption: str,
    size: tuple[float, float],
    n_rows: int = 1,
    n_columns: int = 1,
    **layout: Any,
) -> tuple[Figure, Any]:
    """Return a figure with a title and a caption, and its panels: one, or an array of (rows,
    columns).
    """
    figure = Figure(figsize=size)
    entitle(figure, title, caption)
    return figure, figure.subplots(n_rows, n_columns, **layout)


def facets(
    title: str,
    caption: str,
    items: Mapping[str, T],
    draw: Callable[[Axes, T], None],
    label: str,
    *,
    legends: bool = False,
) -> Figure:
    """Draw a panel for each item, by title, at most three in a row, all with one axis of values and
    its ``label``.

    Each panel has a legend if ``legends``; else the first, or the figure if it is long.
    """
    columns = min(len(items), _MAX_COLUMNS)
    rows = -(-len(items) // columns)
    size = 2.5 + 3.4 * columns, 0.8 + 3.4 * rows
    figure, grid = panels(title, caption, size, rows, columns, sharey=True, squeeze=False)
    first, *_ = panel = grid.ravel()
    for unused in panel[len(items) :]:
        unused.remove()
    for axes, (name, item) in zip(panel, items.items(), strict=False):
        draw(axes, item)
        axes.set_title(name)
    if len(first.get_legend_handles_labels()[1]) > _MAX_ENTRIES and not legends:
        legend_below(figure, first, 2 * columns, fontsize=8)
    else:
        for axes in panel[: len(items) if legends else 1]:
            axes.legend(fontsize=8, handlelength=3 if legends else None)
    first.set_ylabel(label)
    return figure


def legend_below(figure: Figure, axes: Axes, n_columns: int | None = None, **look: Any) -> Legend:
    """Put the legend of a panel below the figure, in one row unless a number of columns is given,
    and return it.
    """
    handles, labels = axes.get_legend_handles_labels()
    return figure.legend(
        handles, labels, loc="outside lower center", ncols=n_columns or len(labels), **look
    )


def layer_axis(*axes: Axes, label: str = "layer") -> None:
    """Label x axes that count layers, with ticks at whole numbers."""
    for panel in axes:
        panel.set_xlabel(label)
        panel.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def zero_line(*axes: Axes, **look: Any) -> None:
    """Draw a horizontal line at 0."""
    for each in axes:
        each.axhline(0, **{"color": "black", "linewidth": 0.8, **look})


def line_with_band(
    axes: Axes,
    table: pd.DataFrame,
    column: str,
    ends: tuple[str, str] | None = None,
    *,
    x: ArrayLike | None = None,
    band_alpha: float = 0.2,
    **look: Any,
) -> None:
    """Draw a column of a table as a line over ``x`` (default: "layer"), and a band around it in its
    colour, between the columns ``ends`` (default: COLUMN_low and COLUMN_high)."""
    low, high = ends or (f"{column}_low", f"{column}_high")
    places = np.asarray(table["layer"] if x is None else x)
    axes.fill_between(
        places, table[low], table[high], color=look["color"], alpha=band_alpha, linewidth=0
    )
    axes.plot(places, table[column], **look)


def outline(
    axes: Axes,
    heights: ArrayLike,
    edges: ArrayLike,
    label: str,
    *,
    width: float | None = None,
    **look: Any,
) -> None:
    """Draw a histogram as a filled shape with an outline."""
    axes.stairs(heights, edges, fill=True, alpha=0.35, label=label, **look)
    axes.stairs(heights, edges, linewidth=width, **look)


def image(
    axes: Axes,
    values: ArrayLike,
    label: str | None = None,
    *,
    bar: Mapping[str, Any] | None = None,
    **look: Any,
) -> None:
    """Draw a matrix in colours, without a grid, and with a colour bar."""
    drawn = axes.imshow(values, **look)
    axes.grid(visible=False)
    axes.figure.colorbar(drawn, ax=axes, label=label or "", **(bar or {}))


def heads_size(values: pd.DataFrame) -> tuple[float, float]:
    """Return the size of a figure with a cell for each layer (rows) and head (columns)."""
    return min(11.0, 2.5 + 0.6 * values.shape[1]), 1.8 + 0.4 * len(values)


def draw_heads(axes: Axes, values: pd.DataFrame, is_bold: pd.DataFrame, label: str) -> None:
    """Draw a signed value of each layer (rows) and head (columns) as a colour, and as a number
    where there is room.
    """
    limit = float(np.nanmax(np.abs(values))) or 1.0
    image(
        axes, values, label, cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto", origin="lower"
    )
    axes.set(xlabel="head", ylabel="layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_yticks(range(len(values)), values.index)
    if values.shape[1] <= _MAX_NUMBERED:
        for (row, column), value in np.ndenumerate(values.to_numpy()):
            weight = "bold" if is_bold.iloc[row, column] else "normal"
            look = {
                "fontsize": 7,
                "color": "white" if abs(value) > 0.6 * limit else "black",
                "weight": weight,
            }
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", **look)


def planes(
    vectors: np.ndarray, seed: int, sample: np.ndarray
) -> Iterator[tuple[str, np.ndarray, float | None]]:
    """Yield each method at hand, the places of vectors in its plane, and the share of variance
    along both axes, which PCA alone has.

    PCA is of all vectors, with (n, 2) places; the other methods, which take minutes for a few
    thousand, are of a sample, the numbers of some of them. t-SNE and UMAP keep neighbourhoods:
    distances between groups and the sizes of groups mean nothing there.
    """
    # eigenvectors of the covariance: the same plane, without a decomposition of every row
    solver = "covariance_eigh" if len(vectors) > MAX_POINTS else "full"
    plane = PCA(2, svd_solver=solver).fit(vectors)
    yield "PCA", plane.transform(vectors), float(plane.explained_variance_ratio_.sum())
    vectors = vectors[sample]
    perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
    yield (
        "t-SNE",
        TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(vectors),
        None,
    )
    if find_spec("umap"):
        from umap import UMAP

        n_neighbors = min(15, len(vectors) - 1)
        yield (
            "UMAP",
            UMAP(random_state=seed, n_jobs=1, n_neighbors=n_neighbors).fit_transform(vectors),
            None,
        )


def plane_table(
    vectors: Tensor, labels: Mapping[str, Sequence[Any]] | pd.DataFrame, seed: int
) -> pd.DataFrame:
    """Return the places of vectors by every method: columns of ``labels``, method, share, x, y.

    The plane of PCA has all vectors. Of more than :data:`MAX_POINTS` the others have a sample, of
    each value of the last label equally often.
    """
    frame = pd.DataFrame(labels)
    sample = frame
    if len(frame) > MAX_POINTS:
        label = frame.columns[-1]
        mixed = frame.groupby(label, sort=False).sample(frac=1, random_state=seed)
        of_labels = mixed.groupby(label, sort=False)
        sample = of_labels.head(max(1, MAX_POINTS // of_labels.ngroups))
    wide = vectors.detach().cpu().float().numpy()
    drawn = planes(wide, seed, sample.index.to_numpy())
    tables = [
        (frame if method == "PCA" else sample).assign(
            method=method, share=share, x=places[:, 0], y=places[:, 1]
        )
        for method, places, share in drawn
    ]
    return pd.concat(tables, ignore_index=True)


def _point_size(n_drawn: int, n_in_group: int) -> int:
    if n_drawn > MAX_POINTS:
        return 3
    return 9 if n_in_group > 300 else 16


def plane_figure(
    title: str, caption: str, table: pd.DataFrame, group: str, order: str | None = None
) -> Figure:
    """Draw a plane for each method, coloured by group, or within the last group by a number in the
    column ``order``.
    """
    by_method = table.groupby("method", sort=False)
    size = 4.1 * by_method.ngroups + 0.6, 4.6
    figure, [grid] = panels(title, caption, size, 1, by_method.ngroups, squeeze=False)
    for axes, (method, drawn) in zip(grid, by_method, strict=True):
        for number, (name, points) in enumerate(drawn.groupby(group, sort=False)):
            numbers = [] if order is None else points[order].to_numpy(float)
            look: dict[str, Any] = {
                "s": _point_size(len(drawn), len(points)),
                # of tens of thousands an SVG would take megabytes
                "rasterized": len(drawn) > MAX_POINTS,
                "linewidths": 0,
                "alpha": 0.7,
                "label": name,
            }
            if len(numbers) and np.isfinite(numbers).all():
                dots = axes.scatter(points["x"], points["y"], c=numbers, cmap=SEQUENTIAL, **look)
                if axes is grid[0]:
                    figure.colorbar(dots, ax=figure.axes, label=order, shrink=0.6)
            else:
                axes.scatter(points["x"], points["y"], color=series_colour(number), **look)
        share = drawn["share"].iloc[0]
        title = f"{method}, {len(drawn):,} points"
        if not pd.isna(share):
            title += f": {share:.1%} of the variance"
        axes.set(title=title, xticks=[], yticks=[])
    if len(labels := grid[0].get_legend_handles_labels()[1]) > 1:
        _enlarge_dots(legend_below(figure, grid[0], min(6, len(labels))))
    return figure


def _enlarge_dots(legend: Legend) -> None:
    """Give the dots of a legend a size that shows their colours, which those of a large cloud do
    not.
    """
    for dot in legend.legend_handles:
        if isinstance(dot, PathCollection):
            dot.set_sizes([_LEGEND_DOT])
