"""Neighbours outside of a point's own group: against brute force in float64, whatever the
groups.
"""

from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from grouped import GROUPED, GROUPINGS, n_outside, naive_nearest_outside
from hostile import HOSTILE, nearest_distances

from repdyn.kernels import Cloud, UndefinedError, gride, levina_bickel, two_nn
from repdyn.kernels import neighbours as module
from repdyn.kernels import search as search_module
from repdyn.kernels.neighbours import cloud_neighbours
from repdyn.kernels.search import nearest_neighbours

KERNELS = {
    "two_nn": (two_nn, two_nn.or_raise),
    "gride": (gride, gride.or_raise),
    "levina_bickel": (levina_bickel, levina_bickel.or_raise),
}
each_kernel = pytest.mark.parametrize(
    "kernel", [kernel for kernel, _ in KERNELS.values()], ids=KERNELS
)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def multiplied(request, monkeypatch):
    monkeypatch.setattr("repdyn.kernels.candidates.fastest_dtype", lambda points: request.param)


@pytest.mark.usefixtures("multiplied")
@pytest.mark.parametrize(("name", "grouping"), GROUPED)
def test_every_distance_is_that_of_brute_force(name, grouping):
    points = Cloud(HOSTILE[name]()).distinct.points
    groups = GROUPINGS[grouping](len(points))
    if n_outside(groups) < 1:
        pytest.skip("no neighbours")
    k = min(16, n_outside(groups))
    distances, others = nearest_neighbours(points, k, groups=groups)
    np.testing.assert_allclose(distances, naive_nearest_outside(points, groups, k), rtol=1e-10)
    assert (groups[others] != groups[:, None]).all()
    measured = (points.double()[:, None] - points.double()[others]).norm(dim=2)
    torch.testing.assert_close(distances, measured, rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (torch.float16, torch.uint8),
        (torch.bfloat16, torch.int16),
        (torch.float32, torch.int64),
        (torch.float64, torch.uint8),
    ],
)
def test_any_precision(dtype, kind):
    points = Cloud(HOSTILE["gaussian"]().to(dtype)).distinct.points
    groups = GROUPINGS["eights"](len(points)).to(kind)
    np.testing.assert_allclose(
        nearest_distances(points, groups=groups),
        naive_nearest_outside(points, groups, 2),
        rtol=1e-10,
    )


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("n", [1000, 4100])
def test_tiles_of_all_shapes(n, grouping):
    points = torch.randn(n, 6, generator=torch.Generator().manual_seed(n))
    groups = GROUPINGS[grouping](n)
    exact = torch.cdist(
        points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist"
    )
    in_one_group = groups[:, None] == groups
    exact[in_one_group] = torch.inf
    expected = exact.topk(2, largest=False).values
    torch.testing.assert_close(
        nearest_distances(points, groups=groups), expected, rtol=1e-10, atol=0
    )


@pytest.mark.parametrize("more", search_module._N_EXTRA)
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_each_float64_search_alone_is_right(more, grouping, monkeypatch):
    points = HOSTILE["bimodal_1000"]()
    groups = GROUPINGS[grouping](len(points))
    monkeypatch.setattr(search_module, "_N_EXTRA", (more,))
    neighbours = search_module.neighbours_of(torch.arange(len(points)), points, 2, groups=groups)
    np.testing.assert_allclose(
        neighbours.distances, naive_nearest_outside(points, groups, 2), rtol=1e-10
    )


@pytest.mark.parametrize(
    "name", ["gaussian", "low_rank", "std_500", "sinks", "bfloat16", "offset_3000"]
)
@pytest.mark.parametrize("grouping", ["eights", "half_in_one"])
def test_clouds_as_models_have_them_need_no_float64_search(name, grouping, monkeypatch):
    monkeypatch.setattr(search_module, "_N_EXTRA", ())
    points = HOSTILE[name]()
    assert nearest_distances(points, groups=GROUPINGS[grouping](len(points))).isfinite().all()


@pytest.mark.parametrize("name", HOSTILE)
def test_groups_of_one_are_none(name):
    points = HOSTILE[name]()
    groups = torch.randperm(len(points), generator=torch.Generator().manual_seed(0)) - 5
    for kernel, _ in KERNELS.values():
        torch.testing.assert_close(
            kernel(Cloud(points, groups=groups)), kernel(points), rtol=0, atol=0, equal_nan=True
        )


def naive(points, groups, kernel):
    if kernel is two_nn:
        r1, r2 = naive_nearest_outside(points, groups, 2).T
        n_kept = len(r1) * 9 // 10
        x = np.sort(np.log(r2 / r1))[:n_kept]
        y = -np.log(1 - np.arange(1, n_kept + 1) / len(r1))
        return (x @ y) / (x @ x)
    radii = naive_nearest_outside(points, groups, 20)
    return 1 / np.log(radii[:, -1:] / radii[:, :-1]).mean()


@pytest.mark.parametrize("kernel", [two_nn, levina_bickel])
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize(
    "name", ["gaussian", "low_rank", "sinks", "bfloat16", "offset_3000", "heavy_tail"]
)
def test_kernels_against_the_oracle(name, grouping, kernel):
    points = HOSTILE[name]()
    groups = GROUPINGS[grouping](len(points))
    assert kernel(Cloud(points, groups=groups)).item() == pytest.approx(
        naive(points, groups, kernel), rel=1e-9
    )


