"""Pictures of a position table: who is like whom, how that falls off, and the path the positions take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repdyn.figures.drawing import entitle
from repdyn.studies.anatomy.positions import ORDERED, Components, Turn
from repdyn.studies.anatomy.table_figures import COLOURS, spaced
from repdyn.tables.style import SEQUENTIAL, styled


@styled
def similarity_figure(name: str, matrix: np.ndarray, offsets: pd.DataFrame, order_ends: int | None) -> Figure:
    """The cosines of all pairs of positions, and their mean against how far apart the two are.

    The band holds 90 % of the pairs that far apart. Offsets of fewer than a tenth of the positions' pairs are left out.

    Args:
        name: of the model.
        matrix: (n, n) cosines.
        offsets: of :func:`repdyn.studies.anatomy.positions.by_offset`.
        order_ends: of :func:`repdyn.studies.anatomy.positions.order_ends`; None where there are too few positions.
    """
    figure = Figure(figsize=(11, 4.6))
    left, right = figure.subplots(1, 2)
    n = len(matrix)
    image = left.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    left.grid(False)
    left.set_xlabel("position")
    left.set_ylabel("position")
    figure.colorbar(image, ax=left, label="cosine", shrink=0.85)
    shown = offsets.loc[(offsets["n"] >= n / 10) & (offsets["offset"] > 0)]
    right.fill_between(shown["offset"], shown["q05"], shown["q95"], color=COLOURS["position"], alpha=0.2, linewidth=0)
    right.plot(shown["offset"], shown["mean"], color=COLOURS["position"])
    right.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    right.set_xlabel("positions apart")
    right.set_ylabel("cosine: mean, and the middle 90 %")
    ends = {None: "", n: "; order holds to the last position"}.get(order_ends, f"; order ends near {order_ends}")
    entitle(figure, f"{name}: cosine of position embeddings", f"{n:,} positions{ends}")
    return figure


@styled
def path_figure(name: str, components: Components, turn: Turn | None) -> Figure:
    """The positions' path in three principal components, coloured by position, and how it turns along the way.

    The first two axes are the plane that turns most, where one turns clearly; the third is the largest of the others.

    Args:
        name: of the model.
        components: at least three.
        turn: of :func:`repdyn.studies.anatomy.positions.find_turn`.
    """
    clear = turn if turn is not None and turn.is_clear else None
    plane = clear.components if clear else (0, 1)
    third = next(number for number in range(components.scores.shape[1]) if number not in plane)
    axes = plane[0], plane[1], third
    figure = Figure(figsize=(11, 5.0))
    spaced(figure)
    space: Any = figure.add_subplot(1, 2, 1, projection="3d")
    _path(space, components, axes)
    n, caption = len(components.scores), "no plane of the first principal components turns clearly"
    if clear:
        ends = "to the last position" if clear.ends == n else f"up to position {clear.ends}"
        caption = (
            f"one turn per {clear.period:.1f} positions in components {plane[0] + 1} and {plane[1] + 1} "
            f"({clear.share:.0%} of the variance), {ends}"
        )
        above, below = figure.add_subplot(2, 2, 2), figure.add_subplot(2, 2, 4)
        _turning(above, below, clear, n)
    else:
        _components(figure.add_subplot(1, 2, 2), components)
    entitle(figure, f"{name}: path of the positions", caption)
    return figure


def _path(space: Any, components: Components, axes: tuple[int, int, int]) -> None:
    x, y, z = (components.scores[:, axis] for axis in axes)
    positions = np.arange(len(x))
    space.plot(x, y, z, color="0.6", linewidth=0.5, alpha=0.5)
    dots = space.scatter(x, y, z, c=positions, cmap=SEQUENTIAL, s=9, linewidths=0, depthshade=False)
    # a position far off (often the first) would leave no room for the others
    for name, values in zip("xyz", (x, y, z), strict=True):
        low, high = np.quantile(values, [0.005, 0.995])
        margin = 0.1 * (high - low)
        getattr(space, f"set_{name}lim")(low - margin, high + margin)
    for name, axis in zip("xyz", axes, strict=True):
        getattr(space, f"set_{name}label")(f"component {axis + 1} ({components.shares[axis]:.0%})", labelpad=-8)
        getattr(space, f"set_{name}ticklabels")([])
    space.set_box_aspect(None, zoom=0.92)
    space.figure.colorbar(dots, ax=space, label="position", shrink=0.6, location="left", pad=0.02)


def _turning(above: Axes, below: Axes, turn: Turn, n: int) -> None:
    middles = (turn.windows["start"] + turn.windows["stop"]) / 2
    turning = turn.windows["ordered"] >= ORDERED
    above.plot(middles, turn.windows["period"].where(turning), color=COLOURS["position"])
    above.axhline(turn.period, color="0.4", linewidth=1, linestyle="--")
    above.set_ylim(0, 2 * turn.period)
    above.set_title(f"positions per turn (dashed: {turn.period:.1f}, of all)")
    below.plot(middles, turn.windows["ordered"], color=COLOURS["position"])
    below.axhline(ORDERED, color="0.4", linewidth=1, linestyle="--")
    below.set_ylim(min(0.0, turn.windows["ordered"].to_numpy().min()), 1.03)
    below.set_title("share of the steps that follow the turn")
    below.set_xlabel("position")
    for panel in (above, below):
        panel.set_xlim(0, n)


def _components(axes: Axes, components: Components) -> None:
    for number, values in enumerate(components.scores.T[:3]):
        axes.plot(values, label=f"component {number + 1} ({components.shares[number]:.0%})", linewidth=1)
    axes.set_xlabel("position")
    axes.set_title("the components along the positions")
    axes.legend()
