"""Estimates of dimension by neighbours and trees: against float64 written out, and packages of
others.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from grouped import shuffled
from hostile import HOSTILE, n_kept_of, naive_nearest
from reference.clouds import CLOUDS
from scipy.optimize import brentq, minimize_scalar
from scipy.sparse.csgraph import minimum_spanning_tree
from skdim.id import MLE

from repdyn.kernels import Cloud, gride, levina_bickel, local_dimension, ph_dimension, two_nn
from repdyn.kernels.cloud import unit_scale

SIX = torch.randn(2000, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def naive_levina_bickel(points, k):
    """The inverse of the mean of the inverse of every distinct point's own estimate; NaN where
    there are too few.
    """
    distinct = torch.from_numpy(np.unique(points.double().numpy() + 0.0, axis=0))
    if len(distinct) <= k:
        return np.nan
    inverses = [
        np.log(radii[-1] / radii[:-1]).sum() / (k - 1) for radii in naive_nearest(distinct, k)
    ]
    return 1 / np.mean(inverses)


@pytest.mark.parametrize("k", [2, 5, 20])
@pytest.mark.parametrize("name", HOSTILE)
def test_levina_bickel_by_brute_force(name, k):
    expected = naive_levina_bickel(HOSTILE[name](), k)
    assert levina_bickel(HOSTILE[name](), k=k).item() == pytest.approx(
        expected, rel=1e-9, nan_ok=True
    )


@pytest.mark.parametrize("k", [5, 20])
@pytest.mark.parametrize("cloud", ["cube_5_in_64", "curved"])
def test_installed_scikit_dimension_agrees(cloud, k):
    points = CLOUDS[cloud]()
    theirs = (
        MLE().fit(points, n_neighbors=k).dimension_
    )  # comb="mle", its default, is the same average
    # scikit-dimension expands its distances, hence its error
    assert levina_bickel(torch.from_numpy(points), k=k).item() == pytest.approx(theirs, rel=1e-8)


@pytest.mark.parametrize(
    "name", ["gaussian", "duplicates_20_percent", "scale_1e-30", "near_duplicates_1e-4"]
)
def test_at_the_smallest_scale_all_are_two_nn_by_maximum_likelihood(name):
    cloud = Cloud(HOSTILE[name]())
    expected = (
        two_nn(cloud, estimator="maximum_likelihood").item() * cloud.n_unique / (cloud.n_unique - 1)
    )
    assert levina_bickel(cloud, k=2).item() == pytest.approx(expected, rel=1e-12)
    assert gride(cloud, k=2).item() == pytest.approx(expected, rel=1e-12)


def likelihood(dimension, ratios, k):
    """Of the density of Denti et al. 2022, but for its constant."""
    beyond = k // 2 - 1
    terms = np.log(dimension) - ((k - 1) * dimension + 1) * np.log(ratios)
    return (terms + beyond * np.log(ratios**dimension - 1)).sum() if beyond else terms.sum()


def naive_gride(points, k):
    distances = naive_nearest(Cloud(points).distinct.points, k)
    ratios = distances[:, -1] / distances[:, k // 2 - 1]

    def slope(dimension):
        step = 1e-5 * dimension
        return likelihood(dimension + step, ratios, k) - likelihood(dimension - step, ratios, k)

    best = minimize_scalar(
        lambda d: -likelihood(d, ratios, k), bounds=(0.05, 200), method="bounded"
    ).x
    return brentq(slope, best / 2, best * 2, xtol=1e-9)


@pytest.mark.parametrize("k", [4, 32, 128, 256])
@pytest.mark.parametrize(
    "name",
    ["gaussian", "low_rank", "std_500_offset_3000", "bfloat16", "d_1", "sinks", "heavy_tail"],
)
def test_gride_is_the_likeliest_dimension(name, k):
    points = HOSTILE[name]()
    assert gride(points, k=k).item() == pytest.approx(naive_gride(points, k), rel=1e-5)


# DADApy 0.3.4, Data(points).return_id_scaling_gride(range_max=256)
DADAPY = {
    2: 6.058859423,
    4: 5.990588017,
    8: 6.102453309,
    32: 5.733217339,
    128: 5.369069180,
    256: 5.021596800,
}


def test_dadapy_agrees():
    """But for a factor that tends to 1 as 1 - 1 / n does: it counts one point less."""
    assert [gride(SIX, k=k).item() for k in DADAPY] == pytest.approx(
        list(DADAPY.values()), rel=6e-4
    )


def naive_slope(ratios):
    n_kept = n_kept_of(len(ratios), 0.1)
    x = np.sort(np.log(ratios))[:n_kept]
    y = -np.log(1 - np.arange(1, n_kept + 1) / len(ratios))
    return np.linalg.lstsq(x[:, None], y, rcond=None)[0][0]


def naive_local_dimension(points, k, chosen, groups=None):
    """Point by point in float64."""
    x = Cloud(points).distinct.points.double().numpy()
    groups = torch.arange(len(points)) if groups is None else groups
    of = groups[Cloud(points).distinct.first].numpy()
    chosen = [i * len(x) // chosen for i in range(chosen)] if chosen < len(x) else range(len(x))
    dimensions = []
    for i in chosen:
        far = np.linalg.norm(x - x[i], axis=1)
        in_own_group = of == of[i]
        far[in_own_group] = np.inf
        near = np.argsort(far, kind="stable")[:k]
        ratios = []
        for j in near:
            others = np.sort(
                [np.linalg.norm(x[j] - x[other]) for other in near if of[other] != of[j]]
            )
            ratios.append(others[1] / others[0])
        dimensions.append(naive_slope(np.array(ratios)))
    return np.mean(dimensions)


WITHOUT_TIES = [
    *(
        "gaussian",
        "low_rank",
        "offset_3000",
        "std_500_offset_3000",
        "scale_1e-30",
        "scale_1e30",
        "d_1",
        "d_gt_n",
    ),
    *(
        "duplicates_20_percent",
        "float64_offset",
        "transposed",
        "bimodal_1000",
        "bfloat16",
        "near_duplicates_1e-4",
    ),
    "rank_1",
]


@pytest.mark.parametrize("name", [*WITHOUT_TIES, "sinks", "heavy_tail"])
def test_local_dimension_point_by_point(name):
    points = HOSTILE[name]()
    expected = naive_local_dimension(points, 30, 25)
    # of equally far points in half precision either may be the last of a neighbourhood
    tolerance = 0.02 if "float16" in name else 1e-9
    assert local_dimension(points, k=30, points=25).item() == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("k", [3, 64])
@pytest.mark.parametrize("name", ["low_rank", "duplicates_20_percent"])
def test_local_dimension_outside_of_the_group(name, k):
    points = HOSTILE[name]()
    groups = shuffled(torch.arange(len(points)) // (8 if k > 3 else 1))
    expected = naive_local_dimension(points, k, 20, groups)
    assert local_dimension(Cloud(points, groups=groups), k=k, points=20).item() == pytest.approx(
        expected, rel=1e-9
    )


# scikit-dimension 0.5.0, the mean of TwoNN().fit_pw(points, n_neighbors=64).dimension_pw_: of all
# 2000 and of every 2000 / 256-th
SCIKIT_DIMENSION = {2000: 5.4888963280804965, 256: 5.467844552862858}


@pytest.mark.parametrize("n", [256, 2000])
def test_scikit_dimension_agrees_on_local_dimension(n):
    assert local_dimension(SIX, points=n).item() == pytest.approx(SCIKIT_DIMENSION[n], rel=1e-9)


def naive_ph_dimension(points, most=512, alpha=1.0, groups=None):
    """Of scipy's trees on distances in float64."""
    x = points.double().numpy() + 0.0
    of = np.arange(len(points)) if groups is None else groups.numpy()
    order = np.sort(np.unique(x, axis=0, return_index=True)[1])
    order = order[: min(most, len(order)) // 8 * 8]
    x = x[order] - x[0]
    of = of[order]
    x /= np.abs(x).max()
    sizes = []
    sums = []
    for division in (1, 2, 4, 8):
        totals = []
        for start in range(division):
            piece = x[start::division]
            group = of[start::division]
            distances = np.stack([np.linalg.norm(piece - row, axis=1) for row in piece])
            # scipy takes distances below 1e-8 for none
            unit = distances.max()
            distances /= unit
            edges = minimum_spanning_tree(np.where(group[:, None] == group, 0, distances)).data
            assert len(edges) == len(piece) - 1
            totals.append(((unit * edges) ** alpha).sum())
        sizes.append(len(x) // division)
        sums.append(np.mean(totals))
    return alpha / (1 - np.polyfit(np.log(sizes), np.log(sums), 1)[0])


@pytest.mark.parametrize("alpha", [0.5, 1.0])
@pytest.mark.parametrize("name", [*WITHOUT_TIES, "integer_grid", "int8"])
def test_ph_dimension_by_scipy_s_trees(name, alpha):
    points = HOSTILE[name]()
    expected = naive_ph_dimension(points, alpha=alpha)
    if expected < 0:  # the sum grows faster than the number of points
        assert ph_dimension(points, alpha=alpha).isnan()
    else:
        assert ph_dimension(points, alpha=alpha).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("most", [64, 399])
def test_ph_dimension_takes_the_first_points(most):
    points = HOSTILE["low_rank"]()
    expected = ph_dimension(points, points=most).item()
    assert expected == pytest.approx(naive_ph_dimension(points, most), rel=1e-9)
    assert ph_dimension(points[: most // 8 * 8]).item() == expected


def test_no_edge_joins_points_of_one_group():
    points = HOSTILE["low_rank"]()
    groups = shuffled(torch.arange(400) // 8)
    # where the points of a group lie together, it matters
    points += 10 * torch.randn(400, 80, generator=torch.Generator().manual_seed(5))[groups]
    expected = naive_ph_dimension(points, groups=groups)
    assert ph_dimension(Cloud(points, groups=groups)).item() == pytest.approx(expected, rel=1e-9)
    assert ph_dimension(points).item() != pytest.approx(expected, rel=1e-2)


# ripser 0.6.15, the sum of the finite deaths of degree 0: of all points, and the mean over every
# eighth
RIPSER = {1: 559.4842195808887, 8: 98.95590147003531}


@pytest.mark.parametrize("division", RIPSER)
def test_ripser_s_components_live_as_long(division):
    """In float32, as it computes."""
    points = torch.randn(512, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    module = sys.modules["repdyn.kernels.dimension"]
    mean_sum = module._mean_sum(
        module._direct_distances(Cloud(points), torch.arange(512)[None])[0], division, 1.0
    )
    assert mean_sum.item() / unit_scale(points) == pytest.approx(RIPSER[division], rel=1e-6)
