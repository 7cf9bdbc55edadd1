import math

import numpy as np
import pytest
import torch
from hostile import HOSTILE
from pairs import UNDEFINED_ALONE, permuted_columns

from repdyn.kernels import Cloud, Undefined
from repdyn.kernels.massive import massive_activation_share


def naive_share(points, magnitude=100, ratio=1000):
    sizes = np.abs(points.double().numpy()).flatten()
    median = np.sort(sizes)[(len(sizes) - 1) // 2]
    huge = [size for size in sizes if size > magnitude and size >= ratio * median]
    return math.fsum(size**2 for size in huge) / math.fsum(sizes**2)


@pytest.mark.slow
@pytest.mark.parametrize(("magnitude", "ratio"), [(100, 1000), (10, 20), (0, 2), (1, 0)])
@pytest.mark.parametrize("name", HOSTILE)
def test_counted_one_by_one_in_float64(name, magnitude, ratio):
    expected = naive_share(HOSTILE[name](), magnitude, ratio)
    ours = massive_activation_share(HOSTILE[name](), magnitude=magnitude, ratio=ratio).item()
    assert ours == pytest.approx(expected, rel=1e-12)
    assert 0 <= ours <= 1


def states(*huge):
    """Magnitudes of a quarter, but for a few activations."""
    points = torch.full((64, 32), 0.25)
    points[::2] *= -1
    for place, value in enumerate(huge):
        points[place, 3 * place] = value
    return points


@pytest.mark.parametrize(("value", "is_massive"), [(250, True), (-250, True), (249.9, False), (1e4, True)])
def test_at_least_a_thousand_times_the_median(value, is_massive):
    rest = (64 * 32 - 1) / 16
    expected = value**2 / (value**2 + rest) if is_massive else 0
    # the value is that of float32
    assert massive_activation_share(states(value)).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("value", "is_massive"), [(100, False), (-100, False), (100.01, True), (-100.01, True)])
def test_above_a_hundred(value, is_massive):
    points = states() / 10
    points[3, 3] = value
    assert (massive_activation_share(points).item() > 0) == is_massive


def test_several_add_up():
    squares, rest = 300**2 + 2000**2, 200**2 + (64 * 32 - 3) / 16
    expected = squares / (squares + rest)
    assert massive_activation_share(states(300, -2000, 200)).item() == pytest.approx(expected, rel=1e-12)


def test_of_two_medians_the_lower_counts():
    points = torch.tensor([[0.1, 0.2], [-0.1, 0.2], [0.1, 150.0]])
    assert massive_activation_share(points).item() > 0.999


def test_where_most_are_zero_the_magnitude_alone_decides():
    points = torch.diag(torch.tensor([50.0, 100.0, 200.0, 300.0]))
    expected = (200**2 + 300**2) / (50**2 + 100**2 + 200**2 + 300**2)
    assert massive_activation_share(points).item() == pytest.approx(expected, rel=1e-12)


def test_settings_are_those_of_the_call():
    points = states(120)
    assert massive_activation_share(points).item() == 0
    assert massive_activation_share(points, ratio=480).item() > 0.9
    assert massive_activation_share(points, ratio=481).item() == 0
    assert massive_activation_share(points, ratio=1, magnitude=120).item() == 0


@pytest.mark.parametrize("exponent", [-320, -200, 0, 150, 300])
def test_squares_of_any_size(exponent):
    points = states(300, -2000, 200).double() * 10.0**exponent
    share = massive_activation_share(points, magnitude=0).item()
    # the smallest numbers have few digits
    tolerance = 1e-2 if exponent == -320 else 1e-12
    assert share == pytest.approx(massive_activation_share(states(300, -2000, 200)).item(), rel=tolerance)


@pytest.mark.parametrize("name", ["sinks", "heavy_tail", "transposed", "strided"])
def test_invariances(name):
    points = HOSTILE[name]()
    share = massive_activation_share(points, magnitude=1, ratio=3).item()
    assert share > 0
    for changed in (-points, points.flip(0), permuted_columns(points), points.repeat(2, 1)):
        assert massive_activation_share(changed, magnitude=1, ratio=3).item() == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize(("points", "reason"), UNDEFINED_ALONE)
def test_undefined_is_nan_with_a_reason(points, reason):
    assert massive_activation_share(points).isnan()
    with pytest.raises(Undefined) as caught:
        massive_activation_share.or_raise(Cloud(points))
    assert caught.value.reason == reason
