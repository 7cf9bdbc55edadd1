import numpy as np
import pytest
import torch
from hostile import HOSTILE

from repdyn.kernels import Cloud, Undefined
from repdyn.kernels.cosines import mean_cosine


def naive_mean_cosine(points):
    """Every pair of different rows; NaN where a row has no direction."""
    x = points.double().numpy()
    with np.errstate(invalid="ignore"):
        units = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = ~np.eye(len(x), dtype=bool)
    return (units @ units.T)[pairs].mean()


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_every_pair_in_float64(name):
    expected = naive_mean_cosine(HOSTILE[name]())
    assert mean_cosine(HOSTILE[name]()).item() == pytest.approx(expected, rel=1e-12, abs=1e-14, nan_ok=True)


def test_known_angles():
    assert mean_cosine(torch.eye(9)).item() == pytest.approx(0, abs=1e-15)
    cross = torch.cat([torch.eye(9), -torch.eye(9)])
    assert mean_cosine(cross).item() == pytest.approx(-1 / 17, rel=1e-12)
    ray = torch.arange(1.0, 50.0).unsqueeze(1) * torch.tensor([[3.0, -4.0, 12.0]])
    assert mean_cosine(ray).item() == pytest.approx(1, abs=1e-14)
    assert mean_cosine(ray).item() <= 1


def test_a_common_offset_is_what_it_measures():
    points = HOSTILE["gaussian"]().double()
    values = [mean_cosine(points + offset).item() for offset in (0, 0.5, 1, 3, 1000)]
    assert values == sorted(values)
    assert abs(values[0]) < 0.01
    # a vector of ones shares 9 / (9 + 1) of the squared length
    assert values[3] == pytest.approx(0.9, abs=0.01)
    assert values[4] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("exponent", [-320, -200, -30, 0, 30, 200, 307])
def test_lengths_of_any_size_and_of_each_vector_its_own(exponent):
    points = torch.tensor([[3.0, 4.0], [4.0, 3.0], [-1.0, 0.0]], dtype=torch.float64)
    points[1] *= 10.0**exponent
    # the smallest numbers have few digits
    expected = (0.96 - 0.6 - 0.8) / 3
    assert mean_cosine(points).item() == pytest.approx(expected, rel=1e-2 if exponent == -320 else 1e-12)


@pytest.mark.parametrize("name", ["gaussian", "low_rank", "offset_3000", "sinks", "d_gt_n", "n_5"])
def test_invariances(name):
    points = HOSTILE[name]().double()
    n, dim = points.shape
    generator = torch.Generator().manual_seed(0)
    rotation = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=generator)).Q
    stretched = points * (0.1 + torch.rand(n, 1, dtype=torch.float64, generator=generator))
    padded = torch.nn.functional.pad(points, (3, 40))
    for changed in (points * 7, -points, points @ rotation, points.flip(0), stretched, padded):
        assert mean_cosine(changed).item() == pytest.approx(mean_cosine(points).item(), rel=1e-10, abs=1e-13)


UNDEFINED = {
    "1 distinct of 10 points, at least 3 needed": torch.ones(10, 4),
    "the points contain NaN": torch.full((10, 4), torch.nan),
    "2 of 6 vectors are zero and have no direction": torch.cat([torch.eye(4), torch.zeros(1, 4), -torch.zeros(1, 4)]),
}


@pytest.mark.parametrize(("reason", "points"), UNDEFINED.items(), ids=UNDEFINED)
def test_undefined_is_nan_with_a_reason(reason, points):
    assert mean_cosine(points).isnan()
    with pytest.raises(Undefined) as caught:
        mean_cosine.or_raise(Cloud(points))
    assert caught.value.reason == reason
