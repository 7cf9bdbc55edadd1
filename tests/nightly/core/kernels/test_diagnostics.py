"""How dependent the points of a cloud are: against brute force, with sinks and without."""

import math

import numpy as np
import pytest
import torch
from grouped import GROUPED, GROUPINGS
from hostile import HOSTILE

from repdyn.kernels import NEAR_DUPLICATE, Cloud, near_duplicate_share, neighbours, same_group_share


def distances(points):
    x = points.double().numpy()
    exact = np.stack([np.sqrt(((x - row) ** 2).sum(1)) for row in x])
    np.fill_diagonal(exact, np.inf)
    return exact


def naive_same_group_share(points, groups):
    exact = distances(points)
    same = (groups[:, None] == groups).numpy()
    own, other = (np.where(kind, exact, np.inf).min(1) for kind in (same, ~same))
    return (own < other * (1 - 1e-12)).mean()


def naive_radius(points):
    x = points.double().unique(dim=0).numpy()
    nearer = x
    for _ in range(4):
        from_centre = np.linalg.norm(x - nearer.mean(0), axis=1)
        limit = np.sort(from_centre)[(len(x) - 1) // 2]
        is_nearer = from_centre <= limit
        nearer = x[is_nearer]
    return limit


@pytest.mark.parametrize(
    ("name", "grouping"), [case for case in GROUPED if case[0] != "integer_grid"]
)
def test_same_group_share_is_that_of_brute_force(name, grouping):
    points = Cloud(HOSTILE[name]()).distinct.points
    groups = GROUPINGS[grouping](len(points))
    assert same_group_share(Cloud(points, groups=groups)) == naive_same_group_share(points, groups)


@pytest.mark.parametrize("measured", [1, 4, 500])
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_pairs_that_are_measured_and_searched_agree(grouping, measured, monkeypatch):
    points = HOSTILE["low_rank"]()
    groups = GROUPINGS[grouping](len(points))
    monkeypatch.setattr(neighbours, "_MAX_PAIRWISE", measured)
    assert same_group_share(Cloud(points, groups=groups)) == naive_same_group_share(points, groups)


def test_ends_of_the_same_group_share():
    points = HOSTILE["gaussian"]()
    assert same_group_share(Cloud(points, groups=torch.arange(400))) == 0
    assert same_group_share(Cloud(points, groups=torch.zeros(400, dtype=torch.int32))) == 1
    pairs = torch.cat([points, points + 1e-3])
    assert same_group_share(Cloud(pairs, groups=torch.arange(400).repeat(2))) == 1
    assert math.isnan(same_group_share(Cloud(points)))
    assert math.isnan(same_group_share(Cloud(torch.ones(9, 2), groups=torch.arange(9))))
    assert math.isnan(same_group_share(Cloud(torch.full((9, 2), math.nan), groups=torch.arange(9))))


def with_near_copies(n_near, size, sinks=0.0):
    """A hundred exact copies, and some near ones whose distance is a share of the radius."""
    points = HOSTILE["low_rank"]().double()
    radius = naive_radius(points)
    shift = torch.zeros(80, dtype=torch.float64)
    shift[3] = size * radius
    points = torch.cat([points, points[:100], points[200 : 200 + n_near] + shift])
    return torch.cat(
        [
            points,
            sinks * radius * (1 + torch.rand(10, 80, generator=torch.Generator().manual_seed(5))),
        ]
    )


@pytest.mark.parametrize("sinks", [1.0, 300.0, 1e6])
@pytest.mark.parametrize(("size", "n_found"), [(0.9, 260), (1.2, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_near_duplicates_are_counted_whatever_the_sinks(sinks, size, n_found, dtype):
    points = with_near_copies(30, size * NEAR_DUPLICATE, sinks).to(dtype)
    assert near_duplicate_share(Cloud(points)) == n_found / len(points)
    groups = GROUPINGS["eights"](len(points))
    assert near_duplicate_share(Cloud(points, groups=groups)) == n_found / len(points)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_radius_is_that_of_the_rule(name):
    points = Cloud(HOSTILE[name]()).distinct.points
    assert neighbours.radius(Cloud(points)) == pytest.approx(
        naive_radius(points), rel=1e-4
    )  # from points in float32
