"""Rank correlation with its interval."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

MIN_PAIRS = 4
"""Least number of pairs with an interval: its standard error divides by this number minus 3."""
_NORMAL_QUANTILE = 1.959963984540054


class Correlation(NamedTuple):
    """Spearman's rank correlation."""

    value: float
    """In [-1, 1]; NaN with fewer than two pairs, or if one of the variables is constant."""
    low: float
    """Lower end of the 95 % interval; NaN with fewer than four pairs."""
    high: float
    n: int
    """Number of pairs."""


def rank_correlation(x: np.ndarray, y: np.ndarray) -> Correlation:
    """Return Spearman's rank correlation with its 95 % interval.

    The interval is that of Fisher's transformation with the variance (1 + rho^2 / 2) / (n - 3) of Bonett and Wright
    (2000). It assumes independent pairs. A correlation of 1 or -1 has the interval [1, 1] or [-1, -1].

    Args:
        x: (n,) finite values; only their order matters, and equal values share their mean rank.
        y: (n,) finite values.

    >>> found = rank_correlation(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([1.0, 4.0, 2.0, 16.0, 25.0]))
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3), found.n
    (0.9, -0.169, 0.996, 5)
    """
    n = len(x)
    if n < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Correlation(math.nan, math.nan, math.nan, n)
    value = float(np.clip(np.corrcoef(_ranks(x), _ranks(y))[0, 1], -1.0, 1.0))
    if n < MIN_PAIRS:
        return Correlation(value, math.nan, math.nan, n)
    half = _NORMAL_QUANTILE * math.sqrt((1 + value**2 / 2) / (n - 3))
    with np.errstate(divide="ignore"):  # of a perfect correlation, whose transform is infinite
        centre = np.arctanh(value)
    return Correlation(value, float(np.tanh(centre - half)), float(np.tanh(centre + half)), n)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks, equal values sharing their mean; those of scipy.stats take seconds to import."""
    return pd.Series(values).rank().to_numpy()
