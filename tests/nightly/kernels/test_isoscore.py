import numpy as np
import pytest
import torch
from hostile import HOSTILE
from reference.clouds import CLOUDS

from repdyn.kernels import Cloud, Undefined
from repdyn.kernels.spectrum import isoscore

SEVERAL_DIMENSIONS = sorted(set(HOSTILE) - {"d_1"})


def naive_isoscore(points):
    """Algorithm 1 of the paper, step by step."""
    x = points.double().numpy()
    dim = x.shape[1]
    variances = np.linalg.eigvalsh(np.cov(x - x.mean(0), rowvar=False))
    normalised = np.sqrt(dim) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - np.ones(dim)) / np.sqrt(2 * (dim - np.sqrt(dim)))
    used = (dim - defect**2 * (dim - np.sqrt(dim))) ** 2 / dim**2
    return (dim * used - 1) / (dim - 1)


@pytest.mark.parametrize("name", SEVERAL_DIMENSIONS)
def test_the_steps_of_the_paper_in_float64(name):
    assert isoscore(HOSTILE[name]()).item() == pytest.approx(naive_isoscore(HOSTILE[name]()), rel=1e-6, abs=1e-9)


# IsoScore 2.0.1, IsoScore.IsoScore.IsoScore(points); it takes square roots of the dimension in float32
PACKAGE = {
    "square": 0.9958980471,
    "cube_5": 0.9939198927,
    "cube_20": 0.9734702306,
    "cube_5_in_64": 0.05749699704,
    "curved": 0.10305335,
    "three_points": 0.267363811,
}


@pytest.mark.parametrize("cloud", PACKAGE)
def test_the_package_of_its_authors_agrees(cloud):
    assert isoscore(torch.from_numpy(CLOUDS[cloud]())).item() == pytest.approx(PACKAGE[cloud], rel=1e-6)


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        (torch.zeros(10, 4), "1 distinct of 10 points, at least 3 needed"),
        (torch.full((10, 4), torch.nan), "the points contain NaN"),
        (HOSTILE["d_1"](), "the points have 1 dimension, at least 2 needed to compare directions"),
    ],
)
def test_undefined_is_nan_with_a_reason(points, reason):
    assert isoscore(points).isnan()
    with pytest.raises(Undefined) as caught:
        isoscore.or_raise(Cloud(points))
    assert caught.value.reason == reason
