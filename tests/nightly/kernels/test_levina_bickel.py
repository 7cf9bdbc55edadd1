import numpy as np
import pytest
import torch
from hostile import HOSTILE, naive_nearest
from reference.clouds import CLOUDS
from skdim.id import MLE

from repdyn.kernels import Cloud, Undefined, gride, neighbours, two_nn
from repdyn.kernels.dimension import levina_bickel


def naive_levina_bickel(points, k):
    """The inverse of the mean of the inverse of every distinct point's own estimate; NaN where there are too few."""
    distinct = torch.from_numpy(np.unique(points.double().numpy() + 0.0, axis=0))
    if len(distinct) <= k:
        return np.nan
    inverses = [np.log(radii[-1] / radii[:-1]).sum() / (k - 1) for radii in naive_nearest(distinct, k)]
    return 1 / np.mean(inverses)


@pytest.mark.parametrize("k", [2, 5, 20])
@pytest.mark.parametrize("name", HOSTILE)
def test_brute_force_in_float64(name, k):
    expected = naive_levina_bickel(HOSTILE[name](), k)
    assert levina_bickel(HOSTILE[name](), k=k).item() == pytest.approx(expected, rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("k", [5, 20])
@pytest.mark.parametrize("cloud", sorted(set(CLOUDS) - {"three_points"}))
def test_installed_scikit_dimension_agrees(cloud, k):
    points = CLOUDS[cloud]()
    theirs = MLE().fit(points, n_neighbors=k).dimension_  # comb="mle", its default, is the same average
    # scikit-dimension expands its distances, hence its error
    assert levina_bickel(torch.from_numpy(points), k=k).item() == pytest.approx(theirs, rel=1e-8)


@pytest.mark.parametrize("name", ["gaussian", "low_rank", "duplicates_20_percent", "scale_1e-30"])
def test_two_neighbours_are_two_nn_by_maximum_likelihood(name):
    cloud = Cloud(HOSTILE[name]())
    expected = two_nn(cloud, estimator="maximum_likelihood").item() * cloud.n_unique / (cloud.n_unique - 1)
    assert levina_bickel(cloud, k=2).item() == pytest.approx(expected, rel=1e-12)


def test_neighbours_are_searched_once_for_all(monkeypatch):
    cloud, searches = Cloud(HOSTILE["low_rank"](), n_neighbours=20), []
    search = neighbours.nearest_neighbours
    monkeypatch.setattr(
        neighbours, "nearest_neighbours", lambda points, k, groups: searches.append(k) or search(points, k)
    )
    values = [levina_bickel.or_raise(cloud, k=k).item() for k in (5, 20)]
    two_nn.or_raise(cloud)
    gride.or_raise(cloud, k=16)
    assert searches == [20]
    assert values == [levina_bickel(HOSTILE["low_rank"](), k=k).item() for k in (5, 20)]


UNDEFINED = {
    "20 distinct of 40 points, at least 21 needed": torch.randn(20, 3).repeat(2, 1),
    "1 distinct of 40 points, at least 3 needed": torch.ones(40, 3),
    "the points contain NaN": torch.full((40, 3), torch.nan),
    "the distances r_1 to r_20 are equal for each of the 70 points": torch.eye(70),
    "nearest-neighbour distances leave the range of float64; rescale the points": torch.cat(
        [torch.eye(40, dtype=torch.float64) * 1e-200, torch.ones(1, 40, dtype=torch.float64)]
    ),
}


@pytest.mark.parametrize(("reason", "points"), UNDEFINED.items(), ids=UNDEFINED)
def test_undefined_is_nan_with_a_reason(reason, points):
    assert levina_bickel(points).isnan()
    with pytest.raises(Undefined) as caught:
        levina_bickel.or_raise(Cloud(points))
    assert caught.value.reason == reason


def test_ties_but_for_rounding_are_ties():
    simplex = torch.eye(70, dtype=torch.float64) * 0.7 + 0.1
    turned = torch.randn(70, 70, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    simplex = simplex @ torch.linalg.qr(turned).Q
    assert torch.pdist(simplex).unique().numel() > 1
    with pytest.raises(Undefined, match=r"^the distances r_1 to r_20 are equal for each of the 70 points$"):
        levina_bickel.or_raise(Cloud(simplex))
