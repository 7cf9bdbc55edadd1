"""Draw a model's embedding tables, the layout of positions, and two sentences through the
layers.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox
from sklearn.decomposition import PCA
from sklearn.preprocessing import robust_scale
from torch import Tensor

from repdyn.lab.studies import paths
from repdyn.lab.studies.embedding_tables import QUANTITIES, EmbeddingTable, count_pairs
from repdyn.lab.studies.panels import (
    image,
    layer_axis,
    legend_below,
    line_with_band,
    outline,
    panels,
    series_colour,
    token_colour,
    zero_line,
)
from repdyn.lab.studies.paths import Rotation, TokenTrajectory
from repdyn.lab.studies.study import select
from repdyn.views.charts.on_matplotlib import entitle
from repdyn.views.tables.style import DIVERGING, ORDERED, SEQUENTIAL

_COLOURS = {"input": "#0072B2", "position": "#D55E00", "segment": "#009E73"}
_TITLES = {
    "norm": "length |x|",
    "distance": "distance |x - y| of two rows",
    "dot": "dot product of two rows",
    "cosine": "cosine of two rows",
    "cosine with mean": "cosine with the table's mean",
}
_MOVEMENTS = {
    "norm": "length of the state |h|",
    "step": "length of the step to the next layer",
    "cosine": "cosine with the next layer",
}
_ABOUT_MEAN = {
    "distance": "distance to the mean",
    "cosine": "cosine with the mean",
    "dot": "product with the mean",
    "length": "length",
    "|cosine|": "|cosine| with the mean",
    "|dot|": "|product| with the mean",
}
_MAX_BINS = 120
# the tails hold single rows, which would squeeze everything else
_SHOWN_QUANTILES = (0.0005, 0.9995)
_FEW = 12
_GREY = "0.72"
_MAX_NAMED = 7
MASSIVE = 10.0
"""Multiple of the median norm of all states from which on a token is left out of the common plane,
which would otherwise show that token alone: trained decoders have a first token of hundreds of
times the norm of the others."""
# room between panels for labels that the layout does not see
_WIDE_GAPS = {"w_pad": 0.1, "wspace": 0.03}


def tables_figure(name: str, measured: Mapping[EmbeddingTable, Mapping[str, np.ndarray]]) -> Figure:
    """Draw the distribution of each quantity, an outline for each table (of a few rows a line
    each).

    Values beyond 0.05% and 99.95% are cut off; the tables' files have them.
    """
    pairs = {table.name: count_pairs(table, values) for table, values in measured.items()}
    sampled = [
        f"{number:,} of {table}" for table, (number, are_all) in pairs.items() if not are_all
    ]
    drawn_pairs = f"pairs drawn at random: {', '.join(sampled)}" if sampled else "all pairs"
    caption = f"{drawn_pairs}; heights relative to the highest bin"
    figure, grid = panels(f"{name}: context-free embeddings", caption, (11, 6.4), 2, 3)
    *of_quantities, unused = grid.ravel()
    unused.remove()
    figure.set_layout_engine("constrained", **_WIDE_GAPS)
    for axes, quantity in zip(of_quantities, QUANTITIES, strict=True):
        for table, quantities in measured.items():
            values = quantities.get(quantity, np.empty(0))
            values = values[np.isfinite(values)]
            colour = _COLOURS[table.kind]
            label = f"{table.name} ({len(table.rows):,} rows)"
            if len(values) > _FEW:
                bins = min(_MAX_BINS, int(2 * np.sqrt(len(values))))
                heights, edges = np.histogram(
                    values, bins=bins, range=tuple(np.quantile(values, _SHOWN_QUANTILES))
                )
                outline(axes, heights / heights.max(), edges, label, width=1.2, color=colour)
                continue
            for number, value in enumerate(values):
                axes.axvline(
                    value,
                    color=colour,
                    linewidth=1.5,
                    linestyle="--",
                    label=None if number else label,
                )
        axes.set(title=_TITLES[quantity], ylim=(0, 1.05), yticks=[])
        if "cosine" in quantity:
            axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    legend_below(figure, of_quantities[0])
    return figure


def dimension_figure(
    name: str, dimensions: Mapping[str, np.ndarray], curves: Mapping[str, np.ndarray]
) -> Figure:
    """Draw the cumulative share of variance by number of components, of clouds of known dimension
    and of a model.
    """
    caption = "share of variance along the first components"
    figure, grid = panels(f"{name}: dimension curves", caption, (10, 4.2), 1, 2, sharey=True)
    for axes, drawn in zip(grid, (dimensions, curves), strict=True):
        for number, (label, curve) in enumerate(drawn.items()):
            look = {"color": series_colour(number), "marker": ".", "markersize": 3, "label": label}
            axes.plot(np.arange(1, len(curve) + 1), curve, **look)
        axes.set_xlabel("components")
        axes.legend(loc="lower right")
    grid[0].set(title="unit cubes in 10 dimensions", ylabel="share of variance", ylim=(0, 1.03))
    grid[1].set(title="tables of the model, and sinusoids", xscale="log")
    return figure


def about_mean_figure(name: str, values: pd.DataFrame) -> Figure:
    """Draw histograms of the rows' length, distance to the mean row, cosine and inner product with
    it, and of the sizes of these two.
    """
    title = f"{name}: rows of the input table about their mean"
    caption = f"{len(values):,} rows; the rows at the ends are named"
    with_sizes = values.assign(**{f"|{name}|": values[name].abs() for name in ("cosine", "dot")})
    figure, grid = panels(title, caption, (10.5, 5.8), 2, 3)
    for axes, (quantity, label) in zip(grid.flat, _ABOUT_MEAN.items(), strict=True):
        of_rows = pd.Series(with_sizes.loc[np.isfinite(with_sizes[quantity]), quantity])
        axes.hist(of_rows, bins=100, color="#0072B2")
        axes.set_title(f"{label}: mean {of_rows.mean():.3g}")
        look = {
            "fontsize": 8,
            "textcoords": "offset points",
            "arrowprops": {"arrowstyle": "-", "color": "0.4"},
        }
        names = values.loc[of_rows.index, "label"].astype(str)
        for row, side in ((int(of_rows.argmin()), "left"), (int(of_rows.argmax()), "right")):
            end = (of_rows.iloc[row], 0)
            axes.annotate(plain(names.iloc[row]), end, (0, 22), ha=side, **look)
    for axes in grid[:, 0]:
        axes.set_ylabel("rows")
    return figure


def position_image(name: str, rows: Tensor) -> Figure:
    """Draw the position table as an image, its first ten rows, and the length of the step to each
    next position.
    """
    values = rows.detach().cpu().double().numpy()
    limit = float(np.quantile(np.abs(values), 0.995))
    figure = Figure(figsize=(10.5, 6.2))
    entitle(figure, f"{name}", f"colours are cut off at {limit:.2g}, the 99.5% quantile")
    places = figure.subplot_mosaic([["table", "first"], ["table", "steps"]], width_ratios=(1.4, 1))
    table = places["table"]
    first = places["first"]
    steps = places["steps"]
    look = {
        "cmap": DIVERGING,
        "vmin": -limit,
        "vmax": limit,
        "aspect": "auto",
        "interpolation": "nearest",
    }
    image(table, values, bar={"extend": "both", "shrink": 0.6}, **look)
    table.set(xlabel="coordinate", ylabel="position", title="the table")
    first.plot(
        (values[:10] - 2 * limit * np.arange(len(values[:10]))[:, None]).T,
        linewidth=0.5,
        color="#0072B2",
    )
    first.set(title="positions 0 to 9, from the top", xlabel="coordinate", yticks=[])
    lengths = np.linalg.norm(np.diff(values, axis=0), axis=1)
    steps.plot(np.arange(1, len(values)), lengths, linewidth=0.8, color="#D55E00")
    high = np.flatnonzero(lengths > 2 * np.median(lengths)).tolist()
    for run in np.split(np.array(high), np.flatnonzero(np.diff(high) > 1) + 1) if high else []:
        top = int(run[lengths[run].argmax()])
        steps.annotate(
            f"{top + 1}", (top + 1, lengths[top]), (3, 2), textcoords="offset points", fontsize=8
        )
    # of textbook positions all steps are equally long: their line would lie on the frame
    top = 1.08 * float(lengths.max(initial=0.0)) or None
    steps.set(title="length of the step to a position", xlabel="position", ylim=(0, top))
    return figure


def following_figure(name: str, table: pd.DataFrame) -> Figure:
    """Draw the cosines of single positions with those after them, a line for each position."""
    by_position = table.groupby("position")
    caption = f"With the next {table['offset'].max():,} positions; position 0 is left out."
    title = f"{name}: cosine of single positions with the next ones"
    figure, axes = panels(title, caption, (8, 4.6))
    colours = colormaps[ORDERED](np.linspace(0, 0.92, by_position.ngroups))
    for (position, line), colour in zip(by_position, colours, strict=True):
        axes.plot(
            line["offset"],
            line["cosine"],
            color=colour,
            linewidth=1.3,
            label=f"position {position}",
        )
    zero_line(axes, color="0.6")
    axes.set(xlabel="positions further on", ylabel="cosine of the two position embeddings")
    axes.legend(fontsize=8, ncols=2)
    return figure


def similarity_figure(
    name: str, matrix: np.ndarray, offsets: pd.DataFrame, order_end: int | None
) -> Figure:
    """Draw the cosines of all pairs of positions, (n, n), and mean and middle 90% by distance, if
    of enough pairs.
    """
    n = len(matrix)
    end = {None: "", n: "; order holds to the last position"}.get(
        order_end, f"; order ends near {order_end}"
    )
    title = f"{name}: cosine of position embeddings"
    figure, (left, right) = panels(title, f"{n:,} positions{end}", (11, 4.6), 1, 2)
    figure.set_layout_engine("constrained", **_WIDE_GAPS)
    image(
        left,
        matrix,
        "cosine",
        bar={"shrink": 0.85},
        cmap=DIVERGING,
        vmin=-1,
        vmax=1,
        interpolation="nearest",
    )
    left.set(xlabel="position", ylabel="position")
    shown = offsets.loc[(offsets["n"] >= n / 10) & (offsets["offset"] > 0)]
    line_with_band(
        right, shown, "mean", ("q05", "q95"), x=shown["offset"], color=_COLOURS["position"]
    )
    right.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    right.set(xlabel="positions apart", ylabel="cosine: mean, and the middle 90%")
    return figure


def path_figure(
    name: str, scores: np.ndarray, shares: np.ndarray, rotation: Rotation | None
) -> Figure:
    """Draw the positions' path in three principal components, coloured by position, and how it
    rotates along the way.

    The first two axes are the plane that rotates most, if one rotates clearly; the third is the
    largest other one.
    """
    clear = rotation if rotation is not None and rotation.is_clear else None
    plane = clear.components if clear else (0, 1)
    third = next(number for number in range(scores.shape[1]) if number not in plane)
    figure = Figure(figsize=(11, 5.0))
    figure.set_layout_engine("constrained", **_WIDE_GAPS)
    _draw_path(figure.add_subplot(1, 2, 1, projection="3d"), scores, shares, (*plane, third))
    n, caption = len(scores), "no plane of the first principal components rotates clearly"
    if clear:
        end = "to the last position" if clear.ends == n else f"up to position {clear.ends}"
        caption = (
            f"one turn per {clear.period:.1f} positions in components {plane[0] + 1} and "
            f"{plane[1] + 1} ({clear.share:.0%} of the variance), {end}"
        )
        _draw_rotation(figure.add_subplot(2, 2, 2), figure.add_subplot(2, 2, 4), clear, n)
    else:
        axes = figure.add_subplot(1, 2, 2)
        for number, values in enumerate(scores.T[:3]):
            axes.plot(values, label=f"component {number + 1} ({shares[number]:.0%})", linewidth=1)
        axes.set(xlabel="position", title="the components along the positions")
        axes.legend()
    entitle(figure, f"{name}: path of the positions", caption)
    return figure


def _draw_path(space: Any, scores: np.ndarray, shares: np.ndarray, axes: tuple[int, ...]) -> None:
    points = scores[:, axes].T
    space.plot(*points, color="0.6", linewidth=0.5, alpha=0.5)
    look = {
        "c": np.arange(points.shape[1]),
        "cmap": SEQUENTIAL,
        "s": 9,
        "linewidths": 0,
        "depthshade": False,
    }
    dots = space.scatter(*points, **look)
    for name, values, axis in zip("xyz", points, axes, strict=True):
        # a distant position (often the first) would leave no room for the others
        low, high = np.quantile(values, [0.005, 0.995])
        margin = 0.1 * (high - low)
        label = f"component {axis + 1} ({shares[axis]:.0%})"
        space.set(**{f"{name}lim": (low - margin, high + margin), f"{name}ticklabels": []})
        getattr(space, f"set_{name}label")(label, labelpad=-8)
    space.set_box_aspect(None, zoom=0.88)
    space.figure.colorbar(dots, ax=space, label="position", shrink=0.6, location="left", pad=0.02)


def _draw_rotation(above: Axes, below: Axes, rotation: Rotation, n: int) -> None:
    windows, colour = rotation.windows, _COLOURS["position"]
    middles = (windows["start"] + windows["stop"]) / 2
    ordered = windows["ordered"]
    limit = {"color": "0.4", "linewidth": 1, "linestyle": "--"}
    above.plot(middles, windows["period"].where(ordered >= paths.ORDERED), color=colour)
    above.axhline(rotation.period, **limit)
    title = f"positions per turn (dashed: {rotation.period:.1f}, of all)"
    above.set(xlim=(0, n), ylim=(0, 2 * rotation.period), title=title)
    below.plot(middles, ordered, color=colour)
    below.axhline(paths.ORDERED, **limit)
    title = "share of the steps that follow the rotation"
    below.set(xlim=(0, n), ylim=(min(0.0, ordered.min()), 1.03), xlabel="position", title=title)


def persistence_figure(name: str, loops: pd.DataFrame, features: pd.DataFrame) -> Figure:
    """Draw persistence diagrams of the positions' path, as of ``loops_of``, a panel for each number
    of components.
    """
    caption = (
        "distances at which loops are born and filled, and at which pieces join; ring: the longest "
        "loop; dashed: "
    )
    caption += "the longest of 19 permuted tables"
    figure, [grid] = panels(
        f"{name}: persistence", caption, (13, 4.2), 1, len(loops), squeeze=False
    )
    for axes, row in zip(grid, loops.to_dict("records"), strict=True):
        of_row = select(features, components=row["components"])
        for dimension, label, colour in (
            (0, "pieces (dimension 0)", "0.55"),
            (1, "loops (1)", _COLOURS["position"]),
        ):
            ends = select(of_row, dimension=dimension)
            axes.plot(ends["birth"], ends["death"], ".", color=colour, markersize=5, label=label)
        for above, line in ((0, "-"), (row["chance"], "--")):
            axes.axline((0, above), slope=1, color="0.4", linewidth=0.9, linestyle=line)
        # a single distant position (often the first) would leave no room for the others
        limit = 1.2 * max(
            np.quantile(of_row["death"], 0.99), np.nan_to_num(row["death"]), row["chance"]
        )
        if row["loops"]:
            point = (row["birth"], row["death"])
            side = 1 if row["birth"] < limit / 2 else -1
            axes.plot(*point, "o", color="black", markerfacecolor="none", markersize=9)
            look = {
                "ha": "left" if side > 0 else "right",
                "textcoords": "offset points",
                "fontsize": 9,
            }
            axes.annotate(f"{row['longest']:.3f}", point, (8 * side, 2), **look)
        ends_at = -0.02 * limit, limit
        axes.set(
            title=f"{row['components']} components", xlabel="birth", xlim=ends_at, ylim=ends_at
        )
    grid[0].set_ylabel("death")
    legend_below(figure, grid[0])
    return figure


def depth_figure(name: str, this: TokenTrajectory, other: TokenTrajectory) -> Figure:
    """Draw the norm of each token of the first sentence, its step and cosine to the next layer, and
    how alike the sentences are. Tokens that differ or stand out are named; the black line is the
    mean."""
    figure, grid = panels(
        f"{name}: tokens through the layers", _sentences(this, other), (11, 7.4), 2, 2
    )
    *of_quantities, last = grid.ravel()
    quantities = paths.movements(this.states)
    pairs = paths.match_tokens(this.tokens, other.tokens)
    changed = sorted(set(range(len(this.tokens))) - {a for a, _, equal in pairs if equal})
    named = _named_tokens(quantities, changed)

    def draw_tokens(axes: Axes, x: np.ndarray, values: np.ndarray, places: Sequence[int]) -> None:
        for position, of_token in zip(places, values.T, strict=True):
            axes.plot(
                x,
                of_token,
                color=named.get(position, _GREY),
                linewidth=1.5 if position in named else 0.9,
            )

    for axes, (quantity, values) in zip(of_quantities, quantities.items(), strict=True):
        between = len(values) < len(this.states)
        x = np.arange(len(values)) + (0.5 if between else 0.0)
        draw_tokens(axes, x, values, range(len(this.tokens)))
        axes.plot(x, np.nanmean(values, axis=1), color="black", linewidth=2.4)
        axes.set_title(_MOVEMENTS[quantity])
        layer_axis(axes, label="between layers" if between else "layer")
    of_quantities[2].set_ylim(min(0.0, float(np.nanmin(quantities["cosine"]))), 1.02)
    alike = paths.cross_sentence_table(this, other).pivot(
        index="layer", columns="place_in_first", values="cosine"
    )
    draw_tokens(last, alike.index.to_numpy(), alike.to_numpy(), alike.columns.tolist())
    last.set(title="cosine of the two sentences' tokens at the same place", ylim=(None, 1.02))
    layer_axis(last)
    partner = {a: other.tokens[b] for a, b, _ in pairs}
    both = (
        [this.tokens[position], partner.get(position, this.tokens[position])] for position in named
    )
    names = [" / ".join(dict.fromkeys(map(_display, tokens))) for tokens in both]
    handles = [
        Line2D([], [], color="black", linewidth=2.4),
        *(Line2D([], [], color=c) for c in named.values()),
    ]
    figure.legend(handles, ["mean", *names], loc="outside lower center", ncols=len(handles))
    return figure


def _note_of_hidden(both: Sequence[TokenTrajectory], shown: Sequence[np.ndarray]) -> str:
    """Return which tokens of two sentences are not shown, for a caption; "" for none."""
    left_out: set[str] = set()
    for path, is_shown in zip(both, shown, strict=True):
        left_out |= {_display(path.tokens[position]) for position in np.flatnonzero(~is_shown)}
    return f"; left out for their norm: {', '.join(sorted(left_out))}" if left_out else ""


def _named_tokens(quantities: Mapping[str, np.ndarray], changed: Sequence[int]) -> dict[int, str]:
    """Return the tokens that a figure names, by position, and their colours: those that differ
    between the sentences, then those furthest from the others in all quantities.
    """
    far = sum(
        np.nan_to_num(np.abs(robust_scale(values, axis=1))).mean(0)
        for values in quantities.values()
    )
    others = [position for position in np.argsort(-far).tolist() if position not in changed]
    chosen = [*changed, *others][:_MAX_NAMED]
    return {position: f"C{number}" for number, position in enumerate(chosen)}


def paths_figure(name: str, this: TokenTrajectory, other: TokenTrajectory) -> Figure:
    """Draw the tokens' paths from layer 0 to the last in the plane of most variance of both
    sentences' states.

    Matched tokens have one colour; the first sentence is solid, the second dashed. An arrow ends at
    the last layer, where the token is named; the small dots are the layers between.
    """
    both = (this, other)
    # a token of massive norm, as the first often is, would fill the plane
    lengths = [np.linalg.norm(path.states, axis=-1) for path in both]
    limit = MASSIVE * np.median(np.concatenate([norms.ravel() for norms in lengths]))
    shown = [norms.max(axis=0) <= limit for norms in lengths]
    states = [
        path.states[:, is_shown].reshape(-1, path.states.shape[-1])
        for path, is_shown in zip(both, shown, strict=True)
    ]
    plane = PCA(2, svd_solver="full").fit(np.concatenate(states))
    note = _note_of_hidden(both, shown)
    caption = (
        f"{_sentences(this, other)}\nsolid: the first, dashed: the second; hollow: layer 0, arrow: "
        "layer "
    )
    figure, axes = panels(
        f"{name}: paths of the tokens", f"{caption}{len(this.states) - 1}{note}", (10, 7.6)
    )
    pairs = paths.match_tokens(this.tokens, other.tokens)
    partners = {of_other: of_this for of_this, of_other, _ in pairs}
    equal = {of_this for of_this, _, are_equal in pairs if are_equal}
    labels = []
    for position in np.flatnonzero(shown[0]).tolist():
        points = plane.transform(this.states[:, position])
        colour = token_colour(position)
        _draw_token_path(axes, points, colour, "-")
        labels.append((points[-1], points[-2], _display(this.tokens[position]), colour))
    for position in np.flatnonzero(shown[1]).tolist():
        points = plane.transform(other.states[:, position])
        # a token of the second sentence has the colour of its partner in the first
        colour = token_colour(partners.get(position, len(this.tokens) + position))
        _draw_token_path(axes, points, colour, (0, (4, 2)))
        # the name of an equal partner stands at the first sentence's path already
        if partners.get(position) not in equal:
            labels.append((points[-1], points[-2], _display(other.tokens[position]), colour))
    first, second = plane.explained_variance_ratio_
    axes.set(
        xlabel=f"first component ({first:.0%} of the variance)",
        ylabel=f"second component ({second:.0%})",
    )
    axes.margins(0.08)
    _place_labels(figure, axes, labels)
    return figure


def _draw_token_path(axes: Axes, points: np.ndarray, colour: str, style: Any) -> None:
    """Draw the points (n_layers, 2) of a token: a hollow one at layer 0, an arrow to the last."""
    line: dict[str, Any] = {"color": colour, "linewidth": 1.1, "linestyle": style}
    axes.plot(*points[:-1].T, alpha=0.85, **line)
    axes.plot(*points[1:-1].T, ".", color=colour, markersize=4)
    axes.plot(*points[0], "o", color=colour, markerfacecolor="white", markersize=5)
    # an arrow does not widen the axes: an invisible point does
    axes.plot(*points[-1], alpha=0)
    arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, **line}
    axes.annotate("", xy=points[-1], xytext=points[-2], arrowprops=arrow)


def _place_labels(
    figure: Figure, axes: Axes, labels: Sequence[tuple[np.ndarray, np.ndarray, str, str]]
) -> None:
    """Write names (of the end of a path, the point before it, name and colour) ahead of the arrows,
    without overlap.
    """
    figure.draw_without_rendering()
    boxes: list[Bbox] = []
    height = 11.0
    for end, before, text, colour in sorted(labels, key=lambda label: -label[0][1]):
        ahead = 1 if end[0] >= before[0] else -1
        x, y = axes.transData.transform(end) * 72 / figure.dpi
        width = 6.2 * len(text) + 4
        left = x + 6 if ahead > 0 else x - 6 - width
        shifts = (sign * number * height / 2 for number in count() for sign in (-1, 1))
        tried = ((shift, Bbox.from_bounds(left, y + shift, width, height)) for shift in shifts)
        shift, box = next((shift, box) for shift, box in tried if not any(map(box.overlaps, boxes)))
        boxes.append(box)
        look: dict[str, Any] = {
            "ha": "left" if ahead > 0 else "right",
            "va": "center",
            "color": colour,
        }
        if abs(shift) > height:
            look["arrowprops"] = {
                "arrowstyle": "-",
                "linewidth": 0.5,
                "alpha": 0.6,
                "color": colour,
            }
        look |= {"fontsize": 9.5, "path_effects": [withStroke(linewidth=2.5, foreground="white")]}
        axes.annotate(
            text,
            (float(end[0]), float(end[1])),
            (6 * ahead, shift),
            textcoords="offset points",
            **look,
        )


def _display(token: str) -> str:
    """Return a token without the mark of a space before it, punctuation in quotes.

    >>> _display("\u0120bank"), _display(".")
    ('bank', '"."')
    """
    word = plain(token)
    return word if any(map(str.isalnum, word)) else f'"{word}"'


def plain(token: str) -> str:
    """Return a token without the mark of a space, as Matplotlib can draw it."""
    # a dollar would begin a formula, and the font has no East Asian characters
    drawn = "".join(each if ord(each) < 0x2E80 else f"U+{ord(each):04X}" for each in token)
    return (drawn.lstrip("\u0120\u2581") or "_").replace("$", r"\$")


def _sentences(one: TokenTrajectory, other: TokenTrajectory) -> str:
    return "\n".join(" ".join(map(plain, trajectory.tokens)) for trajectory in (one, other))
