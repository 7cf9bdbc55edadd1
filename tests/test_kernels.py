"""What every kernel keeps, and its value against a naive one in float64; ``tests/nightly/kernels``
has each in detail.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hostile import HOSTILE
from torch import Tensor

from repdyn import kernels
from repdyn.kernels import Cloud, Sequences, Vocabulary

CLOUDS: dict[str, Callable[..., Tensor]] = {
    "anisotropy": kernels.anisotropy,
    "two_nn": kernels.two_nn,
    "gride": kernels.gride,
    "levina_bickel": kernels.levina_bickel,
    "local_dimension": lambda x: kernels.local_dimension.or_raise(x, k=16, points=20),
    "ph_dimension": lambda x: kernels.ph_dimension.or_raise(x, points=64),
    "participation_ratio": kernels.participation_ratio,
    "unbiased_participation_ratio": kernels.unbiased_participation_ratio,
    "effective_rank": kernels.effective_rank,
    "effective_rank_of_variance": kernels.effective_rank_of_variance,
    "alpha_req": lambda x: kernels.alpha_req.or_raise(x, first=2, last=60),
    "components": kernels.components,
    "mean_cosine": kernels.mean_cosine,
    "isoscore": kernels.isoscore,
    "massive_activation_share": kernels.massive_activation_share,
    "outlier_kurtosis": kernels.outlier_kurtosis,
    "top_norm_variance_share": kernels.top_norm_variance_share,
    "norm": kernels.norm,
}
"""Kernels of one cloud."""
PAIRS: dict[str, Callable[..., Tensor]] = {
    "alignment": kernels.alignment,
    "step_length": kernels.step_length,
    "linearity": kernels.linearity,
    "linear_cka": kernels.linear_cka,
    "mutual_knn": kernels.mutual_knn,
    "information_imbalance": kernels.information_imbalance,
    "procrustes_distance": kernels.procrustes_distance,
}
"""Kernels of two matched clouds."""
ROTATED = set(CLOUDS) - {"isoscore", "massive_activation_share", "outlier_kurtosis"}
TRANSLATED = ROTATED - {"mean_cosine", "norm", "top_norm_variance_share"}


def low_rank() -> Tensor:
    """Return a cloud of 8 wide directions and a little of all others."""
    return HOSTILE["low_rank"]() + 0.1 * HOSTILE["gaussian"]()


def other(x: Tensor) -> Tensor:
    return x + 0.3 * torch.randn(
        x.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    ).to(x.dtype)


def value_of(name: str, x: Tensor) -> Tensor:
    return CLOUDS[name](x) if name in CLOUDS else PAIRS[name](x, other(x))


@pytest.mark.parametrize("name", [*CLOUDS, *PAIRS])
def test_the_surroundings_of_a_call_matter_neither_to_it_nor_are_they_changed(name: str):
    """Autocast, a default of float64, gradients or a lower precision of products would change
    values in silence.
    """
    x = low_rank().requires_grad_()
    before = x.detach().clone()
    expected = value_of(name, x.detach())
    state = torch.get_rng_state()
    torch.set_float32_matmul_precision("medium")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
            found = CLOUDS[name](x) if name in CLOUDS else PAIRS[name](x, other(x.detach()))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(found, expected)
    assert (found.dtype, found.shape, found.requires_grad) == (torch.float64, (), False)
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", sorted(set(CLOUDS) - {"local_dimension", "ph_dimension"}))
def test_the_order_of_the_points_and_a_unit_do_not_matter(name: str):
    x = low_rank().double()
    expected = CLOUDS[name](x).item()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    assert CLOUDS[name](x[order]).item() == pytest.approx(expected, rel=1e-9)
    if name not in {"norm", "massive_activation_share"}:
        assert CLOUDS[name](2.0**40 * x).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", sorted(ROTATED))
def test_a_rotation_does_not_matter_nor_a_translation_where_the_kernel_centres(name: str):
    x = low_rank().double()
    expected = CLOUDS[name](x).item()
    noise = torch.randn(80, 80, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert CLOUDS[name](x @ torch.linalg.qr(noise).Q).item() == pytest.approx(expected, rel=1e-4)
    if name in TRANSLATED:
        assert CLOUDS[name](x + 17).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", [*CLOUDS, *PAIRS])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_has_no_value(name: str, bad: float):
    x = low_rank()
    x[3, 5] = bad
    try:
        is_undefined = bool(value_of(name, x).isnan())
    except kernels.UndefinedError as error:
        is_undefined = bool(error.reason)
    assert is_undefined


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def variances(x: np.ndarray) -> np.ndarray:
    return np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2


def entropy_rank(weights: np.ndarray) -> float:
    shares = weights[weights > 0] / weights.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def naive_mean_cosine(x: np.ndarray) -> float:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    products = unit @ unit.T
    return float((products.sum() - np.trace(products)) / (len(x) * (len(x) - 1)))


def naive_kurtosis(x: np.ndarray) -> float:
    squares = (x**2).mean(0)
    return float((squares**2).mean() / squares.mean() ** 2)


def naive_levina_bickel(x: np.ndarray, k: int = 20) -> float:
    r = np.sort(np.linalg.norm(x[:, None] - x, axis=2), axis=1)[:, 1 : k + 1]
    return float(1 / np.log(r[:, -1:] / r[:, :-1]).mean())


def naive_cka(x: np.ndarray, y: np.ndarray) -> float:
    """By the unbiased estimator of Song et al. 2012, on matrices."""

    def hsic(a: np.ndarray, b: np.ndarray) -> float:
        n = len(a)
        return (
            (a * b).sum()
            + a.sum() * b.sum() / (n - 1) / (n - 2)
            - 2 * a.sum(0) @ b.sum(0) / (n - 2)
        )

    a = x @ x.T
    b = y @ y.T
    np.fill_diagonal(a, 0)
    np.fill_diagonal(b, 0)
    return float(hsic(a, b) / np.sqrt(hsic(a, a) * hsic(b, b)))


def naive_unbiased_ratio(x: np.ndarray) -> float:
    """By the formulas of Himeno and Yamada, on matrices."""
    n = len(x)
    centred = x - x.mean(0)
    covariance = centred.T @ centred / (n - 1)
    square = (covariance**2).sum()
    trace = np.trace(covariance)
    q = ((centred**2).sum(1) ** 2).sum() / (n - 1)
    a = (n - 1) * (n - 2) * square + trace**2 - n * q
    return float((2 * square + (n * n - 3 * n + 1) * trace**2 - n * q) / a)


def naive_imbalance(x: np.ndarray, y: np.ndarray) -> float:
    """By ranks from sorting all distances."""
    first, second = (
        np.linalg.norm(z[:, None] - z, axis=2) + np.diag([np.inf] * len(z)) for z in (x, y)
    )
    ranks = second.argsort(1).argsort(1) + 1
    return float(2 / len(x) ** 2 * ranks[np.arange(len(x)), first.argmin(1)].sum())


def naive_procrustes(x: np.ndarray, y: np.ndarray) -> float:
    x = x - x.mean(0)
    y = y - y.mean(0)
    nuclear = np.linalg.svd(x.T @ y, compute_uv=False).sum()
    return float(2 - 2 * nuclear / np.linalg.norm(x) / np.linalg.norm(y))


NAIVE: dict[str, Callable[..., float]] = {
    "anisotropy": lambda x: variances(x)[0] / variances(x).sum(),
    "participation_ratio": lambda x: variances(x).sum() ** 2 / (variances(x) ** 2).sum(),
    "unbiased_participation_ratio": naive_unbiased_ratio,
    "effective_rank": lambda x: entropy_rank(np.sqrt(variances(x))),
    "effective_rank_of_variance": lambda x: entropy_rank(variances(x)),
    "components": lambda x: int((np.cumsum(variances(x)) / variances(x).sum() < 0.9).sum()) + 1,
    "mean_cosine": naive_mean_cosine,
    "outlier_kurtosis": naive_kurtosis,
    "levina_bickel": naive_levina_bickel,
    "norm": lambda x: np.linalg.norm(x, axis=1).mean(),
    "alignment": lambda x, y: cosines(x, y).mean(),
    "step_length": lambda x, y: np.linalg.norm(x - y, axis=1).mean(),
    "linear_cka": naive_cka,
    "procrustes_distance": naive_procrustes,
    "information_imbalance": naive_imbalance,
}


@pytest.mark.parametrize("cloud", ["gaussian", "low_rank", "std_500", "sinks", "scale_1e-6"])
@pytest.mark.parametrize("name", NAIVE)
def test_against_a_naive_computation_in_float64(name: str, cloud: str):
    x = HOSTILE[cloud]()
    y = other(x)
    arrays = (x.double().numpy(),) if name in CLOUDS else (x.double().numpy(), y.double().numpy())
    settings = {"share": 0.9} if name == "components" else {}
    found = CLOUDS[name](x, **settings) if name in CLOUDS else PAIRS[name](x, y)
    rel = 2e-3 if name == "effective_rank" else 1e-6
    assert found.item() == pytest.approx(NAIVE[name](*arrays), rel=rel, abs=1e-9)


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
    without = torch.stack([kernels.anisotropy(x[windows != window]) for window in range(100)])
    jackknife = (99 / 100 * (without - without.mean()).square().sum()).sqrt()
    assert kernels.anisotropy.std_error is not None
    for cloud in (Cloud(x), Cloud(x[:, :20])):
        found = kernels.anisotropy.std_error(cloud, windows=windows)
        assert found.item() > 0
        if cloud.x.shape == x.shape:
            assert found.item() == pytest.approx(jackknife.item(), rel=0.05)
    wide = x[:60]  # fewer points than coordinates: the direction is found among the points
    assert kernels.anisotropy.std_error(wide, windows=windows[:60]).item() > 0
    assert 0 < whole < 1


def test_tokens_against_the_vocabulary():
    table = torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(40) % 50
    x = table[ids] + 0.8 * torch.randn(40, 12, generator=torch.Generator().manual_seed(1))
    unit = x / x.norm(dim=1, keepdim=True)
    rows = table / table.norm(dim=1, keepdim=True)
    products = (unit.double() @ rows.double().T).numpy()
    own = products[np.arange(40), ids]
    ranks = (products > own[:, None]).sum(1)
    vocabulary = Vocabulary(table)
    assert kernels.token_cosine(x, ids, vocabulary).item() == pytest.approx(own.mean(), rel=1e-6)
    assert kernels.token_rank(x, ids, vocabulary).item() == np.median(ranks)
    assert kernels.token_top1_match(x, ids, vocabulary).item() == (ranks == 0).mean()
    distances = (x.double()[:, None] - table.double()).norm(dim=2).numpy()
    near = Vocabulary(table, by_distance=True)
    own = distances[np.arange(40), ids]
    assert kernels.token_distance(x, ids, near).item() == pytest.approx(own.mean(), rel=1e-9)
    assert kernels.token_rank(x, ids, near).item() == np.median((distances < own[:, None]).sum(1))


def test_metrics_of_whole_sequences():
    x = low_rank()[:30]
    states = Sequences(x, (10, 20))
    parts = [part.double().numpy() for part in x.split([10, 20])]
    expected = np.mean([naive_mean_cosine(part) for part in parts])
    assert kernels.sequence_cosine(states).item() == pytest.approx(expected, rel=1e-9)
    largest = np.mean([np.abs(part).max() for part in parts])
    assert kernels.largest_activation(states).item() == pytest.approx(largest, rel=1e-6)


def published_entropy(z: np.ndarray, order: int) -> float:
    """The convention of the published code: the smaller of both products, its negative entries 0,
    the positive eigenvalues as shares of their sum.
    """
    z = z - z.mean(0)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    product = np.maximum(z.T @ z if len(z) > z.shape[1] else z @ z.T, 0)
    values = np.linalg.eigvalsh(product)
    shares = values[values > 0] / values[values > 0].sum()
    entropy = -np.log((shares**2).sum()) if order == 2 else -(shares * np.log(shares)).sum()
    return entropy / np.log(min(z.shape))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("length", [8, 60, 200])
def test_prompt_entropy_is_the_published_one_of_short_and_of_long_sequences(length, order):
    """The Gram matrix of the tokens of a sequence longer than wide gave .779 where it is .657."""
    x = low_rank()[: 2 * length, :60]
    sequences = Sequences(x, (length, len(x) - length))
    entropy = kernels.prompt_entropy(sequences, order=order).item()
    published = [published_entropy(rows.double().numpy(), order) for rows in x.split(length)]
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
        found = kernels.norm(kernels.gaussian_like(Cloud(x))).item()
        expected = np.linalg.norm(x.double().numpy(), axis=1).mean()
        assert found == pytest.approx(expected, rel=0.1)


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