def test_gride_at_its_smallest_scale_is_two_nn_by_maximum_likelihood():
    points = HOSTILE["gaussian"]()
    groups = GROUPINGS["eights"](400)
    expected = (
        two_nn(Cloud(points, groups=groups), estimator="maximum_likelihood").item() * 400 / 399
    )
    assert gride(Cloud(points, groups=groups), k=2).item() == pytest.approx(expected, rel=1e-12)


@each_kernel
@pytest.mark.parametrize("name", ["gaussian", "bimodal_1000", "heavy_tail"])
def test_invariances(name, kernel):
    points = HOSTILE[name]().double()
    groups = GROUPINGS["doubling"](len(points))
    expected = kernel(Cloud(points, groups=groups)).item()
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(3))
    dim = points.shape[1]
    turn = torch.linalg.qr(
        torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ).Q
    assert kernel(Cloud(points[order], groups=groups[order])).item() == pytest.approx(
        expected, rel=1e-12
    )
    for names in (
        -groups,
        groups * 1000,
        torch.randperm(20, generator=torch.Generator().manual_seed(0))[groups],
    ):
        assert kernel(Cloud(points, groups=names)).item() == pytest.approx(expected, rel=1e-12)
    for changed in (points @ turn, points * 3.7, points + 5):
        assert kernel(Cloud(changed, groups=groups)).item() == pytest.approx(expected, rel=1e-8)
    repeated = kernel(
        Cloud(torch.cat([points, points[:50]]), groups=torch.cat([groups, groups[:50]]))
    )
    assert repeated.item() == pytest.approx(expected, rel=1e-12)


def test_of_duplicates_in_several_groups_the_first_keeps_its_own():
    points = torch.tensor([[0.0], [1.0], [3.0], [7.0], [3.0], [15.0]])
    cloud = Cloud(points, groups=torch.tensor([0, 0, 1, 1, 2, 2]))
    assert cloud.distinct.points.flatten().tolist() == [0, 1, 3, 7, 15]
    assert cloud.distinct.groups is not None
    assert cloud.distinct.groups.tolist() == [0, 0, 1, 1, 2]
    assert cloud_neighbours(cloud, 1).distances.flatten().tolist() == [3, 2, 2, 6, 8]
    assert cloud_neighbours(cloud, 1).indices.flatten().tolist() == [2, 2, 1, 1, 3]


@pytest.mark.parametrize("name", ["duplicates_20_percent", "duplicates_95_percent"])
def test_duplicates_across_groups_against_the_oracle(name):
    points = HOSTILE[name]()
    groups = GROUPINGS["eights"](len(points))
    cloud = Cloud(points, groups=groups)
    first = [points.tolist().index(row) for row in points.unique(dim=0).tolist()]
    expected = naive_nearest_outside(points[first], groups[first], 2)
    np.testing.assert_allclose(
        np.sort(cloud_neighbours(cloud, 2).distances, 0), np.sort(expected, 0), rtol=1e-10
    )


def test_neighbours_are_searched_once_for_all(monkeypatch):
    points = HOSTILE["low_rank"]()
    groups = GROUPINGS["eights"](400)
    cloud = Cloud(points, groups=groups, n_neighbours=32)
    search = Mock(wraps=module.nearest_neighbours)
    monkeypatch.setattr(module, "nearest_neighbours", search)
    values = [
        two_nn.or_raise(cloud).item(),
        gride.or_raise(cloud, k=8).item(),
        levina_bickel.or_raise(cloud).item(),
    ]
    assert [call.args[1] for call in search.call_args_list] == [32]
    monkeypatch.undo()
    kernels = (two_nn, partial(gride, k=8), levina_bickel)
    alone = [kernel(Cloud(points, groups=groups)) for kernel in kernels]
    assert values == [value.item() for value in alone]


def test_no_more_neighbours_are_searched_than_the_groups_leave():
    groups = torch.cat([torch.zeros(395), torch.arange(1, 6)]).long()
    cloud = Cloud(HOSTILE["gaussian"](), groups=groups, n_neighbours=32)
    np.testing.assert_allclose(
        cloud_neighbours(cloud, 4).distances, naive_nearest_outside(cloud.x, groups, 4), rtol=1e-10
    )


UNDEFINED = {
    "0 of 60 distinct points lie outside the largest of the groups, at least {} needed": torch.full(
        (60,), 9
    ),
    "1 of 60 distinct points lie outside the largest of the groups, at least {} needed": (
        torch.arange(60) > 0
    ).int(),
}


@pytest.mark.parametrize(("k", "kernel"), [(2, "two_nn"), (4, "gride"), (20, "levina_bickel")])
@pytest.mark.parametrize(
    ("reason", "groups"), UNDEFINED.items(), ids=["one_group", "one_point_outside"]
)
def test_too_few_outside_is_undefined(reason, groups, k, kernel):
    points = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    value_or_nan, value_or_reason = KERNELS[kernel]
    assert value_or_nan(Cloud(points, groups=groups)).isnan()
    with pytest.raises(UndefinedError) as caught:
        value_or_reason(Cloud(points, groups=groups))
    assert caught.value.reason == reason.format(k)


def test_what_makes_a_cloud_undefined_comes_first():
    with pytest.raises(UndefinedError, match="^the points contain NaN$"):
        two_nn.or_raise(
            Cloud(torch.full((9, 2), torch.nan), groups=torch.zeros(9, dtype=torch.long))
        )
