import math

import numpy as np
import pytest
import torch
from hostile import HOSTILE

from repdyn.kernels.outliers import massive_activation_share


def naive_share(points, magnitude=100, ratio=1000):
    sizes = np.abs(points.double().numpy()).flatten()
    median = np.sort(sizes)[(len(sizes) - 1) // 2]
    huge = [size for size in sizes if size > magnitude and size >= ratio * median]
    return math.fsum(size**2 for size in huge) / math.fsum(sizes**2)


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


def test_of_two_medians_the_lower_counts():
    points = torch.tensor([[0.1, 0.2], [-0.1, 0.2], [0.1, 150.0]])
    assert massive_activation_share(points).item() > 0.999


def test_where_most_are_zero_the_magnitude_alone_decides():
    points = torch.diag(torch.tensor([50.0, 100.0, 200.0, 300.0]))
    expected = (200**2 + 300**2) / (50**2 + 100**2 + 200**2 + 300**2)
    assert massive_activation_share(points).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("exponent", [-320, -200, 0, 150, 300])
def test_squares_of_any_size(exponent):
    points = states(300, -2000, 200).double() * 10.0**exponent
    share = massive_activation_share(points, magnitude=0).item()
    # the smallest numbers have few digits
    tolerance = 1e-2 if exponent == -320 else 1e-12
    assert share == pytest.approx(massive_activation_share(states(300, -2000, 200)).item(), rel=tolerance)
