"""A chart as data, which matplotlib and the page both draw.

A :class:`Chart` has panels, a :class:`Panel` lines or the cells of a heatmap between two axes:
records that know neither of a drawing library nor of a metric.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ZERO_SHARE = 10**-0.4
"""Where a logarithmic axis shows 0, as a share of the value from which on it is logarithmic."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis, or the scale of the colours of a heatmap."""

    label: str = ""
    limits: tuple[float, float] | None = None
    """First and last value that must be visible; None fits the axis to what is drawn."""
    padding: tuple[float, float] = (0.05, 0.05)
    """Shares of the axis left free before the first value and after the last."""
    log_from: float | None = None
    """The value from which on the axis is logarithmic, linear down to 0 below it; None for a linear
    axis.
    """
    ticks: Mapping[float, str] | None = None
    """Names of ticks by their value; None leaves them to the library."""
    is_signed: bool = False
    """Whether the sign of a value matters: a line at 0, and colours that change there."""
    is_integer: bool = False
    is_training: bool = False
    """Whether it counts the steps or tokens of a training, so that a reader may switch between the
    two.
    """
    is_empty: bool = False
    """Whether there is no value to show."""

    @property
    def floor(self) -> float | None:
        """Return the position of 0 for a library that cannot make an axis linear near 0; None for a
        linear axis.
        """
        return None if self.log_from is None else ZERO_SHARE * self.log_from


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A line, with a band if its intervals are known."""

    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None = None
    """Lower and upper ends of the 95% intervals at its points, or of the range of baselines, NaN
    where they are not known; None for a line without a band.
    """
    colour: str
    label: str = ""
    """In the legend; empty for none."""
    width: float = 1.8
    opacity: float = 1.0
    dash: str = "-"
    """As matplotlib names it: "-", "--", ":" or "none"."""
    marker: str = "o"
    """As matplotlib names it; empty for none."""
    marker_size: float = 3.5
    marked: Sequence[int] | None = None
    """Positions of the points that have a marker; None for all."""
    band_opacity: float = 0.18
    description: str = ""
    """What a reader sees when pointing at one of its values, before the value."""
    run: int | None = None
    """Number of its run among those of a report."""
    seeds: Sequence[int] = ()
    """Numbers of the runs that it is the mean of."""
    group: str = ""
    """Label of the line with which a legend shows and hides it; its own unless given."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What the script of the page knows it by, such as the role "trail"."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """The cells of a heatmap, rows upwards: values, and as these the ends of their intervals and
    why there is none.
    """

    values: np.ndarray
    """Shape (n_rows, n_columns); NaN where there is no value."""
    rows: Sequence[str]
    columns: Sequence[str]
    colours: Axis
    band: tuple[np.ndarray, np.ndarray] | None = None
    reasons: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An alert in a panel, at a value on its axes, or at the number of a column and a row of a
    heatmap.
    """

    x: float
    y: float | None
    """None for a whole profile."""
    text: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """One coordinate system, with what is drawn in it."""

    title: str = ""
    x: Axis = Axis()
    y: Axis = Axis()
    lines: Sequence[Line] = ()
    cells: Cells | None = None
    marks: Sequence[Mark] = ()
    loss: Line | None = None
    """The training loss, on an axis of its own to the right."""
    gap: Sequence[Line] = ()
    """Two of its lines between which the area is shaded."""
    legend: str = ""
    """Where the names of its lines stand: "inside", "right", or nowhere."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Chart:
    """Panels under one title."""

    title: str
    caption: str
    panels: Sequence[Panel]
    size: tuple[float, float]
    """Width and height in inches."""
    columns: int = 1
    shares_x: bool = False
    """Whether panels below each other have one x axis, labelled below the lowest."""
    is_small: bool = False
    """Whether there are many panels, whose text is small."""
    legend: Sequence[Line | str] = ()
    """Lines named to the right of all panels; a string is a heading."""
    legend_title: str | None = None


def placed(values: np.ndarray, floor: float | None) -> np.ndarray:
    """Return the positions of values on an axis with its 0 at ``floor``."""
    return values if floor is None else np.maximum(values, floor)
