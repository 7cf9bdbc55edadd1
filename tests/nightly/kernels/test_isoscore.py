import importlib

import numpy as np
import pytest
import torch
from hostile import HOSTILE
from reference.clouds import CLOUDS

from repdyn.kernels import Cloud, Undefined, participation_ratio, spectrum
from repdyn.kernels.isoscore import isoscore

# the package exports the function under the module's name
module = importlib.import_module("repdyn.kernels.isoscore")
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL_DIMENSIONS)
def test_it_is_the_participation_ratio_between_0_and_1(name):
    points = HOSTILE[name]()
    expected = (participation_ratio(points).item() - 1) / (points.shape[1] - 1)
    assert isoscore(points).item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert 0 <= isoscore(points).item() <= 1


@pytest.mark.parametrize("used", [1, 2, 5, 9, 10])
def test_even_use_of_some_directions(used):
    """The share of the directions beyond the first that are used: theorem of the paper's section 4."""
    cross = torch.cat([torch.eye(10)[:used], -torch.eye(10)[:used], torch.zeros(1, 10)])
    assert isoscore(cross).item() == pytest.approx((used - 1) / 9, abs=1e-12)


def test_a_line_is_0_and_no_less():
    assert isoscore(HOSTILE["rank_1"]()).item() == pytest.approx(0, abs=1e-7)
    assert isoscore(HOSTILE["rank_1"]()).item() >= 0


def test_the_spectrum_is_shared(monkeypatch):
    calls = []
    eigenvalues = spectrum.eigenvalues
    monkeypatch.setattr(spectrum, "eigenvalues", lambda gram: calls.append(1) or eigenvalues(gram))
    cloud = Cloud(HOSTILE["gaussian"]())
    isoscore.or_raise(cloud)
    participation_ratio.or_raise(cloud)
    assert calls == [1]


@pytest.mark.parametrize("name", ["gaussian", "low_rank", "heavy_tail", "d_gt_n"])
def test_invariances(name):
    points = HOSTILE[name]().double()
    dim = points.shape[1]
    rotation = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    for changed in (points * 7, points + 5, points @ rotation, points.flip(0), points.repeat(2, 1)):
        assert isoscore(changed).item() == pytest.approx(isoscore(points).item(), rel=1e-8)
    padded = torch.nn.functional.pad(points, (3, 40))
    assert isoscore(padded).item() == pytest.approx(isoscore(points).item() * (dim - 1) / (dim + 42), rel=1e-8)


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
