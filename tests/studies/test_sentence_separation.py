"""Groups of paraphrases and kinds of change: closed forms, other hands' statistics, and what chance gives."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from scipy import stats

from repdyn.studies.anatomy.geometry import cosine_matrix
from repdyn.studies.sentences import tables
from repdyn.studies.sentences.examples import CHANGES, PARAPHRASES
from repdyn.studies.sentences.tables import ALL_KINDS, consistency, separation


def grouped(n_groups=8, n_each=4, dim=20, spread=1.0, seed=0) -> tuple[np.ndarray, list[int]]:
    """Sentences around the middle of their group."""
    random = np.random.default_rng(seed)
    middles = random.normal(size=(n_groups, dim))
    vectors = np.repeat(middles, n_each, axis=0) + spread * random.normal(size=(n_groups * n_each, dim))
    return vectors, np.repeat(range(n_groups), n_each).tolist()


def split(vectors: np.ndarray, groups: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Cosines within and between, one pair after the other."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    values = {True: [], False: []}
    for a in range(len(unit)):
        for b in range(a):
            values[groups[a] == groups[b]].append(unit[a] @ unit[b])
    return np.array(values[True]), np.array(values[False])


# groups


@pytest.mark.parametrize("spread", [0.3, 1.0, 5.0])
def test_separation_pair_by_pair(spread):
    vectors, groups = grouped(spread=spread)
    within, between = split(vectors, groups)
    found = separation(cosine_matrix(vectors), groups)
    assert found["within"] == pytest.approx(within.mean())
    assert found["between"] == pytest.approx(between.mean())
    effect = (within.mean() - between.mean()) / math.sqrt((within.var() + between.var()) / 2)
    assert found["effect"] == pytest.approx(effect)
    better = stats.mannwhitneyu(within, between).statistic / (len(within) * len(between))
    assert found["probability"] == pytest.approx(better)
    for name in ("within", "between", "effect", "probability"):
        assert found[f"{name}_low"] <= found[name] <= found[f"{name}_high"]


def test_two_orthogonal_directions_each():
    # groups share a direction exactly: within 1, between 0
    vectors = np.repeat(np.eye(4), 3, axis=0)
    found = separation(cosine_matrix(vectors), np.repeat(range(4), 3).tolist())
    assert found["within"] == found["within_low"] == found["within_high"] == 1
    assert found["between"] == found["between_low"] == found["between_high"] == 0
    assert found["probability"] == found["probability_low"] == found["probability_high"] == 1
    assert found["nearest"] == 1
    assert math.isnan(found["effect"]), "no spread to measure it by"


def test_groups_that_mean_nothing_are_not_told_apart():
    vectors = np.random.default_rng(0).normal(size=(60, 300))
    found = separation(cosine_matrix(vectors), np.repeat(range(12), 5).tolist())
    assert found["probability_low"] < 0.5 < found["probability_high"]
    assert found["effect_low"] < 0 < found["effect_high"]
    assert found["nearest"] < 0.3


def test_groups_of_different_sizes_and_in_any_order():
    vectors, groups = grouped()
    kept = np.random.default_rng(1).permutation(len(groups))[:25]
    some = [groups[number] for number in kept]
    within, between = split(vectors[kept], some)
    found = separation(cosine_matrix(vectors[kept]), some)
    assert found["within"] == pytest.approx(within.mean())
    assert found["between"] == pytest.approx(between.mean())


@pytest.mark.slow
def test_the_interval_holds_the_truth_as_often_as_it_says():
    """Of 60 worlds of the same kind, with the truth from many groups."""
    many, labels = grouped(n_groups=400, n_each=3)
    truth = split(many, labels)[0].mean()
    held = 0
    for seed in range(1, 61):
        vectors, groups = grouped(n_groups=12, n_each=3, seed=seed)
        found = separation(cosine_matrix(vectors), groups)
        held += found["within_low"] <= truth <= found["within_high"]
    # a percentile bootstrap of 12 groups covers somewhat less than 95 %
    assert 48 <= held <= 60


def test_the_seed_says_the_intervals():
    vectors, groups = grouped()
    one, same, other = (separation(cosine_matrix(vectors), groups, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one["effect_low"] != other["effect_low"]


@pytest.mark.parametrize(
    ("groups", "got"),
    [([0, 0, 1, 1], "2 of [2] sentences"), ([0, 0, 1, 1, 2], "3 of [1, 2] sentences")],
    ids=["groups", "sentences"],
)
def test_too_little_to_tell_groups_apart(groups, got):
    message = f"expected at least 3 groups of two sentences or more, got {got}; give more groups, or paraphrases of "
    with pytest.raises(ValueError, match="^" + re.escape(message) + "each sentence$"):
        separation(cosine_matrix(np.random.default_rng(0).normal(size=(len(groups), 4))), groups)


def test_a_vector_of_zeros_has_no_group():
    vectors, groups = grouped()
    vectors[3] = 0
    with pytest.raises(ValueError, match=r"^expected finite cosines, got some that are not; sentence vectors are zero"):
        separation(cosine_matrix(vectors), groups)


# changes


def changed(n_each=8, dim=30, noise=0.2, seed=0, kinds=("plural", "past", "negated"), shared=False):
    """Each kind moves sentences along a direction of its own, more or less."""
    random = np.random.default_rng(seed)
    directions = np.linalg.qr(random.normal(size=(dim, len(kinds))))[0].T
    labels = [kind for kind in kinds for _ in range(n_each)]
    sources = [f"sentence {n if shared else (kind, n)}" for kind in kinds for n in range(n_each)]
    starts = {source: random.normal(size=dim) for source in sources}
    before = np.stack([starts[source] for source in sources])
    moves = np.repeat(directions, n_each, axis=0) + noise * random.normal(size=before.shape)
    return before, before + moves, labels, sources


@pytest.mark.parametrize("shared", [False, True], ids=["sentences of their own", "the same sentences"])
def test_consistency_pair_by_pair(shared):
    before, after, kinds, sources = changed(shared=shared)
    moves = after - before
    unit = moves / np.linalg.norm(moves, axis=1, keepdims=True)
    pairs = [(a, b) for a in range(len(unit)) for b in range(len(unit)) if sources[a] != sources[b]]
    for found in consistency(before, after, kinds, sources).itertuples():
        mine = [(a, b) for a, b in pairs if found.change in (ALL_KINDS, kinds[a])]
        within = [unit[a] @ unit[b] for a, b in mine if kinds[a] == kinds[b]]
        across = [unit[a] @ unit[b] for a, b in mine if kinds[a] != kinds[b]]
        assert found.within == pytest.approx(np.mean(within))
        assert found.across == pytest.approx(np.mean(across))
        assert found.n == (24 if found.change == ALL_KINDS else 8)


def test_one_direction_for_each_kind():
    before, after, kinds, sources = changed(noise=0)
    whole, *each = consistency(before, after, kinds, sources).itertuples()
    assert whole.change == ALL_KINDS
    assert [found.change for found in each] == ["plural", "past", "negated"]
    for found in (whole, *each):
        assert found.within == pytest.approx(1)
        assert found.across == pytest.approx(0, abs=1e-12)
        assert found.p == pytest.approx(1 / (tables.N_PERMUTATIONS + 1))
        assert found.length == pytest.approx(1 / np.linalg.norm(before, axis=1).mean(), rel=0.1)


def test_a_length_against_the_vectors_it_is_between():
    before = np.array([[3.0, 4], [0, 5], [5, 0], [4, 3]])
    after = before + np.array([[0, 1.0], [1, 0], [0, 2], [2, 0]])
    whole, *_ = consistency(before, after, ["a", "a", "b", "b"], list("wxyz")).itertuples()
    sizes = (np.linalg.norm(before, axis=1) + np.linalg.norm(after, axis=1)) / 2
    assert whole.length == pytest.approx(np.mean([1, 1, 2, 2] / sizes))


@pytest.mark.slow
def test_p_is_uniform_where_kinds_mean_nothing(monkeypatch):
    monkeypatch.setattr(tables, "N_PERMUTATIONS", 199)
    random = np.random.default_rng(0)
    p = []
    for seed in range(200):
        before, after = random.normal(size=(2, 16, 10))
        found = consistency(before, after, ["a"] * 8 + ["b"] * 8, [str(n) for n in range(16)], seed=seed)
        p.append(found["p"][0])
    assert stats.kstest(p, "uniform").pvalue > 0.01
    assert min(p) >= 1 / 200


@pytest.mark.parametrize(
    ("kinds", "told"),
    [(["a"] * 4, "4 of 'a'"), (["a", "a", "a", "b"], "3 of 'a', 1 of 'b'")],
    ids=["one kind", "one change"],
)
def test_too_few_changes(kinds, told):
    before, after = np.random.default_rng(0).normal(size=(2, 4, 3))
    message = f"^expected at least two kinds of two changes or more, got {told}; give more$"
    with pytest.raises(ValueError, match=message):
        consistency(before, after, kinds, list("wxyz"))


def test_a_change_that_moves_nothing():
    before, after, kinds, sources = changed()
    after[5] = before[5]
    with pytest.raises(ValueError, match=r"^expected changes that move the vector, got 1 of 24 that do not; the "):
        consistency(before, after, kinds, sources)


def test_a_kind_that_changes_one_and_the_same_sentence():
    before, after, kinds, sources = changed()
    sources[:8] = ["the same"] * 8
    message = r"^expected changes of different sentences in every kind, got a single one in 'plural'$"
    with pytest.raises(ValueError, match=message):
        consistency(before, after, kinds, sources)


# what is built in


def test_paraphrases_are_all_different():
    assert len(PARAPHRASES) == 12
    sentences = [sentence for group in PARAPHRASES.values() for sentence in group]
    assert len(set(sentences)) == len(sentences) == 60
    assert {len(group) for group in PARAPHRASES.values()} == {5}


def test_every_change_is_made_to_the_same_sentences():
    assert list(CHANGES) == ["singular to plural", "negated", "present to past", "he to she"]
    befores = [[before for before, _ in pairs] for pairs in CHANGES.values()]
    assert all(sentences == befores[0] for sentences in befores)
    assert len(set(befores[0])) == 12
    afters = [after for pairs in CHANGES.values() for _, after in pairs]
    assert len(set(afters)) == 48
    assert set(afters).isdisjoint(befores[0])
    assert all(" not " in after for _, after in CHANGES["negated"])
