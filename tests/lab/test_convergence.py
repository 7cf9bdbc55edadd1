"""The study of convergence: profiles, their uncertainty, gaps between classes, made-up
sentences.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import numpy as np
import pandas as pd
import pytest
import torch
from converging import noisy, short, sums_of
from converging import text as text
from converging import tokenizer as tokenizer
from scipy import stats
from scipy.optimize import isotonic_regression
from studying import run_study
from synthetic_runs import make_row, make_scalar, to_frame
from torch.nn.functional import cosine_similarity

import repdyn
from repdyn import Probe, layer_states, load_model
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare
from repdyn.data.tokens import byte_tokenizer
from repdyn.kernels import UndefinedError, alignment_falls, self_similarity
from repdyn.lab.studies.bootstrap import Estimate, SequenceSums, bootstrap
from repdyn.lab.studies.convergence_measurements import (
    FALLS,
    SUMMARIES,
    bound_over_alignment,
    class_cosines,
    compare_classes,
    correlations,
    decay_rate,
    holm,
    profile_table,
    skip_blocks,
    summaries_with,
    token_cosines,
)
from repdyn.lab.studies.generated_sentences import (
    long_sentences,
    sentence_probe,
    short_sentences,
)
from repdyn.lab.studies.study import text_probe
from repdyn.views.tables.frames import scalar

pytestmark = pytest.mark.usefixtures("quick_images")  # how figures are written is tested elsewhere


def test_the_steps_their_average_and_what_is_fitted_to_them():
    alignment = np.cumsum([0.1, 0.2576, 0.05, 0.06, 0.04, 0.0998])
    table = profile_table(Estimate(alignment, alignment[None]))
    steps, fit, bound = table[["gradient", "isotonic_fit", "lower_envelope"]].to_numpy()[:-1].T
    np.testing.assert_allclose(steps, [0.2576, 0.05, 0.06, 0.04, 0.0998], rtol=1e-12)
    assert SUMMARIES["average rate"](alignment) == pytest.approx(steps.mean(), rel=1e-12)
    np.testing.assert_allclose(
        fit, [*[(0.2576 + 0.05 + 0.06 + 0.04) / 4] * 4, 0.1019 - 0.0021], atol=2.2e-3
    )
    assert (fit > steps).any(), "the fit is no bound, but the envelope is"
    np.testing.assert_allclose(bound, [0.04, 0.04, 0.04, 0.04, 0.0998], rtol=1e-12)


# A published figure has four digits; what is worked out from several of them may be off by a little
# more than half of one.
PRINTED = 6e-5


# Published of BERT (12 layers) and DistilBERT (6): Lee 2024, Fractal Fract. 8(10):552. Of the steps
# only the first, which is the largest, and the last are known one by one; the others are known by
# their sum, because A_L is 1.
BERT = {"n_layers": 12, "first": 0.0886, "first_step": 0.2576, "last_step": 0.0998}


def steps_of(n_layers, first, first_step, last_step, shares=None):
    """The published steps, with what is known of the others in sum only shared out among them."""
    n_unknown = n_layers - 2
    shares = np.full(n_unknown, 1 / n_unknown) if shares is None else shares
    unknown = (1 - first - first_step - last_step) * np.asarray(shares)
    return np.array([first_step, *unknown, last_step])


def falling_shares(n, seed):
    """Any shares that fall with depth: then every prefix of the steps has a mean above that of a
    longer one.
    """
    shares = np.sort(np.random.default_rng(seed).uniform(0.5, 1.5, n))[::-1]
    return shares / shares.sum()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_published_fit_of_bert(seed):
    shares = None if seed is None else falling_shares(10, seed)
    steps = steps_of(**BERT, shares=shares)
    alignment = BERT["first"] + np.append(0, np.cumsum(steps))
    assert alignment[11] == pytest.approx(0.900, abs=5e-4)
    fit = isotonic_regression(steps).x
    np.testing.assert_allclose(fit[:11], 0.0738, atol=PRINTED)
    assert fit[11] == pytest.approx(0.0998, abs=1e-12)
    assert SUMMARIES["average rate"](alignment) == pytest.approx(0.0760, abs=PRINTED)
    assert (11 * fit[0] + fit[11]) / 12 == pytest.approx(
        SUMMARIES["average rate"](alignment), rel=1e-12
    )


def test_the_mean_is_over_tokens_and_not_over_sequences():
    sums = sums_of([np.array([[0.0, 1.0]] * 3), np.array([[0.8, 1.0]])])
    np.testing.assert_allclose(sums.over_tokens, [0.2, 1.0])
    np.testing.assert_allclose(sums.means, [[0.0, 1.0], [0.8, 1.0]])


def test_the_draws_are_of_whole_sequences():
    """Against a resampling written out: every draw is the ratio for some multiset of the
    sequences.
    """
    sums = SequenceSums(np.array([[1.0], [4.0], [9.0]]), np.array([1, 2, 3]))
    possible = {
        round(sum(sums.sums[i, 0] for i in draw) / sum(sums.counts[i] for i in draw), 9)
        for draw in np.ndindex(3, 3, 3)
    }
    [found] = bootstrap([sums], 500)
    assert {round(float(value), 9) for value in found.draws[:, 0]} == possible


def test_pairs_are_sequences_that_have_both_classes():
    first = sums_of(list(noisy(6, 4)))
    second = sums_of(list(noisy(6, 2, seed=1, shift=0.05)))
    first.sums[2], first.counts[2] = 0, 0
    second.sums[4], second.counts[4] = 0, 0
    gap = compare_classes(first, second, paired=True)
    both = [0, 1, 3, 5]
    for layer in range(3):
        means = first.means[both, layer]
        other = second.means[both, layer]
        expected = stats.ttest_rel(means, other)
        assert gap.t[layer] == pytest.approx(expected.statistic, rel=1e-12)
        assert gap.p[layer] == pytest.approx(expected.pvalue, rel=1e-12)
        assert gap["gap"][layer] == pytest.approx((means - other).mean(), rel=1e-12)
        assert gap["gap_low"][layer] < gap["gap"][layer] < gap["gap_high"][layer]
    assert gap["n"].tolist() == ["4 sequences"] * 3
    np.testing.assert_array_equal(gap.p_holm, holm(gap.p))


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


def store_rows(profiles, losses):
    """Rows as a store gives them: a profile and a training loss by step."""
    layers = [
        make_row(step=step, layer=layer, depth=layer / 3, metric="alignment", value=value)
        for step, profile in profiles.items()
        for layer, value in enumerate(profile)
    ]
    return to_frame([*layers, *(make_scalar(step, loss) for step, loss in losses.items())])


PROFILES = {
    step: [0.1 * number, 0.2 + 0.02 * number, 0.7, 1.0]
    for number, step in enumerate((0, 1, 2, 4, 8))
}


def test_correlations_against_scipy():
    """The scalar of another step, or a constant's correlation by rounding, would be wrong and look
    right.
    """
    values = scalar(store_rows(PROFILES, {1: 5.0, 2: 5.5, 4: 3.5, 8: 2.0, 16: 1.0}), "train/loss")
    table = summaries_with(store_rows(PROFILES, {}), values)
    assert table.index.tolist() == [1, 2, 4, 8]
    assert table["value"].tolist() == [5.0, 5.5, 3.5, 2.0]
    assert table["mean alignment"][4] == pytest.approx(np.mean(PROFILES[4]))
    assert table["average rate"][4] == pytest.approx((1 - PROFILES[4][0]) / 3)
    assert table["rate of the middle third"][4] == pytest.approx(0.7 - PROFILES[4][1])
    assert table["last step"][4] == pytest.approx(0.3)
    assert table["decay of the gradient"][4] == pytest.approx(decay_rate(np.diff(PROFILES[4])))
    correlated = correlations(table).set_index("summary")
    assert correlated.index.tolist() == list(SUMMARIES)
    values = table["average rate"].to_numpy()
    loss = table["value"].to_numpy()
    assert (
        correlated.spearman["average rate"]
        == pytest.approx(stats.spearmanr(values, loss)[0], rel=1e-12)
        == 0.8
    )
    assert correlated.pearson["average rate"] == pytest.approx(
        stats.pearsonr(values, loss)[0], rel=1e-12
    )
    assert np.isnan(correlated.pearson["last step"])  # the same at every step


@pytest.mark.parametrize("rate", [-1.5, 0.0, 0.3, 2.0])
def test_the_decay_of_an_exponential_is_its_rate(rate):
    assert decay_rate(-0.2 * np.exp(-rate * np.arange(6))) == pytest.approx(rate, abs=1e-6)


def test_cosines_against_the_states_themselves(hand_written, small_probe):
    states = capture(prepare(hand_written, small_probe), small_probe, ["all", "no_sink"])
    by_layer = token_cosines(hand_written, small_probe, ["all", "no_sink"])
    sampled = np.flatnonzero(states.rows >= 0)
    last = states.layers[-1].states.double()
    for layer, cosines in zip(states.layers, by_layer, strict=True):
        expected = torch.nn.functional.cosine_similarity(layer.states.double(), last)
        np.testing.assert_allclose(
            cosines[sampled], expected.numpy()[states.rows[sampled]], rtol=1e-12
        )
    np.testing.assert_allclose(by_layer[-1, sampled], 1, atol=1e-12)


def naive_cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_falls_and_words_against_loops(hand_written, small_probe):
    """A share over sequences instead of tokens, or a mean over tokens instead of words, would
    differ.
    """
    captured = layer_states(hand_written, small_probe)
    tokens = small_probe.sample("all").ravel()
    states, rows = [layer.states.double().numpy() for layer in captured], captured.rows
    to_last = [
        [naive_cosine(layer[row], states[-1][row]) for layer in states] for row in rows[tokens]
    ]
    falls = {
        size: [
            [before - after > size for before, after in pairwise(cosines)] for cosines in to_last
        ]
        for size in FALLS
    }
    found = token_cosines(hand_written, small_probe, ["all"])
    measured = class_cosines(found, tokens, small_probe)
    for size, of_tokens in falls.items():
        expected = [*np.mean(of_tokens, axis=0), np.mean([any(steps) for steps in of_tokens])]
        np.testing.assert_allclose(measured.falls[size].over_tokens, expected, rtol=1e-12)
    assert measured.falls[0.0].over_tokens[-1] > 0
    at_layer = [torch.from_numpy(layer[rows[tokens]]) for layer in states]
    assert alignment_falls(
        at_layer[0], at_layer[1], at_layer[-1], more_than=0.01
    ).item() == pytest.approx(np.mean(falls[0.01], axis=0)[0], rel=1e-12)
    by_word: dict[int, list[float]] = {}
    for token in tokens:
        row = rows[token]
        by_word.setdefault(int(small_probe.tokens[token]), []).append(
            naive_cosine(states[1][row], states[-1][row])
        )
    assert measured.of_words.mean(0)[1] == pytest.approx(
        np.mean([np.mean(of) for of in by_word.values()]), rel=1e-12
    )


def test_self_similarity_against_loops():
    """Words that are too rare, and those without a number, must count in the mean of all pairs
    alone.
    """
    points = np.random.default_rng(0).normal(size=(12, 4)) + 0.5
    words = np.array([3, 3, 3, 8, 8, 8, 8, 5, 5, -1, -1, -1])
    cosine = np.array([[naive_cosine(a, b) for b in points] for a in points])
    pairs = [
        np.mean([cosine[i, j] for i, j in permutations(np.flatnonzero(words == word), 2)])
        for word in (3, 8)
    ]
    everything = np.mean([cosine[i, j] for i, j in permutations(range(12), 2)])
    found = self_similarity(torch.from_numpy(points), torch.from_numpy(words), min_contexts=3)
    assert found.item() == pytest.approx(np.mean(pairs) - everything, rel=1e-10)
    with pytest.raises(UndefinedError, match="no word"):
        self_similarity.or_raise(torch.from_numpy(points), torch.from_numpy(words))


@pytest.mark.parametrize(
    "alignment", [[0.5, 0.25, 0.75, 1.0], [0.1, 0.4, 0.3, 0.9, 1.0], [0.2, 0.2, 1.0]]
)
def test_the_bound_over_the_alignment(alignment):
    """The envelope over depth would not be a function of the alignment where that falls."""
    bound = bound_over_alignment(alignment)
    steps = np.diff(alignment)
    before = np.array(alignment[:-1])
    assert (bound <= steps).all()
    order = np.argsort(before)
    assert (np.diff(bound[order]) >= 0).all()
    for at, value in zip(before, bound, strict=True):
        is_no_lower = before >= at
        assert value in steps[is_no_lower]  # a larger one would cut off a layer


def test_the_text_alone(save_model, text, tmp_path):
    run_study(
        "convergence",
        save_model("a"),
        *short(text, tmp_path / "out", "--sentences", 0, "--classes", "none"),
    )
    assert {path.name for path in (tmp_path / "out").glob("*.csv")} == {
        "profiles.csv",
        "classes.csv",
        "falls.csv",
    }
    assert not (tmp_path / "out" / "a" / "gaps.png").exists()
    assert pd.read_csv(tmp_path / "out" / "classes.csv")["class"].unique().tolist() == [
        "all",
        "no_sink",
    ]


def words_of(sentence: str) -> list[str]:
    return sentence.removesuffix(".").split()


def test_the_first_sentences_never_change():
    assert short_sentences(3)["complex"] == [
        "these singers that many women admire think that every tall boy runs quietly.",
        (
            "the clever baker that these lawyers like thinks that these young painters follow "
            "the young women because a sailor helps many clever boys who rest."
        ),
        "every woman hopes that every soldier visits some sailors.",
    ]
    assert short_sentences(2, seed=7)["complex"] == [
        "these boys that think that the careful boys sleep believe that a tired king sleeps.",
        "a happy baker that the teacher sees claims that this boy admires some young women.",
    ]
    assert short_sentences(2)["simple"] == [
        "boy clever women sailor that like follow young that who a that singers.",
        (
            "these lawyers these painters tall admire these that the the young helps because "
            "baker clever every rest many quietly many boys think women runs thinks."
        ),
    ]


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_both_kinds_have_the_same_words_and_lengths(seed):
    simple = short_sentences(500, seed)["simple"]
    ordered = short_sentences(500, seed)["complex"]
    assert Counter(" ".join(simple).replace(".", "").split()) == Counter(
        " ".join(ordered).replace(".", "").split()
    )
    assert [len(words_of(sentence)) for sentence in simple] == [
        len(words_of(sentence)) for sentence in ordered
    ]
    assert not set(simple) & set(ordered)


def test_the_probe_has_a_sequence_for_each_sentence(tokenizer):
    probe = sentence_probe(tokenizer, 50, seed=2)
    assert len(probe.lengths) == 100
    shown = [
        " ".join(tokenizer.convert_ids_to_tokens(ids[1:-1].tolist()))
        for ids in probe.tokens.split(probe.lengths.tolist())
    ]
    assert [sentence.replace(" .", ".") for sentence in shown] == short_sentences(50, 2)[
        "simple"
    ] + short_sentences(50, 2)["complex"]
    assert probe.subsets == ("all", "no_sink", "complex", "simple")
    assert (
        probe.hash
        == sentence_probe(tokenizer, 50, seed=2).hash
        != sentence_probe(tokenizer, 50).hash
    )


def test_long_sentences_have_every_length_and_words_of_the_vocabulary(tokenizer):
    """Sentences of the grammar alone have 8 to 39 words, all from a small list."""
    kinds = long_sentences(tokenizer, 200, longest=128, seed=1)
    lengths = {
        kind: [len(words_of(sentence)) for sentence in sentences]
        for kind, sentences in kinds.items()
    }
    assert lengths["simple"] == lengths["complex"] == lengths["random"]
    assert min(lengths["simple"]) == 8
    assert 120 <= max(lengths["simple"]) <= 125
    assert 60 < np.mean(lengths["simple"]) < 73
    assert [sorted(words_of(one)) for one in kinds["simple"]] == [
        sorted(words_of(one)) for one in kinds["complex"]
    ]
    probe = sentence_probe(tokenizer, 40, sequence_length=64, are_long=True)
    assert probe.subsets == ("all", "no_sink", "complex", "random", "simple")
    assert probe.lengths.max() <= 64


def test_what_is_lost_without_a_block(save_model, text, caplog):
    """A hook that skips nothing would leave the last states as they were; one that stays would
    change the next model.
    """
    loaded = load_model(str(save_model("a", "gpt_neox", n_layers=3)), with_head=True)
    probe = text_probe(loaded, str(text), sequence_length=32, max_vectors=256)
    losses = skip_blocks(loaded, probe)
    assert "hook" not in caplog.text  # a user has set none: the study's own is no news
    *_, last = layer_states(loaded, probe)
    expected = {-1: 1.0}
    for number, block in enumerate(loaded.model.layers):
        block.forward = lambda states, *_, **__: states
        *_, changed = layer_states(loaded, probe)
        expected[number] = float(
            cosine_similarity(changed.states.double(), last.states.double()).mean()
        )
        del block.forward
    assert losses["layer"].tolist() == list(expected)
    assert losses["final_alignment"].to_numpy() == pytest.approx(list(expected.values()), rel=1e-9)
    assert losses["final_alignment"][1:].lt(1).all()
    assert losses["loss"].nunique() == len(expected)


def test_phrases_are_found_across_tokens_and_not_across_windows():
    """A phrase whose words are far apart, or part of longer words, would count."""
    texts = [
        "Anna saw New York, and new yorkers; a new old York.",
        "The newest: NEW",
        "York is old.",
    ]
    tokens = byte_tokenizer()
    probe = Probe.from_texts(
        texts, tokens, max_vectors=64, phrases={"names": ["New York", "Anna", "Lima"]}
    )
    members = probe.classes["names"].numpy()
    words = [text[start] for text in texts for start in range(len(text))]
    assert (
        "".join(letter for letter, inside in zip(words, members, strict=True) if inside)
        == "nnaNewYork"
    )


def test_a_class_that_the_text_lacks_is_left_out_with_a_sentence(save_model, tmp_path):
    """The study ended with an error after the model was loaded, and measured nothing."""
    classes = tmp_path / "classes.yaml"
    classes.write_text("absent: [Xyzzy]\nboats: [the boat]\n")
    text = tmp_path / "text.txt"
    text.write_text("We saw the boat and the other boat that the old man had seen. " * 200)
    result = repdyn.lab.convergence(
        save_model("small", "gpt_neox"),
        text=str(text),
        sequence_length=64,
        max_vectors=512,
        classes=["function", "content"],
        class_file=classes,
        sentences=0,
        resamples=20,
    )
    assert "left out, class 'absent': the class 'absent' has none of the " in result.summary
    assert result.classes["class"].unique().tolist() == [
        *("all", "no_sink", "function", "content", "boats")
    ]
