import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hostile import HOSTILE, naive_nearest, nearest_distances

from repdyn.kernels import Cloud, candidates, two_nn
from repdyn.kernels import search as search_module
from repdyn.kernels.cloud import Frame, unit_scale
from repdyn.kernels.search import nearest_neighbours


def _too_close():
    """Two clusters of a size that float32 products cannot see, far apart, which centring cannot
    remove.
    """
    points = (
        torch.randn(320, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        * 1e-11
    )
    points[:, 0] += torch.arange(320) % 3 > 0
    return points


def _sorted(distances):
    return np.sort(np.asarray(distances), axis=0)


@pytest.mark.parametrize("k", [1, 2, 16])
@pytest.mark.parametrize("name", HOSTILE)
def test_every_distance_is_that_of_brute_force(name, k):
    points = Cloud(HOSTILE[name]()).distinct.points
    k = min(k, len(points) - 1)
    np.testing.assert_allclose(
        _sorted(nearest_distances(points, k)), _sorted(naive_nearest(points, k)), rtol=1e-10
    )


@pytest.mark.parametrize("name", ["gaussian", "std_500", "tight_cluster"])
def test_points_of_one_group_are_no_neighbours(name):
    """Their nearest neighbours would be those of their own window."""
    points = Cloud(HOSTILE[name]()).distinct.points
    groups = torch.arange(len(points)) // 8
    points += (
        3
        * torch.randn(
            int(groups.max()) + 1, points.shape[1], generator=torch.Generator().manual_seed(0)
        )[groups]
    )
    distances = nearest_distances(points, groups=groups)
    np.testing.assert_allclose(
        _sorted(distances), _sorted(naive_nearest(points, groups=groups)), rtol=1e-10
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_every_distance_is_that_of_brute_force_without_fast_bfloat16(name, monkeypatch):
    monkeypatch.setattr("repdyn.kernels.candidates.fastest_dtype", lambda points: torch.float32)
    points = Cloud(HOSTILE[name]()).distinct.points
    np.testing.assert_allclose(
        _sorted(nearest_distances(points)), _sorted(naive_nearest(points)), rtol=1e-10
    )


def test_a_score_is_off_by_half_of_its_last_digit():
    """bfloat16 holds these coordinates, but not the squared distance of the nearest."""
    far = [[0, 0, 0, sign * size] for size in (8.0, 16.0, 24.0, 32.0, 40.0) for sign in (1, -1)]
    points = torch.tensor([[0, 0, 0, 0], [2**-11 - 1, 2**-4, 2**-10, 0], [1, 2**-4, 0, 0], *far])
    assert nearest_distances(points, 1)[0].item() == pytest.approx(
        points[1].double().norm().item(), rel=1e-12
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_the_number_of_neighbours_leaves_each_alone(name):
    points = Cloud(HOSTILE[name]()).distinct.points
    if len(points) > 16:
        assert torch.equal(nearest_distances(points, 16)[:, :2], nearest_distances(points, 2))


@pytest.mark.parametrize("tile", [1, 7, 64, 10_000])
def test_the_tile_leaves_the_result_alone(tile, monkeypatch):
    points = _too_close()
    expected = nearest_distances(points)
    monkeypatch.setattr(search_module, "_TILE", tile)
    torch.testing.assert_close(nearest_distances(points), expected, rtol=1e-12, atol=0)


def test_no_more_rows_than_the_tile_are_held(monkeypatch):
    search = Mock(wraps=search_module._search)
    monkeypatch.setattr(search_module, "_search", search)
    monkeypatch.setattr(search_module, "_TILE", 50)
    nearest_distances(_too_close())
    assert max(len(call.args[0]) for call in search.call_args_list) == 50


@pytest.mark.parametrize("unit", [1, 1e-6, 1e5])
@pytest.mark.parametrize("stretch", [0.3, 1, 3])
def test_no_row_is_proven_wrongly_by_the_least_accurate_product(stretch, unit, monkeypatch):
    points = HOSTILE["bimodal_1000"]().double()
    points[:, -1] *= stretch * 1e6
    points *= unit
    frame = Frame.fit(points, unit_scale(points))
    # sums of dim terms may be off by dim roundoffs of what they add up: (2 |x|)^2 at least
    allowed = points.shape[1] * 2**-53 * 4 * search_module._squares(frame.transform(points)).min()
    exact = search_module._scores
    signs = torch.randn(
        len(points), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).sign()

    def inaccurate(left, right):
        assert len(right) == len(points)
        return exact(left, right) + signs * allowed

    monkeypatch.setattr(search_module, "_scores", inaccurate)
    found, proven = search_module._search(torch.arange(len(points)), points, 2, 2, frame)
    wrong = ~np.isclose(found.distances.numpy(), naive_nearest(points), rtol=1e-12, atol=0).all(1)
    assert wrong.any()
    assert not (wrong & proven.numpy()).any()


@pytest.mark.parametrize(
    "name", ["gaussian", "low_rank", "std_500", "sinks", "bfloat16", "offset_3000"]
)
def test_clouds_as_models_have_them_need_no_float64_search(name, monkeypatch):
    """Otherwise every row would be computed twice, unnoticed."""
    monkeypatch.setattr(search_module, "_N_EXTRA", ())
    assert nearest_distances(HOSTILE[name]()).isfinite().all()


@pytest.mark.parametrize("more", search_module._N_EXTRA)
def test_each_float64_search_alone_is_right(more, monkeypatch):
    points = HOSTILE["bimodal_1000"]()
    expected = nearest_distances(points)
    monkeypatch.setattr(search_module, "_N_EXTRA", (more,))
    found = search_module.neighbours_of(torch.arange(len(points)), points, expected.shape[1])
    torch.testing.assert_close(found.distances, expected, rtol=1e-12, atol=0)


def test_points_too_close_for_any_product_reach_the_last_search(monkeypatch):
    points = _too_close()
    monkeypatch.setattr(search_module, "_N_EXTRA", (2, None))
    np.testing.assert_allclose(
        _sorted(nearest_distances(points)), _sorted(naive_nearest(points)), rtol=1e-12
    )
    frame = Frame.fit(points, unit_scale(points))
    assert not search_module._search(torch.arange(320), points, 2, 4, frame)[1].any()


def test_a_point_is_never_its_own_neighbour():
    points = torch.tensor([[0.0], [1.0], [1.0 + 2**-20]])
    assert nearest_distances(points).tolist() == [
        [1.0, 1.0 + 2**-20],
        [2**-20, 1.0],
        [2**-20, 1.0 + 2**-20],
    ]


@pytest.mark.parametrize("power", [-1000, -520, -100, 100, 500, 900])
def test_float64_points_of_any_unit(power):
    points = HOSTILE["low_rank"]().double()
    torch.testing.assert_close(
        nearest_distances(points * 2.0**power) / 2.0**power,
        nearest_distances(points),
        rtol=1e-12,
        atol=0,
    )


@pytest.mark.parametrize("spread", [1e-2, 1e-3, 1e-4])
def test_scores_of_points_far_from_the_centre_have_a_margin(spread):
    """Without it, candidates would be dropped whose scores are off by more than their distances
    differ.
    """
    x = torch.randn(400, 16, generator=torch.Generator().manual_seed(0)) * spread
    x[:200, 0] += 1
    x[200:, 0] -= 1
    np.testing.assert_allclose(nearest_distances(x), naive_nearest(x), rtol=1e-10)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_neighbour_depends_on_the_product_that_is_taken(name, monkeypatch):
    """A product is taken by its time, which is another in every process."""
    cloud = Cloud(HOSTILE[name]())
    points = cloud.distinct.points
    k = min(16, len(points) - 1)
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        monkeypatch.setattr(candidates, "fastest_dtype", lambda points, dtype=dtype: dtype)
        distances, indices = nearest_neighbours(points, k)
        results.append((distances, indices, two_nn(Cloud(points))))
    for in_float32, in_bfloat16 in zip(*results, strict=True):
        assert torch.equal(in_float32.nan_to_num(), in_bfloat16.nan_to_num())


@pytest.mark.parametrize(
    ("decay", "dtype"),
    [(0.0, torch.float32), (-0.7, torch.bfloat16)],
    ids=["isotropic", "decaying"],
)
def test_a_product_that_leaves_many_candidates_is_not_taken(decay, dtype, monkeypatch):
    """Of 2,048 isotropic coordinates bfloat16 left 44 of each point, and the whole search took 1.4
    times as long as in float32.
    """
    monkeypatch.setattr(candidates, "fastest_dtype", lambda points: torch.bfloat16)
    monkeypatch.setattr(candidates, "_WORTH_TRYING", 0)
    spectrum = torch.arange(1.0, 2049) ** decay
    points = torch.randn(1024, 2048, generator=torch.Generator().manual_seed(0)) * spectrum
    assert candidates.find_candidates(points, 2).rounded.right.dtype == dtype


@pytest.mark.parametrize("slower", [torch.float32, torch.bfloat16], ids=str)
def test_the_product_is_the_one_that_takes_less_time(slower, monkeypatch):
    """It was bfloat16 wherever the processor lists instructions for it, some of which are slow."""
    products = []

    def timed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        products.append(x.dtype)
        time.sleep(0.01 if x.dtype == slower else 0)
        return x.new_zeros(len(x), len(y))

    monkeypatch.setattr(candidates, "product", timed)
    monkeypatch.setattr(candidates, "_CHOSEN", {})
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    candidates._faster_on_cpu.cache_clear()
    points = torch.zeros(4096, 130)
    try:
        chosen = candidates.fastest_dtype(points)
        assert {chosen, slower} == {torch.float32, torch.bfloat16}
        assert str(chosen).removeprefix("torch.") in candidates.chosen_products()
        n_tried = len(products)
        # once a process; and not for a few points, which take less time than the trial
        assert candidates.fastest_dtype(points) == chosen
        candidates.fastest_dtype(points[:200])
        assert len(products) == n_tried
    finally:
        candidates._faster_on_cpu.cache_clear()
