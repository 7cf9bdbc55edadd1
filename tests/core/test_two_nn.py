from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hostile import HOSTILE, n_kept_of, naive_two_nearest, naive_two_nn
from reference.clouds import CLOUDS
from skdim.id import TwoNN

from repdyn.kernels import Cloud, UndefinedError, neighbours, two_nn

REFERENCE = [
    line.split()
    for line in (Path(__file__).parents[1] / "reference" / "two_nn.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(
    ("package", "version", "cloud", "estimator", "dimension"),
    REFERENCE,
    ids=["-".join(line[:4]) for line in REFERENCE],
)
def test_committed_outputs_of_independent_implementations(
    package, version, cloud, estimator, dimension
):
    # printed to ten digits; DADApy's iterative fit stops at about 1e-9
    ours = two_nn(torch.from_numpy(CLOUDS[cloud]()), estimator=estimator)
    assert ours.item() == pytest.approx(float(dimension), rel=3e-9)


@pytest.mark.parametrize("discard", [0.01, 0.1, 0.33, 0.8])
@pytest.mark.parametrize("name", ["gaussian", "low_rank", "std_500", "heavy_tail", "d_gt_n", "n_5"])
def test_installed_scikit_dimension_agrees(name, discard):
    points = HOSTILE[name]().double()
    if n_kept_of(len(points), discard) < 2:
        pytest.skip("nothing left to fit")
    # scikit-dimension expands its distances, hence its error; and rounds its number of points down
    # by one too many where 1 - discard is not exact, which it is for its default
    share = discard if discard == 0.1 else discard - 1e-9
    theirs = TwoNN(discard_fraction=share).fit(points.numpy()).dimension_
    assert two_nn(points, discard=discard).item() == pytest.approx(theirs, rel=1e-7)


@pytest.mark.parametrize("discard", [0.05, 0.5, 0.8])
@pytest.mark.parametrize("name", HOSTILE)
def test_discard_against_the_oracle(name, discard):
    points = HOSTILE[name]()
    if n_kept_of(Cloud(points).n_unique, discard) < 2:
        pytest.skip("nothing left to fit")
    log_ratios = np.sort(np.log(np.divide(*naive_two_nearest(points).T[::-1])))
    if log_ratios[n_kept_of(len(log_ratios), discard) - 1] < 1e-10:
        pytest.skip("all tied")
    assert two_nn(points, discard=discard).item() == pytest.approx(
        naive_two_nn(points, discard), rel=1e-9
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_maximum_likelihood_against_the_oracle(name):
    r1, r2 = naive_two_nearest(HOSTILE[name]()).T
    expected = (len(r1) - 1) / np.log(r2 / r1).sum()
    assert two_nn(HOSTILE[name](), estimator="maximum_likelihood").item() == pytest.approx(
        expected, rel=1e-9
    )


def test_maximum_likelihood_uses_every_ratio_whatever_discard():
    points = HOSTILE["low_rank"]()
    values = {
        two_nn(points, discard=share, estimator="maximum_likelihood").item()
        for share in (0.01, 0.1, 0.9)
    }
    assert len(values) == 1


@pytest.mark.parametrize("estimator", ["regression", "maximum_likelihood"])
@pytest.mark.parametrize("seed", range(4))
def test_a_known_dimension_is_recovered(estimator, seed):
    n, dim = 2000, 2
    generator = torch.Generator().manual_seed(seed)
    plane = torch.rand(n, dim, generator=generator) @ torch.randn(dim, 32, generator=generator)
    assert abs(two_nn(plane, estimator=estimator).item() - dim) <= 3 * dim / n**0.5


@pytest.mark.parametrize("name", ["gaussian", "low_rank", "offset_3000", "bfloat16", "d_1"])
def test_repeating_points_changes_nothing(name):
    points = HOSTILE[name]()
    repeated = torch.cat([points[:50], points, points[200:300], points[:1]])
    assert two_nn(repeated).item() == pytest.approx(two_nn(points).item(), rel=1e-12)


def test_neighbours_are_searched_once_for_all_settings(monkeypatch):
    search = Mock(wraps=neighbours.nearest_neighbours)
    monkeypatch.setattr(neighbours, "nearest_neighbours", search)
    cloud = Cloud(HOSTILE["low_rank"]())
    first = two_nn.or_raise(cloud)
    assert two_nn.or_raise(cloud).item() == first.item()
    assert two_nn.or_raise(cloud, discard=0.8).item() != first.item()
    assert two_nn.or_raise(cloud, estimator="maximum_likelihood").item() != first.item()
    assert [call.args[1] for call in search.call_args_list] == [2]


UNDEFINED = {
    "nan": (torch.full((5, 2), torch.nan), {}, "the points contain NaN"),
    "repeated": (torch.ones(9, 2), {}, "1 distinct of 9 points, at least 3 needed"),
    "tied": (
        torch.cartesian_prod(*[torch.arange(4.0)] * 3),
        {},
        "the two nearest distances are equal for each of the 57 points used",
    ),
    "tied_but_for_rounding": (
        torch.cartesian_prod(*[torch.arange(4.0, dtype=torch.float64)] * 3) * 0.7 + 0.1,
        {},
        "the two nearest distances are equal for each of the 57 points used",
    ),
    "tied_maximum_likelihood": (
        torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0)),
        {"estimator": "maximum_likelihood"},
        "the two nearest distances are equal for each of the 9 points used",
    ),
    "too_few_kept": (
        torch.eye(3),
        {"discard": 0.5},
        "discard = 0.5 keeps 1 of 3 distinct points, at least 2 needed",
    ),
    "underflow": (
        torch.cat(
            [torch.eye(4, dtype=torch.float64) * 1e-200, torch.ones(1, 4, dtype=torch.float64)]
        ),
        {},
        "nearest-neighbour distances leave the range of float64; rescale the points",
    ),
}


@pytest.mark.parametrize(("points", "settings", "reason"), UNDEFINED.values(), ids=UNDEFINED.keys())
def test_undefined_is_nan_with_a_reason(points, settings, reason):
    value = two_nn(points, **settings)
    assert value.isnan()
    assert value.shape == ()
    assert value.dtype == torch.float64
    with pytest.raises(UndefinedError) as caught:
        two_nn.or_raise(Cloud(points), **settings)
    assert caught.value.reason == reason
