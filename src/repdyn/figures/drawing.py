"""What the pictures share: lines with bands, axes that show their zero, captions, files."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import CenteredNorm, LogNorm, Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from repdyn.metrics.names import base_name
from repdyn.tables.designs import sampling
from repdyn.tables.frames import stack_of
from repdyn.tables.style import FROM_ZERO, LOG_IF_WIDE, LOG_VALUES, SIGNED, WIDE, metric_unit, short_count, styled
from repdyn.utils.atomic_files import write_atomically
from repdyn.utils.attempts import Attempt, attempts

MAX_TICKS = 12

_MARGIN = 0.04
"""Share of an axis left free at either end."""
_ZERO_WIDTH = 0.4
"""Room between 0 and the first power of ten, in decades."""
_MAX_BESIDE = 3
_MAX_POWERS = 6
"""Of ten that an axis of values names."""
_APART = 2.5
"""Ratio of two numbers on a logarithmic axis from which on their labels do not touch."""
_COVERED = 0.01
"""Share of a panel's values within which one line hides another."""
_RIM = 1.6
"""Points by which a line is thicker for each one that hides it."""

Curve: TypeAlias = tuple[pd.Series, pd.Series, Mapping[str, Any]]
"""Values against their index, half of their 95 % intervals, and the look of the line."""


def line(axes: Axes, values: pd.Series, margins: pd.Series, *, shade: float = 0.18, **look: Any) -> None:
    """Draw ``values`` against their index, with a band of ``margins`` to either side; no band where they are NaN."""
    defaults: dict[str, Any] = {"markersize": 3.5 if len(values) <= 40 else 0}
    axes.plot(values.index, values.to_numpy(), **defaults | look)
    low, high = (values - margins).to_numpy(), (values + margins).to_numpy()
    axes.fill_between(values.index, low, high, color=look["color"], alpha=shade, linewidth=0)


def lines(axes: Axes, curves: Sequence[Curve], *, shade: float) -> None:
    """Several :func:`line` in this order; one that later ones lie upon is thicker, so that all of them are seen.

    Args:
        axes: to draw in.
        curves: each look has a ``markersize``, which grows with the line.
        shade: opacity of the bands.
    """
    values = np.concatenate([[math.nan], *(curve[0].to_numpy(float) for curve in curves)])
    near = 0.0 if np.isnan(values).all() else _COVERED * float(np.nanmax(values) - np.nanmin(values))
    for number, (curve, margins, look) in enumerate(curves):
        rim = _RIM * sum(_hides(later[0], curve, near) for later in curves[number + 1 :])
        wider = {"linewidth": rcParams["lines.linewidth"] + rim, "markersize": look["markersize"] + 1.25 * rim}
        line(axes, curve, margins, shade=shade, **{**look, **wider})


def _hides(upper: pd.Series, lower: pd.Series, near: float) -> bool:
    """Whether the two are ``near`` at half or more of the places of ``lower``."""
    return bool(((upper - lower).abs() <= near).sum() >= max(1.0, 0.5 * lower.count()))


def side_by_side(n_panels: int) -> tuple[int, int]:
    """Columns and rows of panels of one metric, three beside each other at most.

    >>> side_by_side(2), side_by_side(4)
    ((2, 1), (3, 2))
    """
    return min(n_panels, _MAX_BESIDE), math.ceil(n_panels / _MAX_BESIDE)


def subplots(figure: Figure, n_panels: int) -> list[Axes]:
    """As many panels, in the rows of :func:`side_by_side`."""
    columns, n_rows = side_by_side(n_panels)
    panels = figure.subplots(n_rows, columns, squeeze=False, sharex=n_rows == 1).ravel().tolist()
    for panel in panels[n_panels:]:
        panel.remove()
    return panels[:n_panels]


def scale(axes: Axes, metric: str, values: np.ndarray) -> None:
    """The scale of a metric: shares start at 0, ranks are logarithmic; it is said where there is nothing to see."""
    if np.isnan(values).all():
        axes.text(0.5, 0.5, "no value at any layer or step", transform=axes.transAxes, ha="center")
        return
    lowest = log_from(metric, values)
    if base_name(metric) in SIGNED:
        axes.axhline(0, color="0.5", linewidth=1, zorder=1.5)
    if lowest is not None:
        _log_values(axes, lowest, values)
    elif base_name(metric) in FROM_ZERO or base_name(metric) in LOG_VALUES:
        axes.set_ylim(0, 1.03 * axes.get_ylim()[1])


