"""The arithmetic of semantic convergence: profiles, published figures, intervals, tests, correlation with the loss."""

from __future__ import annotations

import numpy as np
import pytest

from repdyn.studies.convergence_estimates import percentile_interval, resample_profiles, unpaired_gap
from repdyn.studies.convergence_measurements import SequenceSums
from repdyn.studies.gradient import lower_envelope


@pytest.mark.parametrize("seed", range(5))
def test_the_envelope_is_the_largest_monotone_bound(seed):
    steps = np.random.default_rng(seed).normal(size=8)
    bound = lower_envelope(steps)
    assert (bound <= steps).all()
    assert (np.diff(bound) >= 0).all()
    np.testing.assert_array_equal(bound, [steps[layer:].min() for layer in range(8)])


def sums_of(sequences):
    """From one (n_tokens, L + 1) array of cosines for each sequence."""
    return SequenceSums(np.array([one.sum(0) for one in sequences]), np.array([len(one) for one in sequences]))


def noisy(n_sequences, n_tokens, n_layers=4, seed=0, shift=0.0):
    random = np.random.default_rng(seed)
    level = np.linspace(0.1, 1, n_layers)
    of_sequence = random.normal(0, 0.05, (n_sequences, 1, n_layers))
    return level + shift + of_sequence + random.normal(0, 0.01, (n_sequences, n_tokens, n_layers))


def test_the_interval_is_as_wide_as_theory_says():
    sums = sums_of(list(noisy(400, 5)))
    [drawn] = resample_profiles([sums], 4000)
    expected = sums.means.std(0, ddof=1) / np.sqrt(400)
    np.testing.assert_allclose(drawn.std(0), expected, rtol=0.05)
    low, high = percentile_interval(drawn)
    np.testing.assert_allclose(high - low, 2 * 1.96 * expected, rtol=0.08)
    assert ((low < sums.over_tokens) & (sums.over_tokens < high)).all()


def test_the_draws_are_seeded_and_do_not_depend_on_chunks(monkeypatch):
    sums = sums_of(list(noisy(30, 4)))
    [whole] = resample_profiles([sums], 100, seed=3)
    monkeypatch.setattr("repdyn.studies.convergence_estimates._MAX_CELLS", 30 * 7)
    [chunked] = resample_profiles([sums], 100, seed=3)
    np.testing.assert_allclose(chunked, whole, rtol=1e-12)
    [other] = resample_profiles([sums], 100, seed=4)
    assert not np.array_equal(other, whole)


def test_a_real_gap_is_found_and_no_gap_is_not():
    first, second = sums_of(list(noisy(100, 4))), sums_of(list(noisy(100, 4, seed=1, shift=0.05)))
    third = sums_of(list(noisy(100, 4, seed=2)))
    assert (unpaired_gap(first, second).p_holm < 0.001).all()
    assert (unpaired_gap(first, third).p_holm > 0.05).all()
