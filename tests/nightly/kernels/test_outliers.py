import math

import pytest
import scipy.stats
import torch
from hostile import HOSTILE
from pairs import SCALES, UNDEFINED_ALONE, normal, permuted_columns, rotation

from repdyn.kernels import Cloud, Undefined, outlier_kurtosis


def naive_kurtosis(points):
    """Of Python's own numbers, coordinate by coordinate."""
    columns = points.double().T.tolist()
    mean_squares = [math.fsum(value**2 for value in column) / len(column) for column in columns]
    dim = len(mean_squares)
    return (math.fsum(s**2 for s in mean_squares) / dim) / (math.fsum(mean_squares) / dim) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_coordinate_by_coordinate_in_float64(name):
    points = HOSTILE[name]()
    assert outlier_kurtosis(points).item() == pytest.approx(naive_kurtosis(points), rel=1e-12)
    assert 1 - 1e-15 <= outlier_kurtosis(points).item() <= points.shape[1] * (1 + 1e-15)


def test_scipy_s_kurtosis_of_root_mean_squares_around_zero():
    """With the coordinates' root mean squares given both signs, their mean is zero and the moments are central."""
    sizes = HOSTILE["heavy_tail"]().double().square().mean(0).sqrt()
    expected = scipy.stats.kurtosis(torch.cat([sizes, -sizes]).numpy(), fisher=False)
    assert outlier_kurtosis(HOSTILE["heavy_tail"]()).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n_large", [1, 2, 5, 10])
def test_some_coordinates_have_all(n_large):
    points = torch.zeros(50, 10)
    points[:, :n_large] = 7 * (1 - 2 * (torch.arange(50)[:, None] % 2))
    points[:2, :n_large] = 0  # three distinct vectors
    assert outlier_kurtosis(points).item() == pytest.approx(10 / n_large, rel=1e-12)


def test_at_random_weights_it_is_near_one_and_an_outlier_coordinate_raises_it():
    points = normal(4096, 64)
    assert outlier_kurtosis(points).item() == pytest.approx(1, abs=0.002)
    points[:, 3] *= 30
    assert outlier_kurtosis(points).item() == pytest.approx(naive_kurtosis(points), rel=1e-12)
    assert outlier_kurtosis(points).item() > 50


@pytest.mark.parametrize("name", ["sinks", "heavy_tail", "std_500", "d_gt_n"])
def test_invariances(name):
    points = HOSTILE[name]().double()
    kurtosis = outlier_kurtosis(points).item()
    for changed in (points * 7.3, -points, points.flip(0), permuted_columns(points), points.repeat(2, 1)):
        assert outlier_kurtosis(changed).item() == pytest.approx(kurtosis, rel=1e-12)


def test_columns_of_zeros_raise_it_in_proportion():
    points = HOSTILE["low_rank"]().double()
    padded = torch.nn.functional.pad(points, (0, points.shape[1]))
    assert outlier_kurtosis(padded).item() == pytest.approx(2 * outlier_kurtosis(points).item(), rel=1e-12)


def test_a_rotation_hides_the_outlier():
    points = HOSTILE["std_500"]().double()
    assert outlier_kurtosis(points).item() > 70
    assert outlier_kurtosis(points @ rotation(points.shape[1])).item() < 5


@pytest.mark.parametrize(("dtype", "scale"), SCALES.values(), ids=SCALES)
def test_scales_whose_squares_are_no_numbers(dtype, scale):
    points = HOSTILE["heavy_tail"]().to(dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert outlier_kurtosis(points * scale).item() == pytest.approx(outlier_kurtosis(points).item(), rel=tolerance)


@pytest.mark.parametrize(("points", "reason"), UNDEFINED_ALONE)
def test_undefined_is_nan_with_a_reason(points, reason):
    assert outlier_kurtosis(points).isnan()
    with pytest.raises(Undefined) as caught:
        outlier_kurtosis.or_raise(Cloud(points))
    assert caught.value.reason == reason
