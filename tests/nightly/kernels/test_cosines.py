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


@pytest.mark.parametrize("name", HOSTILE)
def test_every_pair_in_float64(name):
    expected = naive_mean_cosine(HOSTILE[name]())
    assert mean_cosine(HOSTILE[name]()).item() == pytest.approx(expected, rel=1e-12, abs=1e-14, nan_ok=True)


@pytest.mark.parametrize("exponent", [-320, -200, -30, 0, 30, 200, 307])
def test_lengths_of_any_size_and_of_each_vector_its_own(exponent):
    points = torch.tensor([[3.0, 4.0], [4.0, 3.0], [-1.0, 0.0]], dtype=torch.float64)
    points[1] *= 10.0**exponent
    # the smallest numbers have few digits
    expected = (0.96 - 0.6 - 0.8) / 3
    assert mean_cosine(points).item() == pytest.approx(expected, rel=1e-2 if exponent == -320 else 1e-12)


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
