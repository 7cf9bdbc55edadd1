import numpy as np
import pytest
import torch
from hostile import HOSTILE, naive_nearest
from scipy.optimize import brentq, minimize_scalar

from repdyn.kernels import Cloud, Undefined, gride, two_nn

SCALES = (2, 4, 8, 16, 32)


def likelihood(dimension, ratios, k):
    """Of the density of Denti et al. 2022, but for its constant."""
    beyond = k // 2 - 1
    terms = np.log(dimension) - ((k - 1) * dimension + 1) * np.log(ratios)
    return (terms + beyond * np.log(ratios**dimension - 1)).sum() if beyond else terms.sum()


def naive_gride(points, k):
    distances = naive_nearest(Cloud(points).distinct, k)
    ratios = distances[:, -1] / distances[:, k // 2 - 1]

    def slope(dimension):
        step = 1e-5 * dimension
        return likelihood(dimension + step, ratios, k) - likelihood(dimension - step, ratios, k)

    best = minimize_scalar(lambda d: -likelihood(d, ratios, k), bounds=(0.05, 200), method="bounded").x
    return brentq(slope, best / 2, best * 2, xtol=1e-9)


@pytest.mark.parametrize("k", SCALES)
@pytest.mark.parametrize(
    "name", ["gaussian", "low_rank", "std_500_offset_3000", "bfloat16", "d_1", "sinks", "heavy_tail"]
)
def test_the_likeliest_dimension(name, k):
    points = HOSTILE[name]()
    assert gride(points, k=k).item() == pytest.approx(naive_gride(points, k), rel=1e-5)


@pytest.mark.parametrize(
    "name", ["gaussian", "low_rank", "duplicates_20_percent", "scale_1e-30", "near_duplicates_1e-4"]
)
def test_the_smallest_scale_is_two_nn_by_maximum_likelihood(name):
    cloud = Cloud(HOSTILE[name]())
    expected = two_nn(cloud, estimator="maximum_likelihood").item() * cloud.n_unique / (cloud.n_unique - 1)
    assert gride(cloud, k=2).item() == pytest.approx(expected, rel=1e-12)


# DADApy 0.3.4, Data(points).return_id_scaling_gride(range_max=64)
DADAPY = [6.058859423, 5.990588017, 6.102453309, 5.866602971, 5.733217339]


def test_dadapy_agrees():
    """But for a factor that tends to 1 as 1 - 1 / n does: it counts one point less."""
    points = torch.randn(2000, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert [gride(points, k=k).item() for k in SCALES] == pytest.approx(DADAPY, rel=6e-4)


def test_undefined_is_nan_with_a_reason():
    assert gride(torch.randn(8, 3), k=8).isnan()
    for reason, points in {
        "8 distinct of 8 points, at least 9 needed": torch.randn(8, 3),
        "the points contain NaN": torch.full((9, 3), torch.nan),
        "the distances r_8 and r_4 are equal for each of the 70 points": torch.eye(70),
    }.items():
        with pytest.raises(Undefined, match=f"^{reason}$"):
            gride.or_raise(Cloud(points), k=8)
