"""Charts drawn by matplotlib, and figures written to files.

Only the object interface of matplotlib is used: no global state, no display, safe inside a training
process.
"""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis as MatplotlibAxis
from matplotlib.colors import CenteredNorm, LogNorm, Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from repdyn.utils.attempts import Attempt, attempts
from repdyn.utils.files import write_atomically
from repdyn.views.charts.description import Axis, Cells, Chart, Line, Mark, Panel
from repdyn.views.tables.style import ALERT_COLOUR, DIVERGING, SEQUENTIAL, styled

LEGEND_ROWS = 20
"""Largest number of rows in the legend of a chart."""

_MAX_TICKS = 12
_ZERO_WIDTH = 0.4
"""Room between 0 and the first power of ten, in decades."""
_COVERED = 0.01
"""Share of a panel's values within which one line hides another."""
_RIM = 1.6
"""Points by which a line is wider for each one that hides it."""
_LABEL_WIDTH = 26
"""Characters of a line of an axis's label."""


@styled
def draw(chart: Chart) -> Figure:
    """Draw a chart as a figure of matplotlib."""
    figure = Figure(figsize=chart.size)
    n_rows = math.ceil(len(chart.panels) / chart.columns)
    grid = (
        figure.subplots(n_rows, chart.columns, squeeze=False, sharex=chart.shares_x)
        .ravel()
        .tolist()
    )
    for axes, panel in zip(grid, chart.panels, strict=False):
        size = 9 if chart.is_small else 10
        axes.set_title(panel.title, loc="left", fontsize=size)
        axes.set_xlabel(panel.x.label, fontsize=size)
        width = _LABEL_WIDTH if len(chart.panels) > 1 else 2 * _LABEL_WIDTH
        axes.set_ylabel("\n".join(textwrap.wrap(panel.y.label, width)), fontsize=size)
        if chart.is_small:
            axes.tick_params(labelsize=8)
        if panel.cells is None:
            _draw_lines(axes, panel)
        else:
            _draw_cells(figure, axes, panel.cells, panel.marks)
    # the places that the last row has too many
    for axes in grid[len(chart.panels) :]:
        axes.remove()
    if chart.legend:
        handles = [
            Line2D([], [], **_look(entry))
            if isinstance(entry, Line)
            else Line2D([], [], linestyle="none", label=entry)
            for entry in chart.legend
        ]
        n_columns = math.ceil(len(handles) / LEGEND_ROWS)
        legend = figure.legend(
            handles=handles, title=chart.legend_title, loc="outside right center", ncols=n_columns
        )
        for text, entry in zip(legend.get_texts(), chart.legend, strict=True):
            text.set_fontweight("bold" if isinstance(entry, str) else "normal")
    entitle(figure, chart.title, chart.caption)
    return figure


def entitle(figure: Figure, text: str, caption: str) -> None:
    """Put a title above a figure, and below it the lines of a caption, each wrapped to the figure's
    width.
    """
    # 12 characters of this size fill an inch
    width = int(12 * figure.get_figwidth())
    lines = [
        textwrap.fill(part, width, break_on_hyphens=False) for part in (text, *caption.splitlines())
    ]
    figure.suptitle("\n".join(lines), fontsize=10.5)


def _draw_lines(axes: Axes, panel: Panel) -> None:
    for line in _widened(panel.lines):
        _draw_line(axes, line)
    if panel.gap:
        heights = [dict(zip(line.x, line.y, strict=True)) for line in panel.gap]
        x = sorted(set.intersection(*map(set, heights)))
        low, high = ([line[at] for at in x] for line in heights)
        axes.fill_between(x, low, high, color="0.8", alpha=0.5, linewidth=0)
    if panel.legend == "right":
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(1.0, 1.03),
            fontsize=8,
            handlelength=1.2,
            borderaxespad=0.2,
        )
    elif panel.legend:
        axes.legend(loc="best")
    if panel.y.is_empty:
        axes.text(0.5, 0.5, "no value at any layer or step", transform=axes.transAxes, ha="center")
    if panel.y.is_signed:
        axes.axhline(0, color="0.5", linewidth=1, zorder=1.5)
    _set_axis(axes, "x", panel.x)
    _set_axis(axes, "y", panel.y)
    if (loss := panel.loss) is not None:
        other = axes.twinx()
        other.grid(False)
        other.spines["right"].set(visible=True, color=loss.colour)
        _draw_line(other, loss)
        other.set_ylabel(f"{loss.label} (dashed)", color=loss.colour)
        other.tick_params(axis="y", colors=loss.colour)
    _mark_columns(axes, [mark.x for mark in panel.marks])


