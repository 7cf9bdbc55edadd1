"""Spearman's rank correlation and its interval."""

import math

import numpy as np

from repdyn.tables.effects import rank_correlation


def test_the_interval_covers_the_correlation_of_independent_pairs():
    # Spearman's correlation of a bivariate normal distribution
    rho = 0.6
    expected = 6 / math.pi * math.asin(rho / 2)
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        x, y = generator.multivariate_normal([0, 0], [[1, rho], [rho, 1]], size=25).T
        found = rank_correlation(x, y)
        covered += found.low <= expected <= found.high
    assert 0.93 <= covered / 2000 <= 0.97
