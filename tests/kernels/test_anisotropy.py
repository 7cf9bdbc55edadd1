import importlib

import pytest
import torch
from hostile import HOSTILE, naive_anisotropy

from repdyn.kernels import Cloud, Undefined, anisotropy, anisotropy_of

# the package exports the function under the module's name
module = importlib.import_module("repdyn.kernels.anisotropy")


def test_a_cross_of_points_splits_its_variance_evenly():
    assert anisotropy(torch.cat([torch.eye(70), -torch.eye(70)])).item() == pytest.approx(1 / 70, rel=1e-12)


def test_points_on_a_line_have_anisotropy_one():
    assert anisotropy(HOSTILE["rank_1"]()).item() == pytest.approx(1, rel=1e-7)


@pytest.mark.parametrize("name", HOSTILE)
def test_range(name):
    points = HOSTILE[name]()
    n, dim = points.shape
    assert (1 - 1e-7) / min(n - 1, dim) <= anisotropy(points).item() <= 1 + 1e-7


def test_repeated_points_count_as_often_as_they_occur():
    points = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]])
    weighted = points[[0, 1, 1, 1, 2]]
    assert anisotropy(weighted).item() == pytest.approx(naive_anisotropy(weighted), rel=1e-7)
    assert anisotropy(weighted).item() != pytest.approx(anisotropy(points).item(), rel=1e-2)


@pytest.mark.parametrize("n_equal", [1, 2, 5])
@pytest.mark.parametrize("delta", [0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("seed", range(5))
def test_top_singular_values_close_together(n_equal, delta, seed):
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(300, 80, dtype=torch.float64, generator=generator)
    right = torch.randn(80, 80, dtype=torch.float64, generator=generator)
    values = torch.ones(80, dtype=torch.float64)
    values[: n_equal + 1] = 3 * (1 - delta)
    values[0] = 3
    points = torch.linalg.qr(left - left.mean(0)).Q * values @ torch.linalg.qr(right).Q
    assert anisotropy(points.float()).item() == pytest.approx((9 / values.square().sum()).item(), rel=1e-6)


def test_iteration_is_taken_where_it_pays(monkeypatch):
    def refuse(tall):
        raise AssertionError("the Gram matrix was built")

    monkeypatch.setattr(module, "_exact_share", refuse)
    for name in ("gaussian", "std_500_offset_3000", "rank_1", "d_gt_n", "equal_top_two", "heavy_tail", "sinks"):
        assert anisotropy(HOSTILE[name]()).item() == pytest.approx(naive_anisotropy(HOSTILE[name]()), rel=1e-7)


def test_exact_when_the_iteration_does_not_settle(monkeypatch):
    monkeypatch.setattr(module, "_MAX_STEPS", 8)
    points = HOSTILE["gaussian"]()
    assert module._iterated_share(Cloud(points).centred) is None
    assert anisotropy(points).item() == pytest.approx(naive_anisotropy(points), rel=1e-7)


def test_a_direction_that_is_not_principal_is_rejected(monkeypatch):
    monkeypatch.setattr(module, "_leading_direction", lambda tall: module._start(tall.shape[1]))
    points = HOSTILE["gaussian"]()
    assert module._iterated_share(Cloud(points).centred) is None
    assert anisotropy(points).item() == pytest.approx(naive_anisotropy(points), rel=1e-7)


def test_undefined_is_nan_with_a_reason():
    points = torch.zeros(10, 4)
    assert anisotropy(points).isnan()
    assert anisotropy(points).dtype == torch.float64
    with pytest.raises(Undefined, match=r"^1 distinct of 10 points, at least 3 needed$"):
        anisotropy_of(Cloud(points))
