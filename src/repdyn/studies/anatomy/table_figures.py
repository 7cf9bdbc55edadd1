"""Draw a model's embedding tables: norms, similarities and dimensions of their rows, and the layout of positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from repdyn.figures.drawing import entitle
from repdyn.studies.anatomy.geometry import components_for
from repdyn.studies.anatomy.measurements import QUANTITIES, TableMeasurements
from repdyn.studies.anatomy.positions import ORDERED, Components, Rotation
from repdyn.studies.output import line_with_band
from repdyn.tables.style import DIVERGING, SEQUENTIAL, styled

_COLOURS = {"input": "#0072B2", "position": "#D55E00", "segment": "#009E73"}
_TITLES = {
    "norm": "length |x|",
    "distance": "distance |x - y| of two rows",
    "dot": "dot product of two rows",
    "cosine": "cosine of two rows",
    "cosine with mean": "cosine with the table's mean",
}
_MAX_BINS = 120
# the tails hold single rows, which would squeeze everything else
_SHOWN_QUANTILES = (0.0005, 0.9995)
_FEW = 12


@styled
def tables_figure(name: str, measured: Sequence[TableMeasurements]) -> Figure:
    """Draw six panels: the distribution of each quantity, one outline for each table, and the dimension curves.

    Heights are relative to the highest bin, so that tables of any size can be compared; a table of a few rows is drawn
    as lines, one for each value. Values beyond 0.05 % and 99.95 % are cut off; the tables' files have them.

    Args:
        name: of the model.
        measured: its tables.
    """
    figure = Figure(figsize=(11, 6.4))
    panels = figure.subplots(2, 3).ravel()
    _widen_gaps(figure)
    for panel, quantity in zip(panels, QUANTITIES, strict=False):
        for one in measured:
            _draw_distribution(panel, one, one.values.get(quantity, np.empty(0)))
        panel.set_title(_TITLES[quantity])
        panel.set_ylim(0, 1.05)
        panel.set_yticks([])
        if "cosine" in quantity:
            panel.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    for one in measured:
        _draw_dimension_curve(panels[-1], one)
    panels[-1].set_title("variance explained by the first k components")
    panels[-1].set_xlabel("k")
    panels[-1].set_ylim(0, 1.02)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    sampled = [f"{one.n_pairs:,} of {one.table.name}" for one in measured if not one.all_pairs]
    pairs = f"pairs drawn at random: {', '.join(sampled)}" if sampled else "all pairs"
    entitle(figure, f"{name}: context-free embeddings", f"{pairs}; heights relative to the highest bin")
    return figure


def _widen_gaps(figure: Figure) -> None:
    """Make room between panels for labels that matplotlib's layout does not see."""
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(w_pad=0.1, wspace=0.03)


def _draw_distribution(axes: Axes, one: TableMeasurements, values: np.ndarray) -> None:
    values = values[np.isfinite(values)]
    colour, label = _COLOURS[one.table.kind], f"{one.table.name} ({len(one.table.rows):,} rows)"
    if len(values) <= _FEW:
        for number, value in enumerate(values):
            axes.axvline(value, color=colour, linewidth=1.5, linestyle="--", label=label if number == 0 else None)
        return
    low, high = np.quantile(values, _SHOWN_QUANTILES)
    bins = min(_MAX_BINS, int(2 * np.sqrt(len(values))))
    heights, edges = np.histogram(values, bins=bins, range=(low, high))
    axes.stairs(heights / heights.max(), edges, color=colour, fill=True, alpha=0.35, label=label)
    axes.stairs(heights / heights.max(), edges, color=colour, linewidth=1.2)


def _draw_dimension_curve(axes: Axes, one: TableMeasurements) -> None:
    if not len(one.explained):
        return
    colour = _COLOURS[one.table.kind]
    axes.plot(np.arange(1, len(one.explained) + 1), one.explained, color=colour)
    for share, count in components_for(one.explained, (0.5, 0.9, 0.99)).items():
        axes.plot(count, share, "o", color=colour, markersize=4)
        axes.annotate(f"{count}", (count, share), (4, -9), textcoords="offset points", fontsize=8, color=colour)


