"""Groups of paraphrases and kinds of change: closed forms, other hands' statistics, and what chance
gives.
"""

from __future__ import annotations

import numpy as np
from scipy import stats
from studied_sentences import grouped, split

from repdyn.lab.studies import sentence_measurements as tables
from repdyn.lab.studies.embedding_tables import cosine_matrix
from repdyn.lab.studies.sentence_measurements import consistency, separation


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """Of 60 worlds of the same kind, with the truth from many groups."""
    many, labels = grouped(n_groups=400, n_each=3)
    truth = split(many, labels)[0].mean()
    held = 0
    for seed in range(1, 61):
        vectors, groups = grouped(n_groups=12, n_each=3, seed=seed)
        found = separation(cosine_matrix(vectors), groups)
        held += found["within_low"] <= truth <= found["within_high"]
    # a percentile bootstrap of 12 groups covers somewhat less than 95%
    assert 48 <= held <= 60


def test_p_is_uniform_where_kinds_mean_nothing(monkeypatch):
    monkeypatch.setattr(tables, "N_PERMUTATIONS", 199)
    random = np.random.default_rng(0)
    p = []
    for seed in range(200):
        before, after = random.normal(size=(2, 16, 10))
        table = consistency(
            before, after, ["a"] * 8 + ["b"] * 8, [str(n) for n in range(16)], seed=seed
        )
        p.append(table["p"][0])
    assert stats.kstest(p, "uniform").pvalue > 0.01
    assert min(p) >= 1 / 200
