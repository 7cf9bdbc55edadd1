import math

import pytest
import torch
from hostile import HOSTILE
from pairs import SCALES

from repdyn.kernels import outlier_kurtosis


def naive_kurtosis(points):
    """Of Python's own numbers, coordinate by coordinate."""
    columns = points.double().T.tolist()
    mean_squares = [math.fsum(value**2 for value in column) / len(column) for column in columns]
    dim = len(mean_squares)
    return (math.fsum(s**2 for s in mean_squares) / dim) / (math.fsum(mean_squares) / dim) ** 2


@pytest.mark.parametrize("name", HOSTILE)
def test_coordinate_by_coordinate_in_float64(name):
    points = HOSTILE[name]()
    assert outlier_kurtosis(points).item() == pytest.approx(naive_kurtosis(points), rel=1e-12)
    assert 1 - 1e-15 <= outlier_kurtosis(points).item() <= points.shape[1] * (1 + 1e-15)


@pytest.mark.parametrize(("dtype", "scale"), SCALES.values(), ids=SCALES)
def test_scales_whose_squares_are_no_numbers(dtype, scale):
    points = HOSTILE["heavy_tail"]().to(dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert outlier_kurtosis(points * scale).item() == pytest.approx(outlier_kurtosis(points).item(), rel=tolerance)
