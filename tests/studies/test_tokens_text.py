"""Words of a text against the vocabulary: functions against naive ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from repdyn.kernels.vocabulary import Vocabulary
from repdyn.studies.tokens.text import class_rows, common_direction, density, higher_share


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_classes_against_naive_ones():
    table, ids = random(30, 6), torch.arange(20) % 30
    x = table[ids] + 1.5 * random(20, 6, seed=1)
    classes = {"function": torch.arange(0, 20, 2), "content": torch.tensor([1, 5, 7])}
    lines = class_rows(x, ids, Vocabulary(table), classes)
    cosines = normalize(x.double()) @ normalize(table.double()).T
    own = cosines[torch.arange(20), ids]
    ranks = (cosines > own[:, None] + 1e-12).sum(1).double()
    for line, (name, rows) in zip(lines, classes.items(), strict=True):
        assert (line["class"], line["tokens"]) == (name, len(rows))
        assert line["cosine"] == pytest.approx(own[rows].mean().item(), rel=1e-12)
        quartiles = [line["rank_q25"], line["rank"], line["rank_q75"]]
        assert quartiles == ranks[rows].quantile(torch.tensor([0.25, 0.5, 0.75]).double()).tolist()
        assert line["kept"] == (ranks[rows] == 0).double().mean()


def test_density_against_a_naive_one():
    table = random(60, 5)
    table[20:32] = table[20]  # more copies than neighbours
    table[50] = 0
    ids = torch.tensor([3, 20, 3, 50, 7, 59, 7, 7])
    is_function = torch.tensor([True, False, True, False, False, True, True, False])
    found = density(Vocabulary(table), ids, is_function)
    unit = normalize(table.double())
    assert found["token_id"].tolist() == [3, 7, 20, 59]
    assert found["count"].tolist() == [2, 3, 1, 1]
    assert found["class"].tolist() == ["function", "content", "content", "function"]
    for line in found.to_dict("records"):
        cosines = unit @ unit[line["token_id"]]
        cosines[[line["token_id"], 50]] = -2
        assert line["density"] == pytest.approx(cosines.topk(10).values.mean().item(), rel=1e-10)
        assert line["norm"] == pytest.approx(table[line["token_id"]].double().norm().item(), rel=1e-12)


def test_higher_share_counts_pairs():
    values, others = np.array([1.0, 2.0, 2.0, 5.0]), np.array([2.0, 4.0, 0.0])
    pairs = [(v > o) + (v == o) / 2 for v in values for o in others]
    assert higher_share(values, others) == pytest.approx(np.mean(pairs))


def test_common_direction_against_all_pairs():
    before, after = random(12, 5), random(12, 5, seed=1) + 0.7
    after[4] = before[4]  # does not move
    sequences = torch.tensor([4, 4, 4, 9, 9, 9, 9, 11, 4, 4, 9, 30])
    within, between = common_direction(before, after, sequences)
    units = normalize((after - before).double())
    moved = [place for place in range(12) if place != 4]
    pairs = [(a, b) for a in moved for b in moved if a != b]
    for found, same in ((within, True), (between, False)):
        cosines = [float(units[a] @ units[b]) for a, b in pairs if bool(sequences[a] == sequences[b]) is same]
        assert found == pytest.approx(np.mean(cosines), rel=1e-6)


def test_tokens_that_all_move_alike_and_none_that_do():
    before = random(6, 4)
    same = common_direction(before, before + torch.tensor([1.0, 2, 3, 4]), torch.tensor([0, 0, 0, 1, 1, 1]))
    assert same == pytest.approx((1, 1), rel=1e-6)
    within, between = common_direction(before, before + 1, torch.arange(6))
    assert math.isnan(within)
    assert between == pytest.approx(1, rel=1e-6)
