"""Kernels without neighbours on every hostile cloud, against float64 written out and the packages
of their authors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial
import torch
from hostile import HOSTILE
from pairs import DEVICES, INVARIANCES, SCALES, after_a_block, normal, pair
from reference.clouds import CLOUDS, uniform
from torch import Tensor

from repdyn import kernels


def wide(points: Tensor) -> np.ndarray:
    return points.double().numpy()


def eigenvalues(points: Tensor) -> np.ndarray:
    return np.linalg.svd(wide(points) - wide(points).mean(0), compute_uv=False) ** 2


def components(points: Tensor, share: float) -> int:
    values = eigenvalues(points)
    return int((np.cumsum(values) < share * values.sum() * (1 - 1e-10)).sum()) + 1


def mean_cosine(points: Tensor) -> float:
    """Of every pair of different rows; NaN where a row has no direction."""
    with np.errstate(invalid="ignore"):
        units = wide(points) / np.linalg.norm(wide(points), axis=1, keepdims=True)
    return (units @ units.T)[~np.eye(len(units), dtype=bool)].mean()


def outlier_kurtosis(points: Tensor) -> float:
    squares = (wide(points) ** 2).mean(0)
    return (squares**2).mean() / squares.mean() ** 2


def isoscore(points: Tensor) -> float:
    """By algorithm 1 of the paper, step by step; NaN in one dimension, where there is nothing to
    compare.
    """
    dim = points.shape[1]
    if dim == 1:
        return np.nan
    variances = np.linalg.eigvalsh(np.cov(wide(points) - wide(points).mean(0), rowvar=False))
    normalised = np.sqrt(dim) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - np.ones(dim)) / np.sqrt(2 * (dim - np.sqrt(dim)))
    used = (dim - defect**2 * (dim - np.sqrt(dim))) ** 2 / dim**2
    return (dim * used - 1) / (dim - 1)


def massive_activation_share(points: Tensor, magnitude: float = 100, ratio: float = 1000) -> float:
    """Of two medians the lower one counts."""
    sizes = np.abs(wide(points)).flatten()
    median = np.sort(sizes)[(len(sizes) - 1) // 2]
    return math.fsum(sizes[(sizes > magnitude) & (sizes >= ratio * median)] ** 2) / math.fsum(
        sizes**2
    )


def top_norm_variance_share(points: Tensor, share: float = 0.01) -> float:
    """NaN where the first direction is not told from the second; points of equal length count in
    part.
    """
    centred = wide(points) / np.abs(wide(points)).max()
    left, values, _ = np.linalg.svd(centred - centred.mean(0), full_matrices=False)
    if len(values) > 1 and values[1] ** 2 >= values[0] ** 2 * (1 - 1e-6):
        return np.nan
    carried = left[:, 0] ** 2
    norms = np.linalg.norm(wide(points), axis=1)
    n_longest = -(-len(norms) * round(1000 * share) // 1000)
    limit = np.sort(norms)[-n_longest]
    longer = norms > limit
    return carried[longer].sum() + (n_longest - longer.sum()) * carried[norms == limit].mean()


def alpha_req(points: Tensor, first: int = 11, last: int = 100) -> float:
    values = eigenvalues(points)
    values = values[values > 1e-12 * values[0]]
    if len(values) < first + 9:
        return np.nan
    ranks = np.arange(first, min(last, len(values)) + 1)
    # polyfit squares its weights
    return -np.polyfit(np.log(ranks), np.log(values[ranks - 1]), 1, w=ranks**-0.5)[0]


def norm(x: Tensor) -> float:
    return float(np.sqrt((wide(x).astype(np.longdouble) ** 2).sum(1)).mean())


def step_length(x: Tensor, y: Tensor) -> float:
    return float(np.sqrt(((wide(y).astype(np.longdouble) - wide(x)) ** 2).sum(1)).mean())


def alignment(x: Tensor, y: Tensor) -> float:
    """NaN where a vector is zero."""
    a, b = (wide(points).astype(np.longdouble) for points in (x, y))
    with np.errstate(invalid="ignore"):
        return float(((a * b).sum(1) / np.sqrt((a**2).sum(1)) / np.sqrt((b**2).sum(1))).mean())


def procrustes_distance(a: Tensor, b: Tensor) -> float:
    """The distance itself, after the rotation that scipy finds."""
    x, y = (wide(points) - wide(points).mean(0) for points in (a, b))
    x, y = (points / np.abs(points).max() for points in (x, y))
    width = max(x.shape[1], y.shape[1])
    x, y = (np.pad(of / np.linalg.norm(of), ((0, 0), (0, width - of.shape[1]))) for of in (x, y))
    return ((x - y @ scipy.linalg.orthogonal_procrustes(y, x)[0]) ** 2).sum()


NAIVE: dict[str, tuple[Callable[..., float], float, float, list[dict[str, float]]]] = {
    "components": (components, 0, 0, [{"share": share} for share in (0.5, 0.9, 0.99)]),
    "mean_cosine": (mean_cosine, 1e-12, 1e-14, [{}]),
    "outlier_kurtosis": (outlier_kurtosis, 1e-12, 0, [{}]),
    "isoscore": (isoscore, 1e-6, 1e-9, [{}]),
    "massive_activation_share": (
        massive_activation_share,
        1e-12,
        0,
        [{}, {"magnitude": 0, "ratio": 2}],
    ),
    "top_norm_variance_share": (
        top_norm_variance_share,
        1e-6,
        1e-12,
        [{"share": 0.01}, {"share": 0.5}],
    ),
    # from rank 9 on the eigenvalues of offset_3000 are what float32 rounded off 3000: 1e-10 of the
    # largest
    "alpha_req": (alpha_req, 1e-6, 1e-7, [{}, {"first": 1, "last": 30}]),
    "norm": (norm, 1e-13, 0, [{}]),
    "step_length": (step_length, 1e-13, 0, [{}]),
    "alignment": (alignment, 0, 1e-14, [{}]),
    "procrustes_distance": (procrustes_distance, 1e-9, 1e-12, [{}]),
}
"""By kernel: the value written out, its relative and absolute tolerance, and settings."""
OF_TWO = {"step_length", "alignment", "procrustes_distance"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cloud", HOSTILE)
@pytest.mark.parametrize("name", NAIVE)
def test_written_out_in_float64(name: str, cloud: str, device: str):
    naive, relative, absolute, every_settings = NAIVE[name]
    clouds = pair(cloud) if name in OF_TWO else (HOSTILE[cloud](),)
    for settings in every_settings:
        found = getattr(kernels, name)(*(x.to(device) for x in clouds), **settings)
        assert (found.shape, found.dtype, found.device.type) == ((), torch.float64, device)
        assert found.item() == pytest.approx(
            naive(*clouds, **settings), rel=relative, abs=absolute, nan_ok=True
        )


def test_alignment_gradient_is_the_difference_of_alignments():
    x, following, last = (normal(300, 20, seed=seed).float() for seed in range(3))
    expected = alignment(following, last) - alignment(x, last)
    assert kernels.alignment_gradient(x, following, last).item() == pytest.approx(
        expected, abs=1e-15
    )


def test_vectors_of_very_different_lengths_count_alike():
    """As those of attention sinks and of all other tokens do."""
    x = normal(90, 20)
    last = normal(90, 20, seed=1)
    factors = 10.0 ** torch.arange(-45, 45).double()[:, None]
    assert kernels.alignment(x * factors, last).item() == pytest.approx(
        kernels.alignment(x, last).item(), abs=1e-14
    )


def test_a_small_step_of_long_vectors_keeps_its_digits():
    x = normal(400, 30).float() * 1000
    moved = x.clone()
    moved[:, 0] += 0.5
    assert kernels.step_length(x, moved).item() == pytest.approx(step_length(x, moved), rel=1e-14)
    assert kernels.step_length(x, x).item() == 0
    assert kernels.alignment(x, x).item() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(("dtype", "scale"), SCALES.values(), ids=SCALES)
def test_scales_whose_squares_are_no_numbers(dtype: torch.dtype, scale: float):
    x = normal(90, 20).to(dtype)
    y = after_a_block(normal(90, 20)).to(dtype)
    assert kernels.norm(x * scale).item() == pytest.approx(norm(x * scale), rel=1e-13)
    assert kernels.step_length(x * scale, y * scale).item() == pytest.approx(
        step_length(x * scale, y * scale), rel=1e-13
    )
    classes = torch.arange(90) % 7
    tolerance = 1e-5 if dtype == torch.float32 else 1e-11
    calls: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "alignment": kernels.alignment,
        "class_variance": lambda x, _: kernels.class_variance(x, classes),
        "linear_cka": kernels.linear_cka,
        "linearity": kernels.linearity,
        "mean_cosine": lambda x, _: kernels.mean_cosine(x),
        "outlier_kurtosis": lambda x, _: kernels.outlier_kurtosis(x),
        "procrustes_distance": kernels.procrustes_distance,
        "step of linearity": lambda x, y: kernels.linearity(x, y, of="step"),
    }
    for name, kernel in calls.items():
        expected = pytest.approx(kernel(x, y).item(), rel=tolerance, abs=tolerance)
        assert kernel(x * scale, y * scale).item() == expected, name
        if "step" not in name:
            assert kernel(x * scale, y).item() == expected, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 7, 100])
def test_equal_directions_are_counted_exactly(dim: int, dtype: torch.dtype):
    """A share that is reached exactly is reached, however sums of equal parts are rounded."""
    cross = torch.cat([torch.eye(dim, dtype=dtype), -torch.eye(dim, dtype=dtype)])
    for held in range(1, dim):
        assert kernels.components(cross, share=held / dim).item() == held


@pytest.mark.parametrize("shape", [(600, 120), (120, 600)])
@pytest.mark.parametrize("offset", [0, 3000])
def test_eigenvalues_far_below_the_largest_keep_their_digits(shape: tuple[int, int], offset: int):
    """Those of the fit are 1e-8 to 1e-11 of the largest, of float32 points."""
    left, values, right = torch.linalg.svd(normal(*shape), full_matrices=False)
    points = (left * torch.logspace(0, -5.5, len(values)).double() @ right + offset * 1e-3).float()
    assert kernels.alpha_req(points).item() == pytest.approx(alpha_req(points), rel=1e-6)


def test_the_fit_ends_where_rounding_begins():
    """Of 200 directions 60 have variance: the points lie in a space of 60 dimensions, turned."""
    ranks = torch.arange(1.0, 201.0, dtype=torch.float64)
    arms = torch.where(ranks <= 60, ranks**-1.0, 0).sqrt().diag()
    turned = torch.cat([arms, -arms]) @ torch.linalg.qr(normal(200, 200)).Q
    for points in (turned, turned.float()):
        assert kernels.alpha_req(points).item() == pytest.approx(1, abs=1e-5)


# IsoScore 2.0.1, IsoScore.IsoScore.IsoScore(points); it takes square roots of the dimension in
# float32
ISOSCORE = {
    "square": 0.9958980471,
    "cube_20": 0.9734702306,
    "cube_5_in_64": 0.05749699704,
    "curved": 0.10305335,
}
# reptrix 0.1.0, alpha.get_alpha(points)[0] and with fit_range=np.arange(3, 100): ranks from 0,
# weights in float32
DECAYING = (uniform(1000, 128, 9) - 0.5) * np.arange(1, 129) ** -0.75
REPTRIX = [
    (DECAYING, 1.5408585925758074, 1.525445314356429),
    (uniform(200, 300, 10) - 0.5, 0.49227852395270855, 0.3452609818194171),
]


def test_the_packages_of_their_authors_agree():
    for cloud, expected in ISOSCORE.items():
        assert kernels.isoscore(torch.from_numpy(CLOUDS[cloud]())).item() == pytest.approx(
            expected, rel=1e-6
        )
    for points, from_11, from_4 in REPTRIX:
        assert kernels.alpha_req(torch.from_numpy(points)).item() == pytest.approx(
            from_11, rel=1e-8
        )
        assert kernels.alpha_req(torch.from_numpy(points), first=4).item() == pytest.approx(
            from_4, rel=1e-8
        )
    for cloud in ("gaussian", "sinks", "d_gt_n"):
        a, b = pair(cloud)
        # scipy also scales the second cloud by 1 - distance / 2, and so has 1 - (1 - distance /
        # 2)**2
        distance = kernels.procrustes_distance(a, b).item()
        assert 1 - (1 - distance / 2) ** 2 == pytest.approx(
            scipy.spatial.procrustes(wide(a), wide(b))[2], abs=1e-12
        )


@pytest.mark.parametrize("dim", [1, 8, 200])
def test_widths_may_differ(dim: int):
    a = HOSTILE["low_rank"]()
    b = normal(400, dim)
    assert kernels.procrustes_distance(a, b).item() == pytest.approx(
        procrustes_distance(a, b), abs=1e-12
    )
    assert kernels.procrustes_distance(b, a).item() == pytest.approx(
        procrustes_distance(a, b), abs=1e-12
    )


@pytest.mark.parametrize("change", INVARIANCES)
@pytest.mark.parametrize("cloud", ["gaussian", "low_rank", "d_gt_n"])
@pytest.mark.parametrize("name", ["linear_cka", "biased", "procrustes_distance"])
def test_invariances_of_two_clouds(name: str, cloud: str, change: str):
    of_itself = 0 if name == "procrustes_distance" else 1

    def kernel(x: Tensor, y: Tensor) -> float:
        return (
            kernels.linear_cka(x, y, debiased=False)
            if name == "biased"
            else getattr(kernels, name)(x, y)
        ).item()

    a = HOSTILE[cloud]().double()
    b = after_a_block(a)
    changed = INVARIANCES[change](a)
    expected = pytest.approx(kernel(a, b), rel=1e-10, abs=1e-12)
    assert abs(kernel(a, b) - of_itself) > 1e-3
    for x, y in ((changed, b), (a, INVARIANCES[change](b)), (b, a), (a.flip(0), b.flip(0))):
        assert kernel(x, y) == expected
    assert kernel(a, changed) == pytest.approx(of_itself, abs=1e-12)
