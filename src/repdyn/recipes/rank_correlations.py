"""Bounds on rank correlations, judged by their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repdyn.tables.correlation import MIN_PAIRS, Correlation, rank_correlation
from repdyn.tables.effects import CannotBeJudgedError, Verdict


@dataclass(frozen=True)
class RhoBound:
    """A claimed bound of a rank correlation: at least a value, or at most one."""

    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("expected either at_least or at_most, got both or neither; keep one")

    def __str__(self) -> str:
        return f"at most {self.at_most:g}" if self.at_least is None else f"at least {self.at_least:g}"

    def judge(self, low: float, high: float) -> Verdict:
        """Judge the bound by an interval, which must lie on the claimed side with its whole length.

        >>> [RhoBound(at_least=0.5).judge(*pair) for pair in ((0.6, 0.9), (0.3, 0.9), (-0.2, 0.4))]
        ['shown', 'cannot be judged', 'not shown']
        """
        if self.at_least is not None:
            return "shown" if low >= self.at_least else "not shown" if high < self.at_least else "cannot be judged"
        bound = math.inf if self.at_most is None else self.at_most
        return "shown" if high <= bound else "not shown" if low > bound else "cannot be judged"


def correlate(x: Sequence[float], y: Sequence[float], what: str) -> Correlation:
    """Return Spearman's correlation with its interval, which a perfect order of a few pairs does not shrink to a point.

    A correlation of 1 or -1 takes the other end of its interval from the next lower one that as many pairs can have.

    Raises:
        CannotBeJudgedError: fewer than four pairs, or one variable is constant; ``what`` names the pairs.
    """
    if len(x) < MIN_PAIRS:
        raise CannotBeJudgedError(f"needs {MIN_PAIRS} {what} for a correlation with an interval, got {len(x)}")
    found = rank_correlation(np.asarray(x, float), np.asarray(y, float))
    if math.isnan(found.value):
        raise CannotBeJudgedError(f"one of the two is the same at all {len(x)} {what}")
    if not math.isclose(abs(found.value), 1.0):
        return found
    ranks = np.arange(len(x), dtype=float)
    next_lower = rank_correlation(ranks, np.array([1, 0, *ranks[2:]]))
    if found.value > 0:
        return found._replace(low=next_lower.low, high=1.0)
    return found._replace(low=-1.0, high=-next_lower.low)


def rho_text(value: float, low: float, high: float, over: str) -> str:
    """Return a correlation with its interval as text.

    >>> rho_text(-0.9, -0.98, -0.6, "8 checkpoints")
    'rho -0.90 [-0.98, -0.60] over 8 checkpoints'
    """
    return f"rho {value:.2f} [{low:.2f}, {high:.2f}] over {over}"
