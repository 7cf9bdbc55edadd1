import numpy as np
import pytest
import torch
from grouped import shuffled
from hostile import HOSTILE, n_kept_of

from repdyn.kernels import Cloud, Undefined, local_dimension, two_nn


def naive_slope(ratios):
    n_kept = n_kept_of(len(ratios), 0.1)
    x = np.sort(np.log(ratios))[:n_kept]
    y = -np.log(1 - np.arange(1, n_kept + 1) / len(ratios))
    return np.linalg.lstsq(x[:, None], y, rcond=None)[0][0]


def naive_local_dimension(points, k, chosen, groups=None):
    """Point by point in float64."""
    x = Cloud(points).distinct.double().numpy()
    groups = torch.arange(len(points)) if groups is None else groups
    repeats = Cloud(points).repeats
    of = (groups if repeats is None else groups[repeats.first]).numpy()
    chosen = [i * len(x) // chosen for i in range(chosen)] if chosen < len(x) else range(len(x))
    dimensions = []
    for i in chosen:
        far = np.linalg.norm(x - x[i], axis=1)
        far[of == of[i]] = np.inf
        near = np.argsort(far, kind="stable")[:k]
        ratios = []
        for j in near:
            others = np.sort([np.linalg.norm(x[j] - x[other]) for other in near if of[other] != of[j]])
            ratios.append(others[1] / others[0])
        dimensions.append(naive_slope(np.array(ratios)))
    return np.mean(dimensions)


CLOUDS = [
    *("gaussian", "low_rank", "offset_3000", "std_500_offset_3000", "scale_1e-30", "scale_1e30", "d_1", "sinks"),
    *("duplicates_20_percent", "float64_offset", "transposed", "strided", "bimodal_1000", "heavy_tail", "rank_1"),
    *("near_duplicates_1e-4", "d_gt_n", "bfloat16", "float16"),
]


@pytest.mark.parametrize("name", CLOUDS)
def test_point_by_point_in_float64(name):
    points = HOSTILE[name]()
    expected = naive_local_dimension(points, 30, 25)
    # of equally far points in half precision either may be the last of a neighbourhood
    tolerance = 0.02 if "float16" in name else 1e-9
    assert local_dimension(points, k=30, points=25).item() == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("k", [3, 11, 64])
@pytest.mark.parametrize("name", ["gaussian", "low_rank", "duplicates_20_percent"])
def test_neighbours_outside_of_the_group(name, k):
    points = HOSTILE[name]()
    groups = shuffled(torch.arange(len(points)) // (8 if k > 3 else 1))
    expected = naive_local_dimension(points, k, 20, groups)
    assert local_dimension(points, groups, k=k, points=20).item() == pytest.approx(expected, rel=1e-9)
    assert local_dimension(Cloud(points, groups=groups), k=k, points=20).item() == pytest.approx(expected, rel=1e-9)


# scikit-dimension 0.5.0, the mean of TwoNN().fit_pw(points, n_neighbors=64).dimension_pw_: of all 2000 and of every
# 2000 / 256-th
SCIKIT_DIMENSION = {2000: 5.4888963280804965, 256: 5.467844552862858}


@pytest.mark.parametrize("n", [256, 2000])
def test_scikit_dimension_agrees(n):
    points = torch.randn(2000, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert local_dimension(points, points=n).item() == pytest.approx(SCIKIT_DIMENSION[n], rel=1e-9)


def test_it_is_two_nn_where_the_neighbourhood_is_all_but_the_point_itself():
    points = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = np.mean([two_nn(torch.cat([points[:i], points[i + 1 :]])).item() for i in range(30)])
    assert local_dimension(points, k=29).item() == pytest.approx(expected, rel=1e-12)


def cross(n):
    """Points at one distance from one another, and one more."""
    return torch.cat([torch.eye(n), 3 * torch.ones(1, n)])


UNDEFINED = {
    "8 distinct of 8 points, at least 9 needed": (torch.randn(8, 3), None),
    "1 distinct of 9 points, at least 3 needed": (torch.ones(9, 3), None),
    "the points contain NaN": (torch.full((9, 3), torch.nan), None),
    "7 of 12 distinct points lie outside the largest of the groups, at least 8 needed": (
        torch.randn(12, 3),
        torch.arange(12).clamp_max(7),
    ),
    "in 71 of 71 neighbourhoods the two nearest distances are equal for each point used": (cross(70), None),
}


@pytest.mark.parametrize("reason", UNDEFINED)
def test_undefined_is_nan_with_a_reason(reason):
    points, groups = UNDEFINED[reason]
    assert local_dimension(points, groups, k=8).isnan()
    with pytest.raises(Undefined) as caught:
        local_dimension.or_raise(Cloud(points, groups=groups), k=8)
    assert caught.value.reason == reason


def test_a_neighbourhood_of_one_group_has_no_value():
    """Two clusters of one group each, whose nearest neighbours outside are each other."""
    clusters = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) + 100 * (torch.arange(40) // 20)[:, None]
    with pytest.raises(Undefined, match="^in 4 of 4 neighbourhoods a point has fewer than 2 others outside its group$"):
        local_dimension.or_raise(clusters, torch.arange(40) // 20, k=8, points=4)
