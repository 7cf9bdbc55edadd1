"""The arithmetic of semantic convergence: profiles, published figures, intervals, tests, correlation with the loss."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import stats
from synthetic_runs import make_row, make_scalar, to_frame

from repdyn.studies.convergence.bootstrap import SequenceSums, percentile_interval, resample_profiles
from repdyn.studies.convergence.gaps import holm, paired_gap, unpaired_gap
from repdyn.studies.convergence.profiles import SUMMARIES, loss_correlations, middle_rate, summaries_with_loss
from repdyn.tables.alignment_profile import average_rate, gradient, isotonic_fit, lower_envelope

RANDOM = np.random.default_rng(0)


# profiles


def test_the_steps_and_their_average():
    alignment = np.array([0.1, 0.4, 0.3, 0.9, 1.0])
    np.testing.assert_allclose(gradient(alignment), [0.3, -0.1, 0.6, 0.1], rtol=1e-12)
    assert average_rate(alignment) == pytest.approx(0.225, rel=1e-12)
    assert average_rate(alignment) == pytest.approx(gradient(alignment).mean(), rel=1e-12)


def test_many_profiles_at_once():
    profiles = RANDOM.uniform(-1, 1, (5, 3, 4))
    np.testing.assert_array_equal(gradient(profiles)[2, 1], gradient(profiles[2, 1]))
    np.testing.assert_array_equal(average_rate(profiles)[2, 1], average_rate(profiles[2, 1]))


@pytest.mark.parametrize("seed", range(5))
def test_the_fit_is_the_nearest_monotone_sequence(seed):
    random = np.random.default_rng(seed)
    steps = random.normal(size=8)
    fit = isotonic_fit(steps)
    assert (np.diff(fit) >= 0).all()
    assert fit.mean() == pytest.approx(steps.mean(), abs=1e-12)
    # on a convex set the nearest point makes no acute angle with any other
    for other in np.sort(random.normal(size=(200, 8)), axis=1):
        assert (steps - fit) @ (other - fit) <= 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_the_envelope_is_the_largest_monotone_bound(seed):
    steps = np.random.default_rng(seed).normal(size=8)
    bound = lower_envelope(steps)
    assert (bound <= steps).all()
    assert (np.diff(bound) >= 0).all()
    np.testing.assert_array_equal(bound, [steps[layer:].min() for layer in range(8)])


def test_rising_steps_are_their_own_fit_and_bound():
    steps = np.array([0.1, 0.2, 0.2, 0.5])
    np.testing.assert_allclose(isotonic_fit(steps), steps)
    np.testing.assert_array_equal(lower_envelope(steps), steps)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gradient([1.0]), r"expected the alignment of two layers or more, (..., L + 1), got shape (1,)"),
        (lambda: average_rate(1.0), r"expected the alignment of two layers or more, (..., L + 1), got shape ()"),
        (lambda: gradient([0.0, np.nan]), "expected finite values, got nan among them; leave it out"),
        (lambda: isotonic_fit([]), "expected the steps of one profile, (L,) with L >= 1, got shape (0,)"),
        (lambda: isotonic_fit([[1.0]]), "expected the steps of one profile, (L,) with L >= 1, got shape (1, 1)"),
        (lambda: lower_envelope([np.inf]), "expected finite values, got inf among them; leave it out"),
    ],
    ids=["one layer", "no axis", "nan", "no step", "two axes", "inf"],
)
def test_refused_profiles(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


# A published figure has four digits; what is worked out from several of them may be off by a little more than half of one.
PRINTED = 6e-5

# Published of BERT (12 layers) and DistilBERT (6): Lee 2024, Fractal Fract. 8(10):552. Of the steps only the first, which
# is the largest, and the last are known one by one; the others are known by their sum, because A_L is 1.
BERT = {"n_layers": 12, "first": 0.0886, "first_step": 0.2576, "last_step": 0.0998}
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
def test_the_published_fit_of_bert(seed):
    shares = None if seed is None else falling_shares(10, seed)
    steps = steps_of(**BERT, shares=shares)
    alignment = BERT["first"] + np.append(0, np.cumsum(steps))
    assert alignment[11] == pytest.approx(0.900, abs=5e-4)
    fit = isotonic_fit(steps)
    np.testing.assert_allclose(fit[:11], 0.0738, atol=PRINTED)
    assert fit[11] == pytest.approx(0.0998, abs=1e-12)
    assert average_rate(alignment) == pytest.approx(0.0760, abs=PRINTED)
    assert (11 * fit[0] + fit[11]) / 12 == pytest.approx(float(average_rate(alignment)), rel=1e-12)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_published_fit_of_distilbert(seed):
    shares = None if seed is None else falling_shares(4, seed)
    steps = steps_of(**DISTILBERT, shares=shares)
    alignment = DISTILBERT["first"] + np.append(0, np.cumsum(steps))
    assert alignment[5] == pytest.approx(0.884, abs=1e-12)
    np.testing.assert_allclose(isotonic_fit(steps), 0.1547, atol=PRINTED)
    assert average_rate(alignment) == pytest.approx(0.1547, abs=PRINTED)


@pytest.mark.parametrize("published", [BERT, DISTILBERT], ids=["BERT", "DistilBERT"])
def test_the_published_fit_is_no_lower_bound(published):
    """Whatever the unknown steps: their smallest is at most their mean, which is below the pooled constant."""
    steps = steps_of(**published)
    assert steps[1:-1].mean() < isotonic_fit(steps)[0]
    assert lower_envelope(steps)[0] <= steps[1:-1].mean() + 1e-12


# bootstrap


def sums_of(sequences):
    """From one (n_tokens, L + 1) array of cosines for each sequence."""
    return SequenceSums(np.array([one.sum(0) for one in sequences]), np.array([len(one) for one in sequences]))


def noisy(n_sequences, n_tokens, n_layers=4, seed=0, shift=0.0):
    random = np.random.default_rng(seed)
    level = np.linspace(0.1, 1, n_layers)
    of_sequence = random.normal(0, 0.05, (n_sequences, 1, n_layers))
    return level + shift + of_sequence + random.normal(0, 0.01, (n_sequences, n_tokens, n_layers))


def test_the_mean_is_over_tokens_and_not_over_sequences():
    sums = sums_of([np.array([[0.0, 1.0]] * 3), np.array([[0.8, 1.0]])])
    np.testing.assert_allclose(sums.alignment, [0.2, 1.0])
    np.testing.assert_allclose(sums.means, [[0.0, 1.0], [0.8, 1.0]])


def test_a_sequence_without_tokens_has_no_mean():
    sums = SequenceSums(np.array([[0.5, 1.0], [0.0, 0.0]]), np.array([1, 0]))
    assert np.isnan(sums.means[1]).all()
    np.testing.assert_array_equal(sums.alignment, [0.5, 1.0])
    assert np.isnan(SequenceSums(np.zeros((2, 3)), np.zeros(2, int)).alignment).all()


def test_the_draws_are_of_whole_sequences():
    """Against a resampling written out: every draw is the ratio for some multiset of the sequences."""
    sums = SequenceSums(np.array([[1.0], [4.0], [9.0]]), np.array([1, 2, 3]))
    possible = {
        round(sum(sums.sums[i, 0] for i in draw) / sum(sums.counts[i] for i in draw), 9) for draw in np.ndindex(3, 3, 3)
    }
    [drawn] = resample_profiles([sums], 500)
    assert {round(float(value), 9) for value in drawn[:, 0]} == possible


def test_the_interval_is_as_wide_as_theory_says():
    sums = sums_of(list(noisy(400, 5)))
    [drawn] = resample_profiles([sums], 4000)
    expected = sums.means.std(0, ddof=1) / np.sqrt(400)
    np.testing.assert_allclose(drawn.std(0), expected, rtol=0.05)
    low, high = percentile_interval(drawn)
    np.testing.assert_allclose(high - low, 2 * 1.96 * expected, rtol=0.08)
    assert ((low < sums.alignment) & (sums.alignment < high)).all()


def test_differences_are_drawn_alike():
    """A second checkpoint that adds the same to every token differs by exactly that in every draw."""
    cosines = list(noisy(30, 4))
    before, after = resample_profiles([sums_of(cosines), sums_of([one + 0.25 for one in cosines])], 200)
    np.testing.assert_allclose(after - before, 0.25, rtol=1e-12)
    assert before.std() > 0.001


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


# gaps


def test_pairs_are_sequences_that_have_both_classes():
    first, second = sums_of(list(noisy(6, 4))), sums_of(list(noisy(6, 2, seed=1, shift=0.05)))
    first.sums[2], first.counts[2] = 0, 0
    second.sums[4], second.counts[4] = 0, 0
    gap = paired_gap(first, second)
    both = [0, 1, 3, 5]
    for layer in range(3):
        one, other = first.means[both, layer], second.means[both, layer]
        expected = stats.ttest_rel(one, other)
        assert gap.t[layer] == pytest.approx(expected.statistic, rel=1e-12)
        assert gap.p[layer] == pytest.approx(expected.pvalue, rel=1e-12)
        assert gap["gap"][layer] == pytest.approx((one - other).mean(), rel=1e-12)
        assert gap["gap_low"][layer] < gap["gap"][layer] < gap["gap_high"][layer]
    assert gap["n"].tolist() == ["4 sequences"] * 3
    np.testing.assert_array_equal(gap.p_holm, holm(gap.p))


def test_a_sequence_counts_once_however_many_tokens_it_has():
    cosines, others = list(noisy(8, 3)), list(noisy(8, 3, seed=1))
    longer = [np.repeat(one, 1 + number, axis=0) for number, one in enumerate(cosines)]
    np.testing.assert_allclose(
        paired_gap(sums_of(longer), sums_of(others)).t, paired_gap(sums_of(cosines), sums_of(others)).t, rtol=1e-9
    )


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


def test_the_gap_is_antisymmetric():
    first, second = sums_of(list(noisy(9, 4))), sums_of(list(noisy(9, 4, seed=1)))
    for test in (paired_gap, unpaired_gap):
        one, other = test(first, second), test(second, first)
        np.testing.assert_allclose(one["gap"], -other["gap"])
        np.testing.assert_allclose(one["gap_low"], -other["gap_high"])
        np.testing.assert_allclose(one.p, other.p)


def test_classes_that_do_not_differ_have_no_p_value():
    same = sums_of([np.array([[0.5, 1.0]])] * 4)
    gap = paired_gap(same, same)
    assert gap["gap"][0] == 0
    assert np.isnan(gap.p[0])
    assert np.isnan(gap.p_holm[0])


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


@pytest.mark.parametrize(
    ("p", "adjusted"),
    [
        # Holm 1979's procedure by hand: 0.01 x 4, 0.02 x 3, max(0.06, 0.03 x 2), max(0.06, 0.04)
        ([0.01, 0.02, 0.03, 0.04], [0.04, 0.06, 0.06, 0.06]),
        ([0.04, 0.01], [0.04, 0.02]),
        ([0.9, 0.8], [1.0, 1.0]),
        ([0.01, np.nan, 0.04], [0.02, np.nan, 0.04]),
        ([], []),
    ],
    ids=["rising", "falling", "capped", "untested", "none"],
)
def test_holm(p, adjusted):
    np.testing.assert_allclose(holm(p), adjusted, rtol=1e-12)


# loss


def store_rows(profiles, losses):
    """Rows as a store gives them: a profile and a training loss by step."""
    layers = [
        make_row(step=step, layer=layer, depth=layer / 3, metric="alignment", value=value)
        for step, profile in profiles.items()
        for layer, value in enumerate(profile)
    ]
    return to_frame([*layers, *(make_scalar(step, loss) for step, loss in losses.items())])


PROFILES = {step: [0.1 * number, 0.2 + 0.02 * number, 0.7, 1.0] for number, step in enumerate((0, 1, 2, 4, 8))}


def test_the_loss_is_taken_at_the_steps_that_have_a_profile():
    table = summaries_with_loss(store_rows(PROFILES, {1: 5.0, 2: 4.0, 4: 3.5, 8: 2.0, 16: 1.0}))
    assert table.index.tolist() == [1, 2, 4, 8]
    assert table["loss"].tolist() == [5.0, 4.0, 3.5, 2.0]
    assert table["mean alignment"][4] == pytest.approx(np.mean(PROFILES[4]))
    assert table["average rate"][4] == pytest.approx((1 - PROFILES[4][0]) / 3)
    assert table["rate of the middle third"][4] == pytest.approx(0.7 - PROFILES[4][1])
    assert table["last step"][4] == pytest.approx(0.3)


def test_correlations_against_scipy():
    table = summaries_with_loss(store_rows(PROFILES, {0: 6.0, 1: 5.0, 2: 5.5, 4: 3.5, 8: 2.0}))
    found = loss_correlations(table)
    assert found.index.tolist() == list(SUMMARIES)
    values, loss = table["average rate"].to_numpy(), table["loss"].to_numpy()
    assert found.spearman["average rate"] == pytest.approx(stats.spearmanr(values, loss)[0], rel=1e-12)
    assert found.pearson["average rate"] == pytest.approx(stats.pearsonr(values, loss)[0], rel=1e-12)
    assert found.spearman["average rate"] == pytest.approx(0.9)
    assert found.spearman["mean alignment"] == pytest.approx(-0.9)
    assert np.isnan(found.pearson["last step"])  # the same at every step


def test_a_layer_without_a_value_costs_the_step():
    profiles = {**PROFILES, 2: [np.nan, 0.2, 0.7, 1.0]}
    table = summaries_with_loss(store_rows(profiles, {0: 6.0, 1: 5.0, 2: 5.5, 4: 3.5, 8: 2.0}))
    assert table.index.tolist() == [0, 1, 4, 8]


def test_three_checkpoints_are_too_few():
    table = summaries_with_loss(store_rows(PROFILES, {1: 5.0, 2: 4.0, 4: 3.5}))
    message = (
        "expected at least 4 checkpoints with both an alignment profile and a loss, got 3; measure the metric "
        "alignment at more steps of the training"
    )
    with pytest.raises(ValueError, match=message):
        loss_correlations(table)


def test_the_middle_third():
    assert middle_rate(np.array([0.0, 0.1, 0.3, 0.6, 1.0])) == pytest.approx((0.2 + 0.3) / 2)
    assert middle_rate(np.array([0.0, 1.0])) == 1.0
