"""Fewer points of a curve, among them its peaks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MIN_POINTS = 4
"""The fewest points with room for the first, the last, the lowest and the highest."""
_FINEST = 4


def thin(steps: Sequence[int], values: Sequence[float], limit: int) -> list[int]:
    """Return the indices of at most ``limit`` points of a curve: both ends, the lowest, the highest and some others.

    The steps between the ends are divided into intervals of equal length along log(1 + step). Of each interval the
    point farthest from the straight line between the ends is kept, or the lowest or highest of the curve if it is
    there. Points without a value are kept only if their interval has no others.

    >>> thin([0, 1, 2, 4, 8, 16, 32], [0.0, 0.1, 0.2, 9.0, 0.3, 0.2, 0.1], 4)
    [0, 3, 4, 6]

    Args:
        steps: ascending.
        values: one for each step; may be NaN.
        limit: at least four.

    Raises:
        ValueError: ``limit`` is less than four, or there are not as many values as steps.
    """
    if limit < MIN_POINTS:
        raise ValueError(f"expected a limit of at least {MIN_POINTS} points, got {limit}; draw more points")
    if len(steps) != len(values):
        raise ValueError(f"expected a value for each step, got {len(values)} values for {len(steps)} steps")
    if len(steps) <= limit:
        return list(range(len(steps)))
    curve = np.asarray(values, float)
    ends, known = [0, len(curve) - 1], np.flatnonzero(~np.isnan(curve))
    # the first of the lowest and the first of the highest
    extremes = [int(known[np.argmin(curve[known])]), int(known[np.argmax(curve[known])])] if len(known) else []
    position = np.log1p(np.asarray(steps, float) - steps[0])
    position /= position[-1]
    weight = _distance_from_chord(position, curve)
    weight[extremes] = np.inf
    inner = np.arange(1, len(curve) - 1)
    by_weight = inner[np.argsort(-weight[inner], kind="stable")]
    kept = sorted({*ends, *extremes})
    # as many intervals as the limit allows: some hold no step, and one may hold both extremes
    for n_intervals in range(1, _FINEST * limit):
        interval = np.minimum((position[by_weight] * n_intervals).astype(int), n_intervals - 1)
        _, first = np.unique(interval, return_index=True)
        found = sorted({*ends, *extremes, *by_weight[first].tolist()})
        if len(kept) <= len(found) <= limit:
            kept = found
    return kept


def _distance_from_chord(position: np.ndarray, curve: np.ndarray) -> np.ndarray:
    """Return how far each point is from the line between the first and the last value; -1 without a value."""
    known = curve[~np.isnan(curve)]
    if not len(known):
        return np.full(len(curve), -1.0)
    chord = known[0] + (known[-1] - known[0]) * position
    return np.nan_to_num(np.abs(curve - chord), nan=-1.0, posinf=np.inf)
