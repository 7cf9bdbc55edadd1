"""Spearman's rank correlation and its interval."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from repdyn.tables.effects import rank_correlation

SEEDS = st.integers(0, 2**32 - 1)


def pairs(seed: int, n: int = 20) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=n)
    return x, x + generator.normal(size=n)


@given(SEEDS)
def test_scipy_finds_the_same(seed):
    x, y = (np.round(values, 1) for values in pairs(seed))  # with ties
    assert rank_correlation(x, y).value == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-12)


@given(SEEDS)
def test_only_the_order_matters(seed):
    x, y = pairs(seed)
    found = rank_correlation(x, y)
    assert rank_correlation(np.exp(x), 3 * y - 7) == pytest.approx(found, abs=1e-12)
    mirrored = rank_correlation(-x, y)
    assert mirrored[:3] == pytest.approx((-found.value, -found.high, -found.low), abs=1e-12)


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


def test_perfect_correlations():
    x = np.arange(6.0)
    assert rank_correlation(x, x**3) == (1.0, 1.0, 1.0, 6)
    assert rank_correlation(x, -x) == (-1.0, -1.0, -1.0, 6)


def test_no_correlation_of_a_constant_and_no_interval_of_three_pairs():
    constant = rank_correlation(np.arange(6.0), np.ones(6))
    assert all(math.isnan(value) for value in constant[:3])
    assert constant.n == 6
    few = rank_correlation(np.arange(3.0), np.array([1.0, 3.0, 2.0]))
    assert few.value == pytest.approx(0.5)
    assert math.isnan(few.low)
    assert math.isnan(few.high)