@styled
def similarity_figure(name: str, matrix: np.ndarray, offsets: pd.DataFrame, order_end: int | None) -> Figure:
    """Draw the cosines of all pairs of positions, and their mean against the distance of the two.

    The band holds 90 % of the pairs of that distance. Distances with fewer pairs than a tenth of the positions are left
    out.

    Args:
        name: of the model.
        matrix: (n, n) cosines.
        offsets: of :func:`repdyn.studies.anatomy.positions.by_offset`.
        order_end: of :func:`repdyn.studies.anatomy.positions.find_order_end`; None for too few positions.
    """
    figure = Figure(figsize=(11, 4.6))
    left, right = figure.subplots(1, 2)
    n, colour = len(matrix), _COLOURS["position"]
    image = left.imshow(matrix, cmap=DIVERGING, vmin=-1, vmax=1, interpolation="nearest")
    left.grid(False)
    left.set_xlabel("position")
    left.set_ylabel("position")
    figure.colorbar(image, ax=left, label="cosine", shrink=0.85)
    shown = offsets.loc[(offsets["n"] >= n / 10) & (offsets["offset"] > 0)]
    line_with_band(right, shown["offset"], shown["mean"], shown["q05"], shown["q95"], color=colour)
    right.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    right.set_xlabel("positions apart")
    right.set_ylabel("cosine: mean, and the middle 90 %")
    end = {None: "", n: "; order holds to the last position"}.get(order_end, f"; order ends near {order_end}")
    entitle(figure, f"{name}: cosine of position embeddings", f"{n:,} positions{end}")
    return figure


@styled
def path_figure(name: str, components: Components, rotation: Rotation | None) -> Figure:
    """Draw the positions' path in three principal components, coloured by position, and how it rotates along the way.

    The first two axes are the plane that rotates most, if one rotates clearly; the third is the largest other one.

    Args:
        name: of the model.
        components: at least three.
        rotation: of :func:`repdyn.studies.anatomy.positions.find_rotation`.
    """
    clear = rotation if rotation is not None and rotation.is_clear else None
    plane = clear.components if clear else (0, 1)
    third = next(number for number in range(components.scores.shape[1]) if number not in plane)
    figure = Figure(figsize=(11, 5.0))
    _widen_gaps(figure)
    _draw_path(figure.add_subplot(1, 2, 1, projection="3d"), components, (*plane, third))
    n, caption = len(components.scores), "no plane of the first principal components rotates clearly"
    if clear:
        end = "to the last position" if clear.ends == n else f"up to position {clear.ends}"
        caption = (
            f"one turn per {clear.period:.1f} positions in components {plane[0] + 1} and {plane[1] + 1} "
            f"({clear.share:.0%} of the variance), {end}"
        )
        _draw_rotation(figure.add_subplot(2, 2, 2), figure.add_subplot(2, 2, 4), clear, n)
    else:
        axes = figure.add_subplot(1, 2, 2)
        for number, values in enumerate(components.scores.T[:3]):
            axes.plot(values, label=f"component {number + 1} ({components.shares[number]:.0%})", linewidth=1)
        axes.set_xlabel("position")
        axes.set_title("the components along the positions")
        axes.legend()
    entitle(figure, f"{name}: path of the positions", caption)
    return figure


def _draw_path(space: Any, components: Components, axes: tuple[int, ...]) -> None:
    points = components.scores[:, axes].T
    space.plot(*points, color="0.6", linewidth=0.5, alpha=0.5)
    look = {"c": np.arange(points.shape[1]), "cmap": SEQUENTIAL, "s": 9, "linewidths": 0, "depthshade": False}
    dots = space.scatter(*points, **look)
    for name, values, axis in zip("xyz", points, axes, strict=True):
        # a distant position (often the first) would leave no room for the others
        low, high = np.quantile(values, [0.005, 0.995])
        margin = 0.1 * (high - low)
        label = f"component {axis + 1} ({components.shares[axis]:.0%})"
        space.set(**{f"{name}lim": (low - margin, high + margin), f"{name}ticklabels": []})
        getattr(space, f"set_{name}label")(label, labelpad=-8)
    space.set_box_aspect(None, zoom=0.92)
    space.figure.colorbar(dots, ax=space, label="position", shrink=0.6, location="left", pad=0.02)


def _draw_rotation(above: Axes, below: Axes, rotation: Rotation, n: int) -> None:
    windows, colour = rotation.windows, _COLOURS["position"]
    middles = (windows["start"] + windows["stop"]) / 2
    above.plot(middles, windows["period"].where(windows["ordered"] >= ORDERED), color=colour)
    above.axhline(rotation.period, color="0.4", linewidth=1, linestyle="--")
    above.set_ylim(0, 2 * rotation.period)
    above.set_title(f"positions per turn (dashed: {rotation.period:.1f}, of all)")
    below.plot(middles, windows["ordered"], color=colour)
    below.axhline(ORDERED, color="0.4", linewidth=1, linestyle="--")
    below.set_ylim(min(0.0, windows["ordered"].to_numpy().min()), 1.03)
    below.set_title("share of the steps that follow the rotation")
    below.set_xlabel("position")
    for panel in (above, below):
        panel.set_xlim(0, n)
