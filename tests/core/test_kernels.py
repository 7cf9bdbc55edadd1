"""What other packages give, standard errors, and where rounding decides whether there is a value;
``test_metric_tester.py`` holds every metric against its definition, and
``tests/nightly/core/kernels`` has each kernel in detail.
"""

from __future__ import annotations

import math

import metric_oracles as oracles
import numpy as np
import pytest
import torch
from hostile import HOSTILE
from torch import Tensor

from repdyn import kernels
from repdyn.kernels import Cloud, Sequences, UndefinedError


def low_rank() -> Tensor:
    """Return a cloud of 8 wide directions and a little of all others."""
    return HOSTILE["low_rank"]() + 0.1 * HOSTILE["gaussian"]()


def test_what_other_packages_and_papers_give_for_the_same_vectors():
    """Another divisor, order or null in a formula would pass a test against a copy of it."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(60, 200)) * np.arange(1, 201) ** -0.5 + 3)
    assert kernels.unbiased_participation_ratio(x).item() == pytest.approx(
        19.4071, abs=1e-4
    )  # dimensionality 0.1.4
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(1000, 10)))
    imbalances = [
        kernels.information_imbalance(x, x[:, :3], reverse=back).item() for back in (False, True)
    ]
    assert imbalances == pytest.approx([0.150, 0.524], abs=1e-3)  # DADApy
    windows = torch.arange(1000) // 2
    twins = [torch.from_numpy(rng.normal(size=(500, 10)))[windows] + 1e-3 * x for _ in range(2)]
    assert kernels.information_imbalance(*twins).item() == pytest.approx(0.002)
    apart = [Cloud(each, groups=windows) for each in twins]
    assert kernels.information_imbalance(*apart).item() == pytest.approx(1, abs=0.1)
    independent = Sequences(torch.from_numpy(rng.normal(size=(4000, 64))), (100,) * 40)
    assert kernels.curvature(independent).item() == pytest.approx(0, abs=0.01)


def test_ranks_are_those_of_distances_where_the_cloud_is_wide():
    """Two clusters as far apart as 1e7 of their radii: a product in float64 knows no distance of
    1, and all ranks were shared.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 8, dtype=torch.float64, generator=generator)
    y = x + torch.randn(300, 8, dtype=torch.float64, generator=generator)
    side = 1e7 * (torch.arange(300, dtype=torch.float64)[:, None] % 2 - 0.5)
    x = torch.cat([x, side], 1)
    y = torch.cat([y, side], 1)

    def apart(points):
        distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        return distances.fill_diagonal_(torch.inf)

    distances = apart(y)
    limits = distances.gather(1, apart(x).argmin(1, keepdim=True))
    ranks = (distances < limits).sum(1) + 1
    assert kernels.information_imbalance(x, y).item() == pytest.approx(
        2 * ranks.double().mean().item() / 300, rel=1e-12
    )


def test_a_huge_point_costs_the_similarity_of_two_clouds_no_digits():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1100, 300, generator=generator)
    y = x + torch.randn(1100, 300, generator=generator)
    for cloud in (x, y):
        cloud[7] *= 1e5
    exact = kernels.linear_cka(x.double(), y.double()).item()
    assert kernels.linear_cka(x, y).item() == pytest.approx(exact, abs=1e-6)


def test_a_cosine_of_many_coordinates_is_as_accurate_as_it_says():
    """All of one sign, so that no error of the sum cancels: 1e-15 was claimed, 7e-15 measured."""
    x, y = (1 + torch.rand(3, 16384, generator=torch.Generator().manual_seed(i)) for i in (0, 1))

    def product(a, b):
        return math.fsum(p * q for p, q in zip(a.tolist(), b.tolist(), strict=True))

    cosines = [
        product(a, b) / math.sqrt(product(a, a) * product(b, b)) for a, b in zip(x, y, strict=True)
    ]
    assert kernels.alignment(x, y).item() == pytest.approx(math.fsum(cosines) / 3, abs=1e-14)


def test_correlations_of_directions_that_rounding_would_choose_are_undefined():
    """Of six directions of one variance 0.6 of it holds any four: a cloud and itself rotated had
    0.7, or another value with each rotation.
    """
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(200, 6, dtype=torch.float64, generator=generator)
    even = torch.linalg.qr(normal - normal.mean(0)).Q
    rotated = even @ torch.linalg.qr(normal[:6]).Q
    with pytest.raises(UndefinedError, match="directions 4 and 5 have the same variance"):
        kernels.svcca.or_raise(even, rotated, variance=0.6)
    assert kernels.svcca(even, rotated, variance=0.9).item() == pytest.approx(1, abs=1e-12)


def test_a_gaussian_control_keeps_the_covariance_and_loses_the_shape():
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(1500, 4))) @ torch.randn(
        4, 40, dtype=torch.float64
    )
    curved, same = x.sin(), kernels.gaussian_like(Cloud(x.sin())).x
    assert kernels.participation_ratio(same).item() == pytest.approx(
        kernels.participation_ratio(curved).item(), rel=0.05
    )
    assert kernels.two_nn(curved).item() < 5 < kernels.two_nn(same).item()


MEANS = {"norm", "alignment", "step_length"}


