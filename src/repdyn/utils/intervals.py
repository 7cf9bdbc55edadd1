"""Intervals: of the mean over seeds, and of quantities that have a smallest and a largest possible
value.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike


def interval_within(
    value: ArrayLike, half_width: ArrayLike, bounds: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends of the interval about values, which stays inside the bounds of the quantity.

    It is ``value -+ half_width`` on the scale ``arcsin(sqrt(share))``, the share of the way from
    the lower bound to the upper one, and carried back: the half width there is
    ``half_width / (2 sqrt(share (1 - share)))`` of the range. That scale makes the spread of a
    fraction independent of its value. Without two finite bounds, and for a value outside of them,
    the interval is symmetric.

    Args:
        value: any shape, in the unit of the bounds.
        half_width: as ``value``; NaN where it is not known, as both ends then are.
        bounds: smallest and largest possible value.

    >>> [round(float(end), 3) for end in interval_within(0.02, 0.05, (0.0, 1.0))]
    [0.0, 0.099]
    >>> [round(float(end), 3) for end in interval_within(10.0, 2.0, (0.0, math.inf))]
    [8.0, 12.0]
    """
    value, half_width = np.asarray(value, float), np.asarray(half_width, float)
    symmetric = value - half_width, value + half_width
    lowest, highest = bounds
    if not math.isfinite(highest - lowest):
        return symmetric
    share = (value - lowest) / (highest - lowest)
    inside = np.clip(share, 0.0, 1.0)
    root = np.sqrt(inside * (1 - inside))
    angle = np.arcsin(np.sqrt(inside))
    # a fraction of exactly 0 or 1 has no spread, or one that is rounding
    reach = np.divide(
        half_width,
        2 * (highest - lowest) * root,
        out=np.zeros_like(root * half_width),
        where=root > 0,
    )
    low, high = (
        lowest + (highest - lowest) * np.sin(np.clip(angle + by, 0.0, np.pi / 2)) ** 2
        for by in (-reach, reach)
    )
    is_bounded = (share >= 0) & (share <= 1)
    low = np.where(is_bounded, np.minimum(low, value), symmetric[0])
    high = np.where(is_bounded, np.maximum(high, value), symmetric[1])
    unknown = np.isnan(value + half_width)
    return np.where(unknown, np.nan, low), np.where(unknown, np.nan, high)


@cache
def student_quantile(degrees: float, probability: float = 0.975) -> float:
    """Return a quantile of Student's t distribution: of 0.975 for an interval of 95%.

    scipy is imported when it is needed, not with a tracker.
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def mean_over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over seeds and half of its 95% interval, by Student's t with n - 1 degrees of
    freedom.

    ``values`` has the shape (n_seeds, ...), with at least two seeds; the mean of a seed without a
    value is NaN.
    """
    quantile = student_quantile(len(values) - 1)
    return values.mean(axis=0), quantile * values.std(axis=0, ddof=1) / np.sqrt(len(values))
