"""Groups of paraphrases and kinds of change: closed forms, other hands' statistics, and what chance gives."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import stats

from repdyn.studies.anatomy.geometry import cosine_matrix
from repdyn.studies.sentences import tables
from repdyn.studies.sentences.examples import CHANGES, PARAPHRASES
from repdyn.studies.sentences.tables import consistency, separation


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


@pytest.mark.parametrize(
    ("groups", "got"),
    [([0, 0, 1, 1], "2 of [2] sentences"), ([0, 0, 1, 1, 2], "3 of [1, 2] sentences")],
    ids=["groups", "sentences"],
)
def test_too_little_to_tell_groups_apart(groups, got):
    message = f"expected at least 3 groups of two sentences or more, got {got}; give more groups, or paraphrases of "
    with pytest.raises(ValueError, match="^" + re.escape(message) + "each sentence$"):
        separation(cosine_matrix(np.random.default_rng(0).normal(size=(len(groups), 4))), groups)


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


def test_a_change_that_moves_nothing():
    before, after, kinds, sources = changed()
    after[5] = before[5]
    with pytest.raises(ValueError, match=r"^expected changes that move the vector, got 1 of 24 that do not; the "):
        consistency(before, after, kinds, sources)


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