def _draw_line(axes: Axes, line: Line) -> None:
    x = np.asarray(line.x, float)
    y = np.asarray(line.y, float)
    look = _look(line) | {
        "linewidth": line.width,
        "alpha": None if line.opacity == 1 else line.opacity,
    }
    look["markevery"] = None if line.marked is None else [*line.marked]
    axes.plot(x, y, **look)
    if line.band is not None:
        axes.fill_between(x, *line.band, color=line.colour, alpha=line.band_opacity, linewidth=0)


def _look(line: Line) -> dict[str, Any]:
    look = {"color": line.colour, "label": line.label or None, "linestyle": line.dash}
    look |= {"markerfacecolor": "none"} if line.dash == "none" else {}
    return look | {"marker": line.marker or None, "markersize": line.marker_size}


def _widened(lines: Sequence[Line]) -> list[Line]:
    """Return the lines, with those that have a band wider by :data:`_RIM` for each later one, no
    thinner, that covers half or more of their points, so that all are visible."""
    values = np.concatenate([[math.nan], *(line.y for line in lines)])
    near = (
        0.0 if np.isnan(values).all() else _COVERED * float(np.nanmax(values) - np.nanmin(values))
    )
    widened = []
    for number, line in enumerate(lines):
        heights = {x: y for x, y in zip(line.x, line.y, strict=True) if not math.isnan(y)}
        rim = 0.0
        for upper in lines[number + 1 :] if line.band is not None else ():
            covered = sum(
                abs(heights.get(x, math.nan) - y) <= near
                for x, y in zip(upper.x, upper.y, strict=True)
            )
            if upper.width >= line.width and covered >= max(1.0, 0.5 * len(heights)):
                rim += _RIM
        widened.append(
            replace(line, width=line.width + rim, marker_size=line.marker_size + 1.25 * rim)
        )
    return widened


def _set_axis(axes: Axes, name: str, axis: Axis) -> None:
    """Set scale, ticks and limits of the x or y axis."""
    drawn: MatplotlibAxis = getattr(axes, f"{name}axis")
    if axis.log_from is not None:
        getattr(axes, f"set_{name}scale")("symlog", linthresh=axis.log_from, linscale=_ZERO_WIDTH)
        drawn.set_minor_locator(NullLocator())
    if axis.ticks is not None:
        drawn.set_ticks([*axis.ticks], [*axis.ticks.values()])
    if axis.is_integer:
        drawn.set_major_locator(MaxNLocator("auto", integer=True))
    if axis.limits is not None:
        # shares of the axis as it is drawn: on a logarithmic one they are no shares of its values
        places = drawn.get_transform()
        first, last = places.transform(np.array(axis.limits))
        before, after = (_padding(share, first, last) for share in axis.padding)
        limits = places.inverted().transform(np.array([first - before, last + after]))
        getattr(axes, f"set_{name}lim")(*limits)


def _padding(share: float, first: float, last: float) -> float:
    """Return the room beside an axis; one whose ends are equal has half a unit."""
    if share and first == last:
        return 0.5
    return share * (last - first)