def log_from(metric: str, values: np.ndarray) -> float | None:
    """The power of ten from which on the values of a metric are shown logarithmically; None where they are not at all.

    >>> log_from("token_rank", np.array([0.0, 3.0, 700.0])), log_from("token_rank", np.array([0.0, 3.0]))
    (1.0, None)
    >>> log_from("norm", np.array([0.3, 500.0])), log_from("anisotropy", np.array([1e-6, 1.0]))
    (0.1, None)
    """
    positive = values[values > 0]
    if not len(positive) or base_name(metric) not in LOG_IF_WIDE | LOG_VALUES.keys():
        return None
    low, high = float(positive.min()), float(positive.max())
    lowest = max(10.0 ** math.floor(math.log10(low)), LOG_VALUES.get(base_name(metric), 0.0))
    wide = high >= 10 * lowest if base_name(metric) in LOG_VALUES else high > WIDE * low
    return lowest if wide else None


def _log_values(axes: Axes, lowest: float, values: np.ndarray) -> None:
    """A logarithmic axis of values that shows its zero where there is one."""
    highest = float(np.nanmax(values))
    axes.set_yscale("symlog", linthresh=lowest, linscale=_ZERO_WIDTH)
    powers = range(round(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    every = math.ceil(len(powers) / _MAX_POWERS)
    with_zero = bool(np.nanmin(values) < lowest)
    axes.yaxis.set_major_locator(FixedLocator([*([0.0] if with_zero else []), *(10.0**p for p in powers[::every])]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value < 1 else short_count(value)))
    places = axes.yaxis.get_transform()
    ends = [0.0 if with_zero else float(np.nanmin(values)), highest]
    first, last = places.transform(np.array(ends))
    margin = _MARGIN * (last - first)
    axes.set_ylim(*places.inverted().transform(np.array([first - margin, last + margin])))


def colours(metric: str, cells: np.ma.MaskedArray) -> Normalize:
    """How the values of a metric become colours, on the scale that :func:`scale` gives their axis."""
    if cells.count() == 0:
        return Normalize(0, 1)
    low, high = float(cells.min()), float(cells.max())
    lowest = log_from(metric, cells.compressed())
    if base_name(metric) in SIGNED:
        return CenteredNorm(0, max(abs(low), abs(high)) or 1.0)
    if lowest is not None:
        return SymLogNorm(lowest, linscale=_ZERO_WIDTH, vmin=0, vmax=high) if low < lowest else LogNorm(low, high)
    return Normalize(0 if base_name(metric) in FROM_ZERO or base_name(metric) in LOG_VALUES else low, high)


def name_values(axes: Axes, metric: str) -> None:
    """The unit of ``metric`` along a low panel."""
    axes.set_ylabel("\n".join(textwrap.wrap(metric_unit(metric), width=24)))


def log_axis(axes: Axes, values: Sequence[float], name: Callable[[float], str], label: str) -> None:
    """An x axis that is logarithmic from the power of ten below the smallest positive value on, and linear below it.

    Args:
        axes: or one of several that share their x axis.
        values: all that are to be shown, 0 perhaps among them.
        name: of a tick.
        label: of the axis.
    """
    lowest, highest = _set_log(axes, values)
    axes.xaxis.set_major_locator(FixedLocator([0.0, *(10.0**power for power in range(lowest, highest + 1))]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: name(value)))
    axes.set_xlabel(label)
    # the margins that matplotlib sets were worked out on a linear axis
    places = axes.xaxis.get_transform()
    first, last = places.transform([min(values), max(values)])
    margin = _MARGIN * (last - first) or _MARGIN
    axes.set_xlim(*places.inverted().transform([first - margin, last + margin]))


def log_steps(axes: Axes, steps: Sequence[int]) -> None:
    """Steps, ticks at powers of ten."""
    note = "logarithmic; step 0 before training" if min(steps) == 0 else "logarithmic"
    log_axis(axes, steps, lambda step: f"{step:,.0f}", f"step ({note})")


def log_tokens(axes: Axes, tokens: Sequence[float]) -> None:
    """Training tokens, ticks at powers of ten."""
    note = "logarithmic; 0 before training" if min(tokens) == 0 else "logarithmic"
    log_axis(axes, tokens, short_count, f"training tokens ({note})")


def tokens_above(axes: Axes, tokens: pd.Series) -> None:
    """A second axis above one made by :func:`log_steps`, that tells training tokens at powers of ten and at the end.

    Args:
        axes: with its limits settled, as they are taken over.
        tokens: against step, both ascending; between two steps they are interpolated.
    """
    counts = tokens.to_numpy(float)
    first, last = counts[0], counts[-1]
    powers = (10.0**power for power in range(math.ceil(math.log10(counts[counts > 0][0])), 16))
    shown = [*([0.0] if first == 0 else []), *takewhile(lambda power: power * _APART <= last, powers), last]
    above = axes.twiny()
    above.grid(False)
    above.spines["top"].set_visible(True)
    _set_log(above, tokens.index.tolist())
    above.set_xlim(axes.get_xlim())
    above.xaxis.set_minor_locator(NullLocator())
    places = np.interp(shown, counts, tokens.index.to_numpy(float))
    above.set_xticks(places, [short_count(count) for count in shown])
    above.set_xlabel("training tokens")


def _set_log(axes: Axes, values: Sequence[float]) -> tuple[int, int]:
    """Set the scale for ``values``; the powers of ten at or below the smallest positive and the largest of them."""
    positive = [value for value in values if value > 0] or [1.0]
    lowest, highest = math.floor(math.log10(min(positive))), math.floor(math.log10(max(positive)))
    axes.set_xscale("symlog", linthresh=10.0**lowest, linscale=_ZERO_WIDTH)
    return lowest, highest


def name_ticks(axis: Axis, names: Sequence[str]) -> None:
    """Names of equally spaced cells, some left out where there are many."""
    shown = range(0, len(names), math.ceil(len(names) / MAX_TICKS))
    axis.set_ticks(shown, [names[index] for index in shown])


def entitle(figure: Figure, text: str, caption: str) -> None:
    """A title, and below it the lines of a caption, each wrapped to the figure's width."""
    # 12 characters of this size fill an inch
    width = int(12 * figure.get_figwidth())
    wrapped = [textwrap.fill(part, width, break_on_hyphens=False) for part in (text, *caption.splitlines())]
    figure.suptitle("\n".join(wrapped), fontsize=10.5)


def entitle_run(figure: Figure, rows: pd.DataFrame, text: str, *more: str) -> None:
    """Write a title over the name of the run, its model, how its vectors were sampled, and more lines."""
    first, stack = rows.iloc[0], stack_of(rows)
    # the pictures of two stacks are alike but for this
    text = text if stack is None else f"{stack}: {text}"
    entitle(figure, text, "\n".join([f"{first['run']}, {first['model']}, {sampling(rows)}", *filter(None, more)]))


def drawn(drawings: Mapping[str, Callable[[], Figure]], attempt: Attempt) -> dict[str, Figure]:
    """The figures that could be drawn, by name; the failures of the others are kept, or let out, by ``attempt``."""
    figures = {}
    for name, draw in drawings.items():
        with attempt():
            figures[name] = draw()
    return figures


@styled
def save(figures: Mapping[str, Figure], folder: Path, attempt: Attempt | None = None) -> list[Path]:
    """Write figures, by the stem of their file, as PNG (150 dpi) and SVG; the same figures give the same bytes.

    Args:
        figures: to be written; one that fails keeps none of the others from being written.
        folder: made where it is missing; files of the same name are replaced.
        attempt: keeps the failures for a caller who has more to do; raised here without it.

    Returns:
        The files written.

    Raises:
        Exception: what writing the first failing figure raised, once the others are written.
    """
    written = []
    with attempts(attempt) as each:
        with each():
            folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            png, svg = folder / f"{name}.png", folder / f"{name}.svg"
            with each():
                write_atomically(png, lambda path, one=figure: one.savefig(path, dpi=150))
                written.append(png)
                with _as_laid_out(figure):
                    write_atomically(svg, lambda path, one=figure: one.savefig(path, metadata={"Date": None}))
                written.append(svg)
    return written


@contextmanager
def _as_laid_out(figure: Figure) -> Iterator[None]:
    """The parts of a figure stay where they are: to place those of many panels takes longer than to draw them."""
    engine = figure.get_layout_engine()
    figure.set_layout_engine("none")
    try:
        yield
    finally:
        figure.set_layout_engine(engine)
