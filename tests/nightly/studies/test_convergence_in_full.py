"""The arithmetic of semantic convergence: profiles, published figures, intervals, tests, correlation with the loss."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import stats

from repdyn.studies.convergence.bootstrap import SequenceSums, percentile_interval, resample_profiles
from repdyn.studies.convergence.gaps import holm, paired_gap, unpaired_gap
from repdyn.tables.alignment_profile import average_rate, gradient, isotonic_fit, lower_envelope

RANDOM = np.random.default_rng(0)


def test_many_profiles_at_once():
    profiles = RANDOM.uniform(-1, 1, (5, 3, 4))
    np.testing.assert_array_equal(gradient(profiles)[2, 1], gradient(profiles[2, 1]))
    np.testing.assert_array_equal(average_rate(profiles)[2, 1], average_rate(profiles[2, 1]))


@pytest.mark.parametrize("seed", range(5))
def test_the_envelope_is_the_largest_monotone_bound(seed):
    steps = np.random.default_rng(seed).normal(size=8)
    bound = lower_envelope(steps)
    assert (bound <= steps).all()
    assert (np.diff(bound) >= 0).all()
    np.testing.assert_array_equal(bound, [steps[layer:].min() for layer in range(8)])


# A published figure has four digits; what is worked out from several of them may be off by a little more than half of one.
PRINTED = 6e-5


DISTILBERT = {"n_layers": 6, "first": 0.0717, "first_step": 0.4143, "last_step": 1 - 0.884}


def steps_of(n_layers, first, first_step, last_step, shares=None):
    """The published steps, with what is known of the others in sum only shared out among them."""
    n_unknown = n_layers - 2
    shares = np.full(n_unknown, 1 / n_unknown) if shares is None else shares
    unknown = (1 - first - first_step - last_step) * np.asarray(shares)
    return np.array([first_step, *unknown, last_step])


def falling_shares(n, seed):
    """Any shares that fall with depth: then every prefix of the steps has a mean above that of a longer one."""
    shares = np.sort(np.random.default_rng(seed).uniform(0.5, 1.5, n))[::-1]
    return shares / shares.sum()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_published_fit_of_distilbert(seed):
    shares = None if seed is None else falling_shares(4, seed)
    steps = steps_of(**DISTILBERT, shares=shares)
    alignment = DISTILBERT["first"] + np.append(0, np.cumsum(steps))
    assert alignment[5] == pytest.approx(0.884, abs=1e-12)
    np.testing.assert_allclose(isotonic_fit(steps), 0.1547, atol=PRINTED)
    assert average_rate(alignment) == pytest.approx(0.1547, abs=PRINTED)


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
    assert ((low < sums.alignment) & (sums.alignment < high)).all()


def test_the_draws_are_seeded_and_do_not_depend_on_chunks(monkeypatch):
    sums = sums_of(list(noisy(30, 4)))
    [whole] = resample_profiles([sums], 100, seed=3)
    monkeypatch.setattr("repdyn.studies.convergence.bootstrap._MAX_CELLS", 30 * 7)
    [chunked] = resample_profiles([sums], 100, seed=3)
    np.testing.assert_allclose(chunked, whole, rtol=1e-12)
    [other] = resample_profiles([sums], 100, seed=4)
    assert not np.array_equal(other, whole)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: resample_profiles([sums_of(list(noisy(1, 3)))], 10),
            "expected at least 2 sequences and 1 resample, got 1 and 10; take more text",
        ),
        (
            lambda: resample_profiles([sums_of(list(noisy(2, 3)))], 0),
            "expected at least 2 sequences and 1 resample, got 2 and 0; take more text",
        ),
        (
            lambda: resample_profiles([sums_of(list(noisy(n, 3))) for n in (2, 3)], 10),
            "expected samples of the same sequences, got [2, 3] sequences; use one probe",
        ),
        (lambda: percentile_interval(np.zeros(3), 1.0), "expected a level between 0 and 1, got 1.0"),
    ],
    ids=["one sequence", "no resample", "other sequences", "level"],
)
def test_refused_bootstraps(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_sentences_are_not_paired():
    first, second = sums_of(list(noisy(9, 4))), sums_of(list(noisy(5, 4, seed=1, shift=0.02)))
    gap = unpaired_gap(first, second)
    for layer in range(3):
        expected = stats.ttest_ind(first.means[:, layer], second.means[:, layer], equal_var=False)
        assert gap.t[layer] == pytest.approx(expected.statistic, rel=1e-12)
        assert gap.p[layer] == pytest.approx(expected.pvalue, rel=1e-12)
    assert (gap["test"][0], gap["n"][0]) == ("Welch's t-test", "9 and 5 sentences")
    order = np.random.default_rng(0).permutation(5)
    shuffled = SequenceSums(second.sums[order], second.counts[order])
    np.testing.assert_allclose(unpaired_gap(first, shuffled).p, gap.p, rtol=1e-9)


def test_a_real_gap_is_found_and_no_gap_is_not():
    first, second = sums_of(list(noisy(100, 4))), sums_of(list(noisy(100, 4, seed=1, shift=0.05)))
    third = sums_of(list(noisy(100, 4, seed=2)))
    assert (unpaired_gap(first, second).p_holm < 0.001).all()
    assert (unpaired_gap(first, third).p_holm > 0.05).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: paired_gap(sums_of(list(noisy(2, 3))), sums_of(list(noisy(3, 3)))),
            "expected two classes of the same sequences, got (2, 4) and (3, 4); use one probe",
        ),
        (
            lambda: paired_gap(sums_of(list(noisy(2, 3))), SequenceSums(np.ones((2, 4)), np.array([1, 0]))),
            "expected at least 2 sequences with tokens of both classes, got 1 of 2; take more text",
        ),
        (
            lambda: unpaired_gap(sums_of(list(noisy(1, 3))), sums_of(list(noisy(3, 3)))),
            "expected at least 2 sentences of either kind and as many layers, got (1, 3) and (3, 3); take more sentences",
        ),
        (lambda: holm([0.5, 1.5]), "expected p-values, (m,) in [0, 1], got [0.5, 1.5]"),
    ],
    ids=["other sequences", "one pair", "one sentence", "p above 1"],
)
def test_refused_gaps(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()