@pytest.mark.parametrize("name", ["anisotropy", "two_nn", *sorted(MEANS)])
def test_the_standard_error_is_the_spread_over_clouds_of_other_windows(name: str):
    """An error from single vectors would be half of it: the 4 vectors of a window resemble one
    another.
    """
    kernel: kernels.cloud.Kernel = getattr(kernels, name)
    values = []
    errors = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        centres = torch.randn(150, 6, generator=generator).repeat_interleave(4, 0)
        own = 1.5 if name == "two_nn" else 0.5
        x = torch.cat([centres, torch.zeros(600, 6)], 1) + own * torch.randn(
            600, 12, generator=generator
        )
        x = x * torch.linspace(2, 0.5, 12) + 0.2
        windows = torch.arange(150).repeat_interleave(4)
        if name in {"anisotropy", "two_nn"}:
            inputs = (Cloud(x, groups=windows),)
        else:
            inputs = (x, x.roll(1, 1)) if name != "norm" else (x,)
        values.append(float(kernel(*inputs)))
        assert kernel.std_error is not None
        errors.append(float(kernel.std_error(*inputs, windows=windows)))
    ratio = float(np.sqrt(np.mean(np.square(errors))) / np.std(values, ddof=1))
    assert 0.7 < ratio < 1.5


def test_an_influence_is_the_change_of_the_anisotropy_without_a_window():
    x = low_rank().double()
    windows = torch.arange(400) // 4
    whole = kernels.anisotropy(x)
    others = [windows != window for window in range(100)]
    without = torch.stack([kernels.anisotropy(x[of_others]) for of_others in others])
    jackknife = (99 / 100 * (without - without.mean()).square().sum()).sqrt()
    assert kernels.anisotropy.std_error is not None
    for cloud in (Cloud(x), Cloud(x[:, :20])):
        error = kernels.anisotropy.std_error(cloud, windows=windows)
        assert error.item() > 0
        if cloud.x.shape == x.shape:
            assert error.item() == pytest.approx(jackknife.item(), rel=0.05)
    wide = x[:60]  # fewer points than coordinates: the direction is found among the points
    assert kernels.anisotropy.std_error(wide, windows=windows[:60]).item() > 0
    assert 0 < whole < 1


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("length", [8, 60, 200])
def test_prompt_entropy_is_the_published_one_of_short_and_of_long_sequences(length, order):
    """The Gram matrix of the tokens of a sequence longer than wide gave .779 where it is .657."""
    x = low_rank()[: 2 * length, :60]
    sequences = Sequences(x, (length, len(x) - length))
    entropy = kernels.prompt_entropy(sequences, order=order).item()
    published = [oracles.prompt_entropy(rows.double().numpy(), order) for rows in x.split(length)]
    assert entropy == pytest.approx(np.mean(published), rel=1e-9)
    assert 0 <= entropy <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [kernels.prompt_entropy, kernels.curvature])
def test_a_sequence_of_vectors_that_differ_by_rounding_has_no_value(kernel, dtype):
    """It was 0, -6e-16 or NaN, as rounding had it, and part of the mean over sequences."""
    normal = torch.randn(12, 6, generator=torch.Generator().manual_seed(0), dtype=dtype)
    for noise in (0.0, torch.finfo(dtype).eps):
        equal = 0.1 + noise * normal
        with pytest.raises(kernels.UndefinedError, match=r"rounding|no two successive steps"):
            kernel.or_raise(Sequences(torch.cat([normal, equal]), (12, 12)))


def test_a_gaussian_control_has_the_unit_of_the_cloud():
    """It had the covariance of the cloud divided by a power of two: a norm of 0.29 for 12.6."""
    for factor in (2.0**-20, 1.0, 30.0, 2.0**20):
        x = factor * (low_rank() - low_rank().mean(0))
        norm = kernels.norm(kernels.gaussian_like(Cloud(x))).item()
        expected = np.linalg.norm(x.double().numpy(), axis=1).mean()
        assert norm == pytest.approx(expected, rel=0.1)


def test_a_constant_next_layer_of_few_points_has_no_linearity():
    """Any layer of fewer than dim + 2 points is a linear map of another: the value was 1."""
    x = low_rank()[:20, :30]
    with pytest.raises(kernels.UndefinedError, match="at least 32 needed"):
        kernels.linearity.or_raise(x, torch.ones_like(x), of="step")
    assert kernels.linearity(low_rank(), torch.ones(400, 80), of="step").item() == 1


@pytest.mark.parametrize("kernel", [kernels.lidar, kernels.class_variance, kernels.dime])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_classes_of_equal_means_are_not_told_apart_by_rounding(kernel, dtype):
    normal = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=dtype)
    # each class, and each half of one, has the same mean, but not to the last bit
    opposed = torch.cat([normal.view(20, 2, 6), -normal.view(20, 2, 6)], 1).view(80, 6)
    x = torch.cat([3.3 + (1 + 0.1 * number) * opposed for number in range(5)])
    classes = torch.arange(5).repeat_interleave(80)
    means = x.view(5, 80, 6).mean(1)
    assert (means - 3.3).abs().max() < 1e-5
    assert (means != means[0]).any()
    with pytest.raises(kernels.UndefinedError, match="equal up to rounding|no direction"):
        kernel.or_raise(x, classes)
    moved = x + classes[:, None]
    assert kernel.or_raise(moved + torch.arange(6) * classes[:, None] ** 2, classes).isfinite()
