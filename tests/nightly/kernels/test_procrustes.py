import itertools

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial
import torch
from hostile import HOSTILE
from pairs import INVARIANCES, NUMBERS, SCALES, UNDEFINED, after_a_block, normal, pair

from repdyn.kernels import Cloud, Undefined, procrustes_distance


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


@pytest.mark.slow
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


@pytest.mark.parametrize("seed", range(3))
def test_no_rotation_comes_closer(seed):
    a, b = (torch.from_numpy(normalised(normal(50, 3, seed=each))) for each in (seed, seed + 10))
    turns = torch.linalg.qr(normal(20_000, 3, 3, seed=seed)).Q
    turns = torch.cat([turns, -turns])  # of rotations the negative is a reflection, in three dimensions
    distances = (a - b @ turns).square().sum((1, 2))
    best = procrustes_distance(a, b).item()
    assert best <= distances.min().item()
    assert best == pytest.approx(distances.min().item(), abs=0.05)


def test_coordinates_without_correlation_are_as_far_as_possible():
    waves = torch.arange(64, dtype=torch.float64)[:, None] * torch.arange(1, 9) * 2 * torch.pi / 64
    assert procrustes_distance(waves.sin(), waves.cos()).item() == pytest.approx(2, abs=1e-12)


def test_noise_moves_the_clouds_apart():
    a = normal(300, 5)
    values = [procrustes_distance(a, a + size * normal(300, 5, seed=1)).item() for size in (0, 0.01, 0.1, 1, 10)]
    assert values[0] == pytest.approx(0, abs=1e-13)
    assert values == sorted(values)
    # of noise of a variance that is small relative to the points', the share of the variance
    assert values[2] == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("dim", [10, 50, 200])
def test_unrelated_clouds_come_closer_with_more_dimensions(dim):
    """The nuclear norm of a square matrix of independent normal numbers is 8 / (3 pi) of its side to the power 3/2."""
    found = procrustes_distance(normal(2000, dim), normal(2000, dim, seed=1)).item()
    assert found == pytest.approx(2 - 16 / (3 * np.pi) * (dim / 2000) ** 0.5, abs=0.03)


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


def test_roots_satisfy_the_triangle_inequality():
    clouds = [normal(60, 6, seed=seed) @ torch.diag(torch.arange(1.0, 7).double() ** seed) for seed in range(4)]
    for a, b, c in itertools.permutations(clouds, 3):
        ab, bc, ac = (procrustes_distance(x, y).sqrt().item() for x, y in ((a, b), (b, c), (a, c)))
        assert ac <= ab + bc


@pytest.mark.parametrize(("dtype", "scale"), SCALES.values(), ids=SCALES)
def test_scales_whose_squares_are_no_numbers(dtype, scale):
    a, b = normal(90, 20).to(dtype), after_a_block(normal(90, 20)).to(dtype)
    expected = procrustes_distance(a, b).item()
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert procrustes_distance(a * scale, b).item() == pytest.approx(expected, abs=tolerance)
    assert procrustes_distance(a * scale, b * scale).item() == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(("points", "reason"), UNDEFINED.values(), ids=UNDEFINED)
def test_undefined_has_a_reason(points, reason):
    with pytest.raises(Undefined, match=f"^{reason}$"):
        procrustes_distance.or_raise(Cloud(points), Cloud(NUMBERS))
    with pytest.raises(Undefined, match=f"^compared with: {reason}$"):
        procrustes_distance.or_raise(Cloud(NUMBERS), Cloud(points))
    assert procrustes_distance(points, NUMBERS).isnan()
