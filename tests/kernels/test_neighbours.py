import importlib

import numpy as np
import pytest
import torch
from hostile import HOSTILE, naive_two_nearest

from repdyn.kernels import Cloud, neighbours
from repdyn.kernels.neighbours import two_nearest


def _sorted(r1, r2):
    return np.stack([np.sort(r1), np.sort(r2)])


@pytest.mark.parametrize("name", HOSTILE)
def test_every_distance_is_that_of_brute_force(name):
    points = Cloud(HOSTILE[name]()).distinct
    expected = naive_two_nearest(points).T
    np.testing.assert_allclose(_sorted(*map(np.asarray, two_nearest(points))), _sorted(*expected), rtol=1e-10)


@pytest.mark.parametrize("tile", [1, 7, 64, 10_000])
@pytest.mark.parametrize("name", ["gaussian", "bimodal_1000", "integer_grid", "n_3"])
def test_the_tile_leaves_the_result_alone(name, tile):
    points = Cloud(HOSTILE[name]()).distinct
    for whole, tiled in zip(two_nearest(points), two_nearest(points, tile=tile), strict=True):
        torch.testing.assert_close(tiled, whole, rtol=1e-12, atol=0)


def test_no_more_rows_than_the_tile_are_held(monkeypatch):
    held = []
    smallest = neighbours._smallest
    monkeypatch.setattr(neighbours, "_smallest", lambda scores, k: held.append(len(scores)) or smallest(scores, k))
    two_nearest(HOSTILE["bimodal_1000"](), tile=50)
    assert max(held) == 50


def _truth(points):
    rows = points.double().numpy()
    return np.stack([np.sort(np.sqrt(((rows - row) ** 2).sum(1)))[1:3] for row in rows])


@pytest.mark.parametrize("unit", [1, 1e-6, 1e5])
@pytest.mark.parametrize("stretch", [0.3, 1, 3])
def test_no_row_is_proven_wrongly_by_the_least_accurate_product(stretch, unit):
    points = HOSTILE["bimodal_1000"]()
    points[:, -1] *= stretch
    points *= unit
    search = neighbours._Search(points, torch.float32, 2)
    # sums of dim terms may be off by dim roundoffs of what they add up: (2 |x|)^2 at least
    allowed = points.shape[1] * 2**-24 * 4 * search.squares.min()
    signs = torch.randn(len(points), generator=torch.Generator().manual_seed(0)).sign()
    search.offsets[: len(points)] += signs * allowed.float()
    found, proven = search.two_nearest(torch.arange(len(points)))
    wrong = ~np.isclose(found.numpy(), _truth(points), rtol=1e-12, atol=0).all(1)
    assert wrong.any()
    assert not (wrong & proven.numpy()).any()


def test_an_ordinary_cloud_is_proven_in_float32():
    """Otherwise every row would be computed twice, unnoticed."""
    points = HOSTILE["low_rank"]()
    assert neighbours._Search(points, torch.float32, 4).two_nearest(torch.arange(len(points)))[1].all()


def test_float32_products_mislead_on_a_bimodal_dimension():
    """The case the proof exists for: without the higher rungs the answer is wrong."""
    points = HOSTILE["bimodal_1000"]()
    points[:, -1] *= 30
    found, proven = neighbours._Search(points, torch.float32, 2).two_nearest(torch.arange(len(points)))
    exact = torch.stack(two_nearest(points), 1)
    assert (found > exact * (1 + 1e-6)).any()
    assert not proven.all()


@pytest.mark.parametrize("rung", range(1, 4))
def test_each_rung_alone_is_right(rung, monkeypatch):
    points = HOSTILE["bimodal_1000"]()
    expected = two_nearest(points)
    monkeypatch.setattr(neighbours, "_LADDER", neighbours._LADDER[rung:])
    for ours, theirs in zip(two_nearest(points), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def test_points_too_close_for_any_product_reach_the_last_rung(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(80, 20, dtype=torch.float64, generator=generator) * 1e-11
    points[:, 0] += torch.arange(80) % 2  # far apart in one dimension, which centring cannot remove
    monkeypatch.setattr(neighbours, "_LADDER", ((torch.float32, 4), (torch.float64, 4), (torch.float64, None)))
    r1, r2 = two_nearest(points)
    np.testing.assert_allclose(_sorted(r1, r2), _sorted(*naive_two_nearest(points).T), rtol=1e-12)
    proven = neighbours._Search(points, torch.float64, 4).two_nearest(torch.arange(80))[1]
    assert not proven.any()


@pytest.mark.parametrize(("n_columns", "k"), [(512, 5), (4096, 5), (4096, 33), (2560, 200)])
def test_selection_is_topk(n_columns, k):
    scores = torch.randn(40, n_columns, generator=torch.Generator().manual_seed(0)).mul(50).round()
    values, columns = neighbours._smallest(scores, k)
    assert torch.equal(values, scores.topk(k, largest=False).values)
    assert torch.equal(scores.gather(1, columns), values)
    assert all(len(set(row)) == k for row in columns.tolist())


def test_a_point_is_never_its_own_neighbour():
    points = torch.tensor([[0.0], [1.0], [1.0 + 2**-20]])
    r1, r2 = two_nearest(points)
    assert r1.tolist() == [1.0, 2**-20, 2**-20]
    assert r2.tolist() == [1.0 + 2**-20, 1.0, 1.0 + 2**-20]


def test_the_module_is_importable_by_name():
    assert importlib.import_module("repdyn.kernels.neighbours") is neighbours
