"""Lengths, pairs, means and spectra of tables against closed forms and float64 by other hands; closest pairs."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import pdist

from repdyn.kernels import Undefined
from repdyn.studies.anatomy import geometry
from repdyn.studies.anatomy.geometry import (
    closest_pairs,
    components_for,
    describe,
    explained_variance,
    mean_relation,
    norms,
    pair_values,
    sample_pairs,
)

RANDOM = np.random.default_rng(0)


def drawn(n: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, dim))).to(dtype)


# pairs


def test_all_pairs_where_there_are_few():
    pairs = sample_pairs(4, max_pairs=6)
    assert pairs.is_complete
    assert sorted(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)) == [
        *((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)),
    ]


def test_drawn_pairs_are_of_different_rows_each_as_likely():
    pairs = sample_pairs(5, max_pairs=9, seed=1)
    assert not pairs.is_complete
    assert len(pairs.first) == 9
    many = sample_pairs(40, max_pairs=700, seed=1)
    assert bool((many.first != many.second).all())
    counts = np.bincount(torch.cat([sample_pairs(40, max_pairs=700, seed=s).first for s in range(40)]), minlength=40)
    assert counts.sum() == 28_000
    assert abs(counts - 700).max() < 5 * math.sqrt(700)


def test_the_seed_says_which_pairs():
    one, same, other = (sample_pairs(100, max_pairs=50, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.first, same.first)
    assert torch.equal(one.second, same.second)
    assert not torch.equal(one.first, other.first)


def test_one_row_has_no_pairs():
    with pytest.raises(ValueError, match=r"^expected at least two rows to pair, got 1$"):
        sample_pairs(1)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-12)])
def test_pair_values_against_scipy(dtype, within):
    rows = drawn(30, 7).to(dtype)
    wide = rows.double().numpy()
    values = pair_values(rows, sample_pairs(30))
    np.testing.assert_allclose(values["distance"], pdist(wide), rtol=within)
    np.testing.assert_allclose(values["cosine"], 1 - pdist(wide, "cosine"), rtol=1e-9, atol=within)
    np.testing.assert_allclose(values["dot"], (wide @ wide.T)[np.triu_indices(30, 1)], rtol=1e-9, atol=within)
    np.testing.assert_allclose(norms(rows), np.linalg.norm(wide, axis=1), rtol=within)


def test_pair_values_in_parts_are_those_of_the_whole(monkeypatch):
    rows, pairs = drawn(30, 7), sample_pairs(30)
    whole = pair_values(rows, pairs)
    monkeypatch.setattr("repdyn.studies.anatomy.geometry._PAIRS_AT_ONCE", 70)
    for name, values in pair_values(rows, pairs).items():
        np.testing.assert_array_equal(values, whole[name])


def test_the_mean_of_drawn_cosines_is_near_that_of_all():
    rows = drawn(3000, 6) + 0.3
    unit = (rows / rows.norm(dim=1, keepdim=True)).numpy()
    of_all = (np.square(unit.sum(0)).sum() - 3000) / (3000 * 2999)
    cosines = pair_values(rows, sample_pairs(3000, max_pairs=100_000))["cosine"]
    assert len(cosines) == 100_000
    # pairs share rows: the mean scatters by more than that of as many independent ones
    assert cosines.mean() == pytest.approx(of_all, abs=6 * cosines.std() / math.sqrt(100_000) + 0.002)


def test_a_zero_row_has_no_cosine():
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [4.0, 3.0]])
    values = pair_values(rows, sample_pairs(3))
    np.testing.assert_array_equal(np.isnan(values["cosine"]), [True, True, False])
    np.testing.assert_allclose(values["distance"], [5, 5, math.sqrt(2)])
    assert values["cosine"][2] == pytest.approx(24 / 25)


# summaries


def test_a_summary_of_what_is_there():
    found = describe(np.array([3.0, math.nan, 1.0, 2.0]))
    assert (found["n"], found["mean"], found["std"]) == (3, 2.0, 1.0)
    assert (found["min"], found["median"], found["max"]) == (1.0, 2.0, 3.0)
    assert found["q25"] == 1.5


def test_a_summary_of_one_value_and_of_none():
    one, none = describe(np.array([2.0])), describe(np.array([math.nan]))
    assert one["mean"] == one["min"] == one["max"] == 2.0
    assert math.isnan(one["std"])
    assert none["n"] == 0
    assert all(math.isnan(value) for name, value in none.items() if name != "n")


def test_relation_to_the_mean_in_closed_form():
    # four corners of a square of side 2 at height 3: the mean is (0, 0, 3), every length is the root of 11
    corners = torch.tensor([[1.0, 1, 3], [1, -1, 3], [-1, 1, 3], [-1, -1, 3]])
    found = mean_relation(corners)
    assert found.norm == pytest.approx(3)
    assert found.share == pytest.approx(9 / 11)
    np.testing.assert_allclose(found.cosines, 3 / math.sqrt(11))


def test_relation_to_a_mean_of_zero():
    found = mean_relation(torch.tensor([[1.0, 0], [-1, 0]]))
    assert (found.norm, found.share) == (0, 0)
    assert np.isnan(found.cosines).all()


def test_a_known_spectrum():
    # variances 4, 3, 2, 1 along the axes of a rotated frame
    deviations = np.repeat(np.eye(4) * np.sqrt([4.0, 3, 2, 1]), 2, axis=0) * np.tile([1, -1], 4)[:, None]
    rotation = np.linalg.qr(RANDOM.normal(size=(4, 4)))[0]
    found = explained_variance(torch.from_numpy(deviations @ rotation + 100))
    np.testing.assert_allclose(found, [0.4, 0.7, 0.9, 1.0], rtol=1e-9)
    assert components_for(found) == {0.5: 2, 0.9: 3, 0.95: 4, 0.99: 4}


def test_the_curve_against_singular_values():
    rows = drawn(200, 20) * torch.arange(1, 21)
    squares = np.linalg.svd(rows.numpy() - rows.numpy().mean(0), compute_uv=False) ** 2
    np.testing.assert_allclose(explained_variance(rows), np.cumsum(squares) / squares.sum(), rtol=1e-9)
    np.testing.assert_allclose(explained_variance(rows.float()), np.cumsum(squares) / squares.sum(), rtol=1e-5)


def test_two_rows_have_no_curve():
    with pytest.raises(Undefined, match="2 distinct of 2 points"):
        explained_variance(drawn(2, 5))


# closest pairs


def brute(rows: np.ndarray, k: int) -> list[tuple[int, int]]:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ unit.T
    pairs = [(-cosines[a, b], a, b) for a in range(len(rows)) for b in range(a + 1, len(rows))]
    return [(a, b) for _, a, b in sorted(pairs)[:k]]


def numbers(pairs: pd.DataFrame) -> list[tuple[int, int]]:
    return list(zip(pairs["first"], pairs["second"], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("tile", [4096, 32, 7], ids=["one tile", "many", "ragged"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_closest_pairs_against_is_complete(tile, dtype, monkeypatch):
    monkeypatch.setattr(geometry, "_TILE", tile)
    rows = drawn(120, 5).to(dtype)
    found = closest_pairs(rows, k=15)
    assert numbers(found.pairs) == brute(rows.double().numpy(), 15)
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(-1)
    torch.testing.assert_close(found.nearest.double(), cosines.amax(1), rtol=0, atol=1e-6)


def test_closest_pairs_have_their_cosine_dot_and_distance():
    rows = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 4.0]])
    best = closest_pairs(rows, k=3).pairs.iloc[0]
    assert tuple(best) == (1, 2, pytest.approx(0.8), pytest.approx(4.0), pytest.approx(math.sqrt(18)))


def test_differences_below_float32_are_told_apart():
    # cosines of 1 - 1e-10 and 1 - 4e-10 are both 1 in float32
    rows = torch.eye(4, dtype=torch.float64).repeat_interleave(2, dim=0)
    for pair, angle in enumerate((3e-5, 1e-5, 4e-5, 2e-5)):
        rows[2 * pair + 1, (pair + 1) % 4] = angle
    found = closest_pairs(rows, k=4).pairs
    assert numbers(found) == [(2, 3), (6, 7), (0, 1), (4, 5)]


@pytest.mark.parametrize("tile", [4096, 16])
def test_closest_pairs_across_two_tables(tile, monkeypatch):
    monkeypatch.setattr(geometry, "_TILE", tile)
    one, other = drawn(40, 6), drawn(30, 6, seed=1)
    cosines = torch.nn.functional.normalize(one, dim=1) @ torch.nn.functional.normalize(other, dim=1).T
    order = cosines.flatten().argsort(descending=True)[:10]
    found = closest_pairs(one, other, k=10)
    assert numbers(found.pairs) == [(int(i) // 30, int(i) % 30) for i in order]
    torch.testing.assert_close(found.nearest.double(), cosines.amax(1), rtol=0, atol=1e-6)


def test_duplicates_come_in_the_order_of_their_rows():
    rows = torch.tensor([[1.0, 0], [0, 1], [2, 0], [0, 3], [1, 0]])
    found = closest_pairs(rows, k=4).pairs
    assert numbers(found) == [(0, 2), (0, 4), (1, 3), (2, 4)]
    assert found["cosine"].eq(1).all()


def test_fewer_pairs_than_asked_for_and_rows_without_direction():
    found = closest_pairs(torch.tensor([[1.0, 0], [0, 0], [0, 1]]), k=20)
    assert numbers(found.pairs) == [(0, 2)]
    assert found.nearest.tolist() == [0, -1, 0]
    assert closest_pairs(torch.zeros(3, 2), k=2).pairs.empty


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_closest_pairs_at_any_scale(scale):
    rows = drawn(50, 5)
    expected = numbers(closest_pairs(rows, k=5).pairs)
    assert numbers(closest_pairs(rows * scale, k=5).pairs) == expected


def test_progress_ends_at_one(monkeypatch):
    monkeypatch.setattr(geometry, "_TILE", 8)
    shares: list[float] = []
    closest_pairs(drawn(20, 3), k=2, progress=shares.append)
    assert len(shares) == 6
    assert shares == sorted(shares)
    assert shares[-1] == 1
