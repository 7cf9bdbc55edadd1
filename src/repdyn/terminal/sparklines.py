"""A curve as a few characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from repdyn.tables.thinning import thin

WIDTH = 7
_BARS = "▁▂▃▄▅▆▇█"


def sparkline(steps: Sequence[int], values: Sequence[float], width: int = WIDTH) -> str:
    """Return a curve as bars between its lowest and highest value, which are always among the points drawn.

    >>> sparkline([0, 1, 2, 3], [0.0, 0.5, math.nan, 1.0])
    '▁▅ █'

    Args:
        steps: ascending.
        values: one for each step. NaN becomes a blank; equal values become the lowest bar.
        width: the largest number of bars, at least four.
    """
    shown = [values[index] for index in thin(steps, values, width)]
    known = [value for value in shown if not math.isnan(value)]
    low, extent = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    unit = extent / (len(_BARS) - 1) or 1.0
    return "".join(" " if math.isnan(value) else _BARS[int((value - low) / unit + 0.5)] for value in shown)
