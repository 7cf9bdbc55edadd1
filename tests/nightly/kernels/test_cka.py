"""Linear CKA: against matrices of similarities written out in float64, and against what is known of unrelated clouds."""

import sys

import numpy as np
import pytest
import torch
from hostile import HOSTILE
from pairs import DEVICES, INVARIANCES, NUMBERS, SCALES, UNDEFINED, after_a_block, normal, pair

from repdyn.kernels import Cloud, Undefined
from repdyn.kernels.similarity import linear_cka


def naive(x, y, debiased):
    """Song et al. 2012, equation 5, and Kornblith et al. 2019, equation 3, as they are printed."""
    similarities = []
    for points in (x, y):
        wide = points.double().numpy()
        wide = wide / np.abs(wide).max()
        wide = wide - wide.mean(0)
        similarities.append(wide @ wide.T)
    k, l = similarities  # noqa: E741

    def hsic(k, l):  # noqa: E741
        n = len(k)
        if not debiased:
            k, l = (m - m.mean(0) - m.mean(1)[:, None] + m.mean() for m in (k, l))  # noqa: E741
            return (k * l).sum() / (n - 1) ** 2
        k, l = k - np.diag(np.diag(k)), l - np.diag(np.diag(l))  # noqa: E741
        ones = np.ones(n)
        return (
            (k * l).sum()
            + (ones @ k @ ones) * (ones @ l @ ones) / ((n - 1) * (n - 2))
            - 2 / (n - 2) * (ones @ k) @ (l @ ones)
        ) / (n * (n - 3))

    return hsic(k, l) / np.sqrt(hsic(k, k) * hsic(l, l))


# what is multiplied: features where they are few, similarities elsewhere; or one of them alone
WAYS = {"features": torch.inf, "similarities": 0.0}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    monkeypatch.setattr(sys.modules["repdyn.kernels.similarity"], "_FEW_FEATURES", WAYS[request.param])


FOUR_POINTS = sorted(set(HOSTILE) - {"n_3"})


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("debiased", [True, False], ids=["debiased", "biased"])
@pytest.mark.parametrize("name", FOUR_POINTS)
def test_against_matrices_in_float64(name, debiased, device):
    x, y = pair(name)
    found = linear_cka(x.to(device), y.to(device), debiased=debiased)
    assert (found.shape, found.dtype, found.device.type) == ((), torch.float64, device)
    # the contract is 1e-6; what holds on all of these is 2e-8
    assert found.item() == pytest.approx(naive(x, y, debiased), abs=2e-8)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("debiased", [True, False], ids=["debiased", "biased"])
@pytest.mark.parametrize("size", [30, 3e3, 3e5])
@pytest.mark.parametrize("n", [4, 5, 8, 40, 100, 600])
def test_huge_points_among_few(n, size, debiased):
    x = normal(n, 32).float()
    x[:2] *= size
    y = (torch.tanh(x) @ normal(32, 32, seed=1).float() + x).float()
    assert linear_cka(x, y, debiased=debiased).item() == pytest.approx(naive(x, y, debiased), abs=1e-8)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("debiased", [True, False], ids=["debiased", "biased"])
@pytest.mark.parametrize(
    "name", ["gaussian", "low_rank", "sinks", "d_gt_n", "duplicates_20_percent", "n_5", "heavy_tail"]
)
def test_float64_points_keep_their_digits(name, debiased):
    x = HOSTILE[name]().double()
    y = after_a_block(x)
    assert linear_cka(x, y, debiased=debiased).item() == pytest.approx(naive(x, y, debiased), rel=1e-12)


def test_debiased_does_not_depend_on_the_number_of_points():
    """Two layers that share half of their variance, at 200 and at 2000 points in 300 dimensions."""
    shared, x, y = (normal(2000, 300, seed=seed) for seed in range(3))
    a, b = shared + x, shared + y
    few, many = linear_cka(a[:200], b[:200]).item(), linear_cka(a, b).item()
    # of the inner product of round clouds, E[(s + x)(s + y)]**2 / E[(s + x)**2]**2
    assert few == pytest.approx(0.25, abs=0.02)
    assert many == pytest.approx(0.25, abs=0.005)
    assert linear_cka(a[:200], b[:200], debiased=False).item() > 0.6


