"""The summary of a value over the batches of a probe."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def mean_and_spread(values: np.ndarray, independent: bool) -> dict[str, Any]:
    """Return the columns that summarise the values of all batches.

    The mean over n batches of another probe differs from this one by a normal variate of variance 2 sigma^2 / n, so the
    interval is mean +- t sqrt(2 / n) std, with Student's t of n - 1 degrees of freedom.

    Args:
        values: (n_batches,) values.
        independent: whether the batches use disjoint windows; without it there is no interval.
    """
    mean, n = float(np.mean(values)), len(values)
    spread = float(np.std(values, ddof=1)) if n > 1 else math.nan
    summary: dict[str, Any] = {"value": mean, "std": spread, "n_batches": n}
    if n < 2 or not independent or math.isnan(spread):
        return {**summary, "std_error": None, "low": None, "high": None}
    from scipy.special import stdtrit  # not on importing a tracker

    half = float(stdtrit(n - 1, 0.975)) * math.sqrt(2 / n) * spread
    return {**summary, "std_error": spread / math.sqrt(n), "low": mean - half, "high": mean + half}
