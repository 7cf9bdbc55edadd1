import sys

import numpy as np
import pytest
import torch
from grouped import shuffled
from hostile import HOSTILE
from scipy.sparse.csgraph import minimum_spanning_tree

from repdyn.kernels import Cloud, Undefined, ph_dimension
from repdyn.kernels.cloud import unit_scale


def naive(points, most=512, alpha=1.0, groups=None):
    """Of scipy's trees on distances in float64."""
    x, of = points.double().numpy() + 0.0, np.arange(len(points)) if groups is None else groups.numpy()
    kept = np.sort(np.unique(x, axis=0, return_index=True)[1])
    kept = kept[: min(most, len(kept)) // 8 * 8]
    x, of = x[kept] - x[0], of[kept]
    x /= np.abs(x).max()
    sizes, sums = [], []
    for division in (1, 2, 4, 8):
        totals = []
        for start in range(division):
            own, group = x[start::division], of[start::division]
            distances = np.stack([np.linalg.norm(own - row, axis=1) for row in own])
            # scipy takes distances below 1e-8 for none
            unit = distances.max()
            distances /= unit
            edges = minimum_spanning_tree(np.where(group[:, None] == group, 0, distances)).data
            assert len(edges) == len(own) - 1
            totals.append(((unit * edges) ** alpha).sum())
        sizes.append(len(x) // division)
        sums.append(np.mean(totals))
    return alpha / (1 - np.polyfit(np.log(sizes), np.log(sums), 1)[0])


CLOUDS = [
    *("gaussian", "low_rank", "offset_3000", "std_500_offset_3000", "scale_1e-30", "scale_1e30", "d_1", "d_gt_n"),
    *("duplicates_20_percent", "float64_offset", "transposed", "strided", "bimodal_1000", "bfloat16", "float16"),
    *("near_duplicates_1e-4", "rank_1", "integer_grid", "int8"),
]


@pytest.mark.parametrize("alpha", [0.5, 1.0])
@pytest.mark.parametrize("name", CLOUDS)
def test_scipy_s_trees_in_float64(name, alpha):
    points = HOSTILE[name]()
    expected = naive(points, alpha=alpha)
    if expected < 0:  # the sum grows faster than the number of points
        assert ph_dimension(points, alpha=alpha).isnan()
    else:
        assert ph_dimension(points, alpha=alpha).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("most", [64, 100, 399])
def test_the_first_points_are_taken(most):
    points = HOSTILE["low_rank"]()
    expected = ph_dimension(points, points=most).item()
    assert expected == pytest.approx(naive(points, most), rel=1e-9)
    assert ph_dimension(points[: most // 8 * 8]).item() == expected


@pytest.mark.parametrize("size", [2, 8])
def test_no_edge_joins_points_of_one_group(size):
    points = HOSTILE["low_rank"]()
    groups = shuffled(torch.arange(400) // size)
    # where the points of a group lie together, it matters
    points += 10 * torch.randn(400, 80, generator=torch.Generator().manual_seed(5))[groups]
    expected = naive(points, groups=groups)
    assert ph_dimension(points, groups).item() == pytest.approx(expected, rel=1e-9)
    assert ph_dimension(Cloud(points, groups=groups)).item() == pytest.approx(expected, rel=1e-9)
    assert ph_dimension(points).item() != pytest.approx(expected, rel=1e-2)


# ripser 0.6.15, the sum of the finite deaths of degree 0: of all points, and the mean over every eighth
RIPSER = {1: 559.4842195808887, 8: 98.95590147003531}


@pytest.mark.parametrize("division", RIPSER)
def test_ripser_s_components_live_as_long(division):
    """In float32, as it computes."""
    points = torch.randn(512, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    module = sys.modules["repdyn.kernels.dimension"]
    found = module._mean_sum(module._distances(Cloud(points), 512), division, 1.0)
    assert found.item() / unit_scale(points) == pytest.approx(RIPSER[division], rel=1e-6)


UNDEFINED = {
    "63 distinct of 63 points, at least 64 needed": (torch.randn(63, 3), None),
    "1 distinct of 70 points, at least 3 needed": (torch.ones(70, 3), None),
    "the points contain NaN": (torch.full((70, 3), torch.nan), None),
    "a subset of the points is all of one group, or distances leave the range of float64": (
        torch.randn(64, 3),
        torch.arange(64) % 8,
    ),
}


@pytest.mark.parametrize("reason", UNDEFINED)
def test_undefined_is_nan_with_a_reason(reason):
    points, groups = UNDEFINED[reason]
    assert ph_dimension(points, groups).isnan()
    with pytest.raises(Undefined) as caught:
        ph_dimension.or_raise(Cloud(points, groups=groups))
    assert caught.value.reason == reason


def test_points_at_equal_distances_have_no_dimension():
    """Each edge is as long as any other, however many points there are."""
    with pytest.raises(
        Undefined, match=r"^the sum of the lengths grows with power 1\.\d+ of the number of points, not "
    ):
        ph_dimension.or_raise(torch.eye(64))
