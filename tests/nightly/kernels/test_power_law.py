import numpy as np
import pytest
import torch
from hostile import HOSTILE
from reference.clouds import uniform

from repdyn.kernels import Cloud, Undefined
from repdyn.kernels.spectrum import alpha_req


def naive_alpha_req(points, first, last):
    x = points.double().numpy()
    values = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    values = values[values > 1e-12 * values[0]]
    if len(values) < first + 9:
        return np.nan
    ranks = np.arange(first, min(last, len(values)) + 1)
    # polyfit squares its weights
    return -np.polyfit(np.log(ranks), np.log(values[ranks - 1]), 1, w=ranks**-0.5)[0]


@pytest.mark.parametrize(("first", "last"), [(11, 100), (1, 30), (4, 60)])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_weighted_fit_to_a_float64_svd(name, first, last):
    expected = naive_alpha_req(HOSTILE[name](), first, last)
    ours = alpha_req(HOSTILE[name](), first=first, last=last).item()
    # from rank 9 on the eigenvalues of offset_3000 are what float32 rounded off 3000: 1e-10 of the largest
    assert ours == pytest.approx(expected, rel=1e-6, abs=1e-7, nan_ok=True)


@pytest.mark.parametrize("shape", [(600, 120), (120, 600)])
@pytest.mark.parametrize("offset", [0, 30, 3000])
def test_eigenvalues_far_below_the_largest_keep_their_digits(shape, offset):
    """Those of the fit are 1e-8 to 1e-11 of the largest, of float32 points."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(*shape, dtype=torch.float64, generator=generator)
    left, values, right = torch.linalg.svd(points, full_matrices=False)
    points = (left * torch.logspace(0, -5.5, len(values)).double() @ right + offset * 1e-3).float()
    assert alpha_req(points).item() == pytest.approx(naive_alpha_req(points, 11, 100), rel=1e-6)


def decaying(n=1000, dim=128, exponent=1.5):
    return torch.from_numpy((uniform(n, dim, 9) - 0.5) * np.arange(1, dim + 1) ** (-exponent / 2))


# reptrix 0.1.0, alpha.get_alpha(points)[0] and with fit_range=np.arange(3, 100): ranks from 0, weights in float32
REPTRIX = {
    "decaying": (decaying, 1.5408585925758074, 1.525445314356429),
    "more_dimensions_than_points": (
        lambda: torch.from_numpy(uniform(200, 300, 10) - 0.5),
        0.49227852395270855,
        0.3452609818194171,
    ),
}


@pytest.mark.parametrize(("cloud", "from_11", "from_4"), REPTRIX.values(), ids=REPTRIX)
def test_the_package_of_its_authors_agrees(cloud, from_11, from_4):
    assert alpha_req(cloud()).item() == pytest.approx(from_11, rel=1e-8)
    assert alpha_req(cloud(), first=4).item() == pytest.approx(from_4, rel=1e-8)


def spokes(eigenvalues):
    """A cross of points whose covariance has eigenvalues in these proportions."""
    arms = torch.as_tensor(eigenvalues).double().sqrt().diag()
    return torch.cat([arms, -arms])


RANKS = torch.arange(1.0, 201.0, dtype=torch.float64)


def test_the_fit_ends_where_rounding_begins():
    """Of 200 directions 60 have variance: the points lie in a space of 60 dimensions, turned."""
    rotation = torch.linalg.qr(torch.randn(200, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    law = torch.where(RANKS <= 60, RANKS**-1.0, 0)
    for turned in (spokes(law) @ rotation, (spokes(law) @ rotation).float()):
        assert alpha_req(turned).item() == pytest.approx(1, abs=1e-5)


UNDEFINED = {
    "1 distinct of 30 points, at least 3 needed": torch.zeros(30, 40),
    "the points contain NaN": torch.full((30, 40), torch.nan),
    "19 eigenvalues stand above rounding, at least 20 needed": torch.randn(
        20, 40, generator=torch.Generator().manual_seed(0)
    ),
    "8 eigenvalues stand above rounding, at least 20 needed": HOSTILE["low_rank"](),
}


@pytest.mark.parametrize(("reason", "points"), UNDEFINED.items(), ids=UNDEFINED)
def test_undefined_is_nan_with_a_reason(reason, points):
    assert alpha_req(points).isnan()
    with pytest.raises(Undefined) as caught:
        alpha_req.or_raise(Cloud(points))
    assert caught.value.reason == reason


def test_ten_eigenvalues_are_enough():
    assert not alpha_req(torch.randn(21, 40, generator=torch.Generator().manual_seed(0))).isnan()
    assert not alpha_req(HOSTILE["gaussian"](), first=71, last=80).isnan()
