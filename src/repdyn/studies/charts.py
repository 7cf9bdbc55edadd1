"""Parts that the figures of several studies share: colours, axes over layers, lines with bands."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from repdyn.tables.style import SUBSET_COLOURS


def series_colour(number: int) -> str:
    """Return the colour of one of several series."""
    return SUBSET_COLOURS[number] if number < len(SUBSET_COLOURS) else f"C{number % 10}"


def layer_axis(*panels: Axes, label: str = "layer") -> None:
    """Label x axes that count layers, with ticks at whole numbers."""
    for axes in panels:
        axes.set_xlabel(label)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def line_with_band(
    axes: Axes,
    x: ArrayLike,
    values: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    band_alpha: float = 0.2,
    **look: Any,
) -> None:
    """Draw a line and a band from ``low`` to ``high`` in its colour."""
    axes.fill_between(np.asarray(x), low, high, color=look["color"], alpha=band_alpha, linewidth=0)
    axes.plot(x, values, **look)


def select(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the rows of a table with the given values in the given columns; None stands for a missing value."""
    for column, value in values.items():
        chosen = table[column].isna() if value is None else table[column] == value
        table = cast(pd.DataFrame, table.loc[chosen])
    return table