@pytest.mark.parametrize("debiased", [True, False], ids=["debiased", "biased"])
@pytest.mark.parametrize("change", INVARIANCES)
@pytest.mark.parametrize("name", ["gaussian", "low_rank", "d_gt_n", "n_5"])
def test_invariances(name, change, debiased):
    x = HOSTILE[name]().double()
    y = after_a_block(x)
    expected = linear_cka(x, y, debiased=debiased).item()
    assert linear_cka(INVARIANCES[change](x), y, debiased=debiased).item() == pytest.approx(expected, rel=1e-10)
    assert linear_cka(x, INVARIANCES[change](y), debiased=debiased).item() == pytest.approx(expected, rel=1e-10)
    assert linear_cka(y, x, debiased=debiased).item() == pytest.approx(expected, rel=1e-12)
    assert linear_cka(x.flip(0), y.flip(0), debiased=debiased).item() == pytest.approx(expected, rel=1e-10)
    # the same cloud, moved by any of these, is the same
    assert linear_cka(x, INVARIANCES[change](x), debiased=debiased).item() == pytest.approx(1, abs=1e-12)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("distance", [1e3, 1e5])
def test_a_point_far_from_all_others_leaves_no_rounding(distance):
    """As attention sinks are; the centred similarities of the others are some distance**2 smaller than its square."""
    x, y = normal(600, 40).float(), normal(600, 40, seed=1).float()
    x[5], y[5] = x[5] * distance, y[5] * distance
    assert linear_cka(x, y).item() == pytest.approx(naive_in_pieces(x, y), abs=2e-6)


def naive_in_pieces(x, y):
    """Debiased, with sums in extended precision."""
    centred = []
    for points in (x, y):
        wide = points.double().numpy().astype(np.longdouble)
        k = wide @ wide.T
        np.fill_diagonal(k, 0)
        n = len(k)
        rows = k.sum(0)
        k = k - rows[:, None] / (n - 2) - rows / (n - 2) + k.sum() / ((n - 1) * (n - 2))
        np.fill_diagonal(k, 0)
        centred.append(k)
    k, l = centred  # noqa: E741
    return float((k * l).sum() / np.sqrt((k * k).sum() * (l * l).sum()))


@pytest.mark.parametrize(("dtype", "scale"), SCALES.values(), ids=SCALES)
def test_scales_whose_squares_are_no_numbers(dtype, scale):
    x, y = normal(90, 20).to(dtype), after_a_block(normal(90, 20)).to(dtype)
    expected = linear_cka(x, y).item()
    assert linear_cka(x * scale, y).item() == pytest.approx(expected, abs=1e-6 if dtype == torch.float32 else 1e-12)


UNDEFINED_OR_ALIKE = {
    **UNDEFINED,
    "perpendicular": (torch.eye(5), "no two points are more alike than any other two"),
    "perpendicular_in_their_lengths": (
        torch.diag(torch.arange(1.0, 6)) - 3,
        "no two points are more alike than any other two",
    ),
}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("points", "reason"), UNDEFINED_OR_ALIKE.values(), ids=UNDEFINED_OR_ALIKE)
def test_undefined_has_a_reason(points, reason):
    with pytest.raises(Undefined, match=f"^{reason}$"):
        linear_cka.or_raise(Cloud(points), Cloud(NUMBERS))
    with pytest.raises(Undefined, match=f"^compared with: {reason}$"):
        linear_cka.or_raise(Cloud(NUMBERS), Cloud(points))
    assert linear_cka(points, NUMBERS).isnan()


def test_perpendicular_points_have_a_biased_similarity():
    assert linear_cka(torch.eye(5), torch.eye(5), debiased=False).item() == pytest.approx(1, abs=1e-12)
