import numpy as np
import pytest
import scipy.linalg
import scipy.spatial
import torch
from hostile import HOSTILE
from pairs import INVARIANCES, SCALES, after_a_block, normal, pair

from repdyn.kernels import procrustes_distance


def normalised(points):
    x = points.double().numpy()
    x = x - x.mean(0)
    x = x / np.abs(x).max()
    return x / np.linalg.norm(x)


def naive(a, b):
    """The distance itself, after the rotation that scipy finds."""
    x, y = normalised(a), normalised(b)
    width = max(x.shape[1], y.shape[1])
    x, y = (np.pad(points, ((0, 0), (0, width - points.shape[1]))) for points in (x, y))
    turn, _ = scipy.linalg.orthogonal_procrustes(y, x)
    return ((x - y @ turn) ** 2).sum()


@pytest.mark.parametrize("name", HOSTILE)
def test_the_distance_after_the_best_rotation_in_float64(name):
    a, b = pair(name)
    assert procrustes_distance(a, b).item() == pytest.approx(naive(a, b), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("dim", [1, 8, 200])
def test_widths_may_differ(dim):
    a, b = HOSTILE["low_rank"](), normal(400, dim)
    assert procrustes_distance(a, b).item() == pytest.approx(naive(a, b), abs=1e-12)
    assert procrustes_distance(b, a).item() == pytest.approx(naive(a, b), abs=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "low_rank", "heavy_tail", "d_gt_n", "sinks"])
def test_scipy_s_disparity(name):
    """Which also scales the second cloud by 1 - distance / 2, and so has 1 - (1 - distance / 2)**2."""
    a, b = pair(name)
    disparity = scipy.spatial.procrustes(a.double().numpy(), b.double().numpy())[2]
    distance = procrustes_distance(a, b).item()
    assert 1 - (1 - distance / 2) ** 2 == pytest.approx(disparity, abs=1e-12)


@pytest.mark.parametrize("change", INVARIANCES)
@pytest.mark.parametrize("name", ["gaussian", "low_rank", "d_gt_n", "n_5"])
def test_invariances(name, change):
    a = HOSTILE[name]().double()
    b = after_a_block(a)
    expected = procrustes_distance(a, b).item()
    assert expected > 1e-3
    assert procrustes_distance(INVARIANCES[change](a), b).item() == pytest.approx(expected, abs=1e-12)
    assert procrustes_distance(a, INVARIANCES[change](b)).item() == pytest.approx(expected, abs=1e-12)
    assert procrustes_distance(b, a).item() == pytest.approx(expected, abs=1e-12)
    assert procrustes_distance(a.flip(0), b.flip(0)).item() == pytest.approx(expected, abs=1e-12)
    assert procrustes_distance(a, INVARIANCES[change](a)).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("dtype", "scale"), SCALES.values(), ids=SCALES)
def test_scales_whose_squares_are_no_numbers(dtype, scale):
    a, b = normal(90, 20).to(dtype), after_a_block(normal(90, 20)).to(dtype)
    expected = procrustes_distance(a, b).item()
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert procrustes_distance(a * scale, b).item() == pytest.approx(expected, abs=tolerance)
    assert procrustes_distance(a * scale, b * scale).item() == pytest.approx(expected, abs=tolerance)
