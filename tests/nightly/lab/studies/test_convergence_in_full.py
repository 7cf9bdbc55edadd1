"""The arithmetic of semantic convergence: profiles, published figures, intervals, tests,
correlation with the loss.
"""

from __future__ import annotations

import numpy as np
from converging import noisy, sums_of

from repdyn.lab.studies.bootstrap import bootstrap
from repdyn.lab.studies.convergence_measurements import compare_classes


def test_the_interval_is_as_wide_as_theory_says():
    sums = sums_of(list(noisy(400, 5)))
    [ratio] = bootstrap([sums], 4000)
    expected = sums.means.std(0, ddof=1) / np.sqrt(400)
    np.testing.assert_allclose(ratio.draws.std(0), expected, rtol=0.05)
    low, high = ratio.interval
    np.testing.assert_allclose(high - low, 2 * 1.96 * expected, rtol=0.08)
    assert ((low < sums.over_tokens) & (sums.over_tokens < high)).all()


def test_the_draws_are_seeded():
    sums = sums_of(list(noisy(30, 4)))
    [first], [same], [other] = (bootstrap([sums], 100, seed) for seed in (3, 3, 4))
    assert np.array_equal(first.draws, same.draws)
    assert not np.array_equal(first.draws, other.draws)


def test_a_real_gap_is_found_and_no_gap_is_not():
    first = sums_of(list(noisy(100, 4)))
    second = sums_of(list(noisy(100, 4, seed=1, shift=0.05)))
    third = sums_of(list(noisy(100, 4, seed=2)))
    assert (compare_classes(first, second, paired=False).p_holm < 0.001).all()
    assert (compare_classes(first, third, paired=False).p_holm > 0.05).all()
