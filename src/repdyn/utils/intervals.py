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

    The value's fraction x of the way from the lower bound to the upper one is carried to the scale
    ``arcsin(sqrt(x))``, on which the spread of a fraction is the same everywhere (Anscombe 1948,
    The transformation of Poisson, binomial and negative-binomial data). There the interval is
    symmetric, and its ends are carried back. Without two finite bounds, and for a value outside of
    them, the interval is ``value -+ half_width``.

    Args:
        value: any shape, in the unit of the bounds.
        half_width: as ``value``; NaN where it is not known, as both ends then are.
        bounds: smallest and largest possible value.

    >>> [round(float(end), 3) for end in interval_within(0.02, 0.05, (0.0, 1.0))]
    [0.0, 0.099]
    >>> [round(float(end), 3) for end in interval_within(10.0, 2.0, (0.0, math.inf))]
    [8.0, 12.0]
    """
    value = np.asarray(value, float)
    half_width = np.asarray(half_width, float)
    below = value - half_width
    above = value + half_width
    lowest, highest = bounds
    width = highest - lowest
    if not math.isfinite(width):
        return below, above
    fraction = (value - lowest) / width
    inside = np.clip(fraction, 0.0, 1.0)
    # the derivative of arcsin(sqrt(x)) is 1 / (2 sqrt(x (1 - x))), so that a half width w at x is
    # one of w / (2 sqrt(x (1 - x))) on the scale of angles
    root = np.sqrt(inside * (1 - inside))
    angle = np.arcsin(np.sqrt(inside))
    # at exactly 0 or 1 the derivative is infinite: such a fraction has no spread, or only rounding
    reach = np.divide(
        half_width,
        2 * width * root,
        out=np.zeros_like(root * half_width),
        where=root > 0,
    )
    low, high = (
        lowest + width * np.sin(np.clip(angle + by, 0.0, np.pi / 2)) ** 2 for by in (-reach, reach)
    )
    is_bounded = (fraction >= 0) & (fraction <= 1)
    # rounding of sine and arcsine must not move an end past the value itself
    low = np.where(is_bounded, np.minimum(low, value), below)
    high = np.where(is_bounded, np.maximum(high, value), above)
    is_unknown = np.isnan(value + half_width)
    return np.where(is_unknown, np.nan, low), np.where(is_unknown, np.nan, high)


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
