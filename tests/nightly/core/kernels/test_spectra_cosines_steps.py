"""Kernels without neighbours on every hostile cloud, against float64 written out and the packages
of their authors.
"""

from __future__ import annotations

from collections.abc import Callable

import metric_oracles as oracles
import numpy as np
import pytest
import scipy.spatial
import torch
from hostile import HOSTILE
from pairs import DEVICES, INVARIANCES, SCALES, after_a_block, normal, pair
from reference.clouds import CLOUDS, uniform
from torch import Tensor

from repdyn import kernels


def wide(points: Tensor) -> np.ndarray:
    return points.double().numpy()


NAIVE: dict[str, tuple[Callable[..., float], float, float, list[dict[str, float]]]] = {
    "components": (oracles.components, 0, 0, [{"share": share} for share in (0.5, 0.9, 0.99)]),
    "mean_cosine": (oracles.mean_cosine, 1e-12, 1e-14, [{}]),
    "outlier_kurtosis": (oracles.outlier_kurtosis, 1e-12, 0, [{}]),
    "isoscore": (oracles.isoscore, 1e-6, 1e-9, [{}]),
    "massive_activation_share": (
        oracles.massive_activation_share,
        1e-12,
        0,
        [{}, {"magnitude": 0, "ratio": 2}],
    ),
    "top_norm_variance_share": (
        oracles.top_norm_variance_share,
        1e-6,
        1e-12,
        [{"share": 0.01}, {"share": 0.5}],
    ),
    # from rank 9 on the eigenvalues of offset_3000 are what float32 rounded off 3000: 1e-10 of the
    # largest
    "alpha_req": (oracles.alpha_req, 1e-6, 1e-7, [{}, {"first": 1, "last": 30}]),
    "norm": (oracles.norm, 1e-13, 0, [{}]),
    "step_length": (oracles.step_length, 1e-13, 0, [{}]),
    "alignment": (oracles.alignment, 0, 1e-14, [{}]),
    "procrustes_distance": (oracles.procrustes_distance, 1e-9, 1e-12, [{}]),
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
        value = getattr(kernels, name)(*(x.to(device) for x in clouds), **settings)
        assert value.shape == ()
        assert value.dtype == torch.float64
        assert value.device.type == device
        assert value.item() == pytest.approx(
            naive(*map(wide, clouds), **settings), rel=relative, abs=absolute, nan_ok=True
        )


def test_alignment_gradient_is_the_difference_of_alignments():
    x, following, last = (normal(300, 20, seed=seed).float() for seed in range(3))
    expected = oracles.alignment_gradient(wide(x), wide(following), wide(last))
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
    assert kernels.step_length(x, moved).item() == pytest.approx(
        oracles.step_length(wide(x), wide(moved)), rel=1e-14
    )
    assert kernels.step_length(x, x).item() == 0
    assert kernels.alignment(x, x).item() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(("dtype", "scale"), SCALES.values(), ids=SCALES)
def test_scales_whose_squares_are_no_numbers(dtype: torch.dtype, scale: float):
    x = normal(90, 20).to(dtype)
    y = after_a_block(normal(90, 20)).to(dtype)
    assert kernels.norm(x * scale).item() == pytest.approx(oracles.norm(wide(x * scale)), rel=1e-13)
    assert kernels.step_length(x * scale, y * scale).item() == pytest.approx(
        oracles.step_length(wide(x * scale), wide(y * scale)), rel=1e-13
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
    assert kernels.alpha_req(points).item() == pytest.approx(
        oracles.alpha_req(wide(points)), rel=1e-6
    )


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
        oracles.procrustes_distance(wide(a), wide(b)), abs=1e-12
    )
    assert kernels.procrustes_distance(b, a).item() == pytest.approx(
        oracles.procrustes_distance(wide(a), wide(b)), abs=1e-12
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