def _norm(colours: Axis) -> Normalize:
    """Return what places values on a scale of colours."""
    low, high = colours.limits or (0.0, 1.0)
    if colours.is_signed:
        return CenteredNorm(0, max(-low, high) or 1.0)
    if colours.log_from is None:
        return Normalize(low, high)
    if low < colours.log_from:
        return SymLogNorm(colours.log_from, linscale=_ZERO_WIDTH, vmin=low, vmax=high)
    return LogNorm(low, high)


def _draw_cells(figure: Figure, axes: Axes, cells: Cells, marks: Sequence[Mark]) -> None:
    axes.grid(False)
    axes.patch.set(facecolor="0.88", hatch="////", edgecolor="0.65")
    _, high = cells.colours.limits or (0.0, 1.0)
    image = axes.imshow(
        np.ma.masked_invalid(cells.values),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        cmap=DIVERGING if cells.colours.is_signed else SEQUENTIAL,
        norm=_norm(cells.colours),
    )
    is_cut = cells.colours.limits is not None and (cells.values > high).any()
    bar = figure.colorbar(image, label=cells.colours.label, extend="max" if is_cut else "neither")
    if cells.colours.ticks is not None:
        bar.set_ticks([*cells.colours.ticks], labels=[*cells.colours.ticks.values()], minor=False)
        bar.minorticks_off()
    for axis, names in ((axes.xaxis, cells.columns), (axes.yaxis, cells.rows)):
        shown = range(0, len(names), math.ceil(len(names) / _MAX_TICKS))
        axis.set_ticks(shown, [names[number] for number in shown])
    is_crowded = len(cells.columns) > _MAX_TICKS or len(cells.columns[-1]) > 5
    axes.tick_params(axis="x", rotation=45 if is_crowded else 0)
    # a white ring below, so that the mark is seen on cells of its own colour
    rings = [(mark.x, mark.y) for mark in marks if mark.y is not None]
    for colour, width in (("white", 3.4), (ALERT_COLOUR, 1.8)) if rings else ():
        axes.plot(*zip(*rings, strict=True), "o", color="none", mec=colour, markersize=9, mew=width)
    _mark_columns(axes, [mark.x for mark in marks if mark.y is None])


def _mark_columns(axes: Axes, places: Sequence[float]) -> None:
    """Draw triangles along the upper edge, at these places on the x axis."""
    if places:
        x = sorted({*places})
        axes.plot(
            x,
            np.ones(len(x)),
            "v",
            color=ALERT_COLOUR,
            transform=axes.get_xaxis_transform(),
            markersize=8,
            clip_on=False,
            zorder=5,
        )


def draw_all(drawings: Mapping[str, Callable[[], Figure]], attempt: Attempt) -> dict[str, Figure]:
    """Return the figures that could be drawn, by name; ``attempt`` collects or raises the errors of
    the others.
    """
    figures = {}
    for name, draw_one in drawings.items():
        with attempt():
            figures[name] = draw_one()
    return figures


_DPI = 150


@styled
def save(
    figures: Mapping[str, Figure],
    folder: Path,
    attempt: Attempt | None = None,
    formats: Sequence[str] = (".png", ".svg"),
) -> list[Path]:
    """Write figures, by their file names without suffix, as PNG (150 dpi) and SVG, or one of them;
    return the files.

    Output is deterministic. If one figure fails, the others are still written: ``attempt`` collects
    the errors for a caller that has more to do, without it the first is raised once all are tried.
    """
    written = []
    with attempts(attempt) as attempt_each:
        with attempt_each():
            folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            paths = [folder / f"{name}{suffix}" for suffix in formats]
            with attempt_each():
                # names are made of those of metrics and subsets, which a user may choose
                if ".." in Path(name).parts or not paths[0].is_relative_to(folder):
                    raise ValueError(
                        f"expected the name of a figure inside its folder, got {name!r}"
                    )
                for path in paths:
                    options = (
                        {"dpi": _DPI} if path.suffix == ".png" else {"metadata": {"Date": None}}
                    )
                    write_atomically(path, partial(figure.savefig, **options))
                    written.append(path)
    return written
