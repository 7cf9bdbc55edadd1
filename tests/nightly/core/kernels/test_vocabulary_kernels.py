"""Tokens against the vocabulary: a naive float64 reference on tables made to mislead, and what is
undefined.
"""

import importlib

import pytest
import torch
from torch.nn.functional import normalize

from repdyn.kernels.vocabulary import (
    Vocabulary,
    nearest_rows,
    token_ranks,
)

DIM, N_ROWS, N_VECTORS = 48, 900, 60


def gaussian(seed=0, n=N_ROWS, dim=DIM):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def repeated():
    """Copies of rows, some of them longer or shorter: all tie with the one they were made of."""
    table = gaussian()
    table[300:600] = table[:300]
    table[600:] = 3 * table[:300]
    return table


def nearly_tied():
    """Pairs of rows whose cosines to anything differ by 1e-9 or so."""
    table = gaussian().double()
    table[450:] = table[:450] + 3e-9 * gaussian(1).double()[:450]
    return table


def with_zero_rows():
    table = gaussian()
    table[100::7] = 0
    return table


def mixed_magnitudes():
    return gaussian() * 10.0 ** torch.linspace(-30, 30, N_ROWS)[:, None]


def beyond_float32():
    return gaussian().double() * 10.0 ** torch.linspace(-250, 250, N_ROWS).double()[:, None]


TABLES = {
    "gaussian": gaussian,
    "repeated rows": repeated,
    "nearly tied": nearly_tied,
    "zero rows": with_zero_rows,
    "far from the origin": lambda: gaussian() + 1000,
    "one direction": lambda: gaussian() * 1e-3 + gaussian(1)[:1],
    "mixed magnitudes": mixed_magnitudes,
    "beyond float32": beyond_float32,
    "float16": lambda: gaussian().half(),
    "bfloat16": lambda: gaussian().bfloat16(),
    "bfloat16 far from the origin": lambda: (gaussian() + 30).bfloat16(),
    "400 dimensions": lambda: gaussian(dim=400),
    "one row": lambda: gaussian()[:1],
}


def unit(rows):
    largest = rows.double().abs().amax(1, keepdim=True)
    return normalize(rows.double() / largest, dim=1).where(largest > 0, torch.nan)


def tokens_of(table, noise=0.7):
    """Vectors near some of the rows, and the numbers of these."""
    has_direction = table.double().abs().amax(1) > 0
    ids = torch.arange(len(table))[has_direction]
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(2))[:N_VECTORS]]
    rows = unit(table)[ids]
    x = rows + noise * rows.std() * gaussian(3, len(ids), table.shape[1]).double()
    return (x if table.dtype == torch.float64 else x.to(torch.float32)), ids


def naive_cosines(x, table):
    return unit(x) @ unit(table).T


def naive_ranks(x, ids, table):
    cosines = naive_cosines(x, table)
    to_token = cosines[torch.arange(len(x)), ids]
    # what float64 cannot tell apart is a tie
    return (cosines > to_token[:, None] + 4 * (x.shape[1] + 8) * 2**-53).sum(1)


@pytest.mark.parametrize("noise", [0.1, 0.7, 10.0], ids="noise {}".format)
@pytest.mark.parametrize("name", TABLES)
def test_ranks_are_a_float64_references(name, noise):
    table = TABLES[name]()
    x, ids = tokens_of(table, noise)
    assert torch.equal(token_ranks(x, ids, Vocabulary(table)), naive_ranks(x, ids, table))


@pytest.mark.parametrize(
    "name", [name for name in TABLES if name not in {"mixed magnitudes", "beyond float32"}]
)
def test_ranks_and_nearest_rows_by_distance(name):
    table = TABLES[name]()
    x, ids = tokens_of(table)
    x = x * table.double().norm(dim=1).max()
    distances = torch.linalg.vector_norm(x.double()[:, None] - table.double(), dim=2)
    to_token = distances[torch.arange(len(x)), ids]
    vocabulary = Vocabulary(table, by_distance=True)
    # distances that float64 cannot tell apart from the expanded ones are ties
    assert (
        (distances < to_token[:, None] * (1 - 1e-12)).sum(1) - token_ranks(x, ids, vocabulary)
    ).abs().sum() == 0
    nearest, rows = nearest_rows(x, vocabulary, min(5, len(table)))
    torch.testing.assert_close(
        nearest, distances.topk(min(5, len(table)), largest=False).values, rtol=1e-9, atol=0
    )
    torch.testing.assert_close(distances.gather(1, rows), nearest, rtol=1e-12, atol=0)


def test_a_crowded_tile_is_multiplied_in_float64():
    """All rows closer together than float32 can tell."""
    table = gaussian(1)[:1].double() + 1e-8 * gaussian().double()
    x, ids = tokens_of(gaussian(1)[:1].double().expand(N_ROWS, -1), 0.5)
    ranks = token_ranks(x, ids, Vocabulary(table))
    assert torch.equal(ranks, naive_ranks(x, ids, table))
    assert 100 < ranks.double().mean() < 800


def test_tiles_and_slices_leave_the_ranks_alone(monkeypatch):
    table = gaussian()
    x, ids = tokens_of(table)
    whole = token_ranks(x, ids, Vocabulary(table))
    cosines, rows = nearest_rows(x, Vocabulary(table), 5)
    module = importlib.import_module("repdyn.kernels.vocabulary")
    monkeypatch.setattr(module, "_ROWS", {"cpu": 7})
    monkeypatch.setattr(module, "_VECTOR_CHUNK", 11)
    assert torch.equal(token_ranks(x, ids, Vocabulary(table)), whole)
    in_tiles = nearest_rows(x, Vocabulary(table), 5)
    assert torch.equal(in_tiles[1], rows)
    torch.testing.assert_close(in_tiles[0], cosines, rtol=1e-12, atol=0)


@pytest.mark.parametrize("added", [False, True], ids=["", "added"])
@pytest.mark.parametrize("name", [name for name in TABLES if name != "one row"])
def test_nearest_rows_are_a_float64_references(name, added):
    table = TABLES[name]()
    x, _ = tokens_of(table)
    vector = unit(gaussian(4, 1, table.shape[1])).squeeze(0) if added else None
    shifted = table.double() + vector if added else table
    cosines, rows = nearest_rows(x, Vocabulary(table, vector), 7)
    expected = naive_cosines(x, shifted).nan_to_num(-2)
    torch.testing.assert_close(cosines, expected.topk(7).values, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(expected.gather(1, rows), cosines, rtol=1e-11, atol=1e-14)
    assert (cosines.diff(dim=1) <= 0).all()
    assert all(len(set(found)) == 7 for found in rows.tolist())


def test_rows_that_float32_cannot_tell_apart_are_done_again():
    table = gaussian(1)[:1].double() + 1e-8 * gaussian().double()
    x = gaussian(3, 20).double()
    cosines, rows = nearest_rows(x, Vocabulary(table), 5)
    expected = naive_cosines(x, table).sort(dim=1, descending=True)
    assert torch.equal(rows, expected.indices[:, :5])
    torch.testing.assert_close(cosines, expected.values[:, :5], rtol=1e-12, atol=0)
