import importlib
from unittest.mock import Mock

import pytest
import torch
from hostile import HOSTILE, naive_anisotropy

from repdyn.kernels import Cloud, UndefinedError, anisotropy

# the package exports the function under the module's name
module = importlib.import_module("repdyn.kernels.anisotropy")


def test_a_cross_of_points_splits_its_variance_evenly():
    assert anisotropy(torch.cat([torch.eye(70), -torch.eye(70)])).item() == pytest.approx(
        1 / 70, rel=1e-12
    )


def test_points_on_a_line_have_anisotropy_one():
    assert anisotropy(HOSTILE["rank_1"]()).item() == pytest.approx(1, rel=1e-7)


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
    assert anisotropy(points.float()).item() == pytest.approx(
        (9 / values.square().sum()).item(), rel=1e-6
    )


@pytest.fixture
def inexact(monkeypatch):
    """Without the last resort, the decomposition of the whole matrix in float64."""
    monkeypatch.setattr(module, "spectrum_of", lambda cloud: torch.tensor([torch.nan]))


@pytest.mark.parametrize(
    "name",
    sorted(
        set(HOSTILE)
        - {"n_3", "n_5", "d_1", "integer_grid", "duplicates_95_percent", "int8", "relu_bfloat16"}
    ),
)
def test_iteration_alone_is_right(name, inexact):
    assert anisotropy(HOSTILE[name]()).item() == pytest.approx(
        naive_anisotropy(HOSTILE[name]()), rel=1e-7
    )


@pytest.mark.parametrize("on_a_device", [False, True])
@pytest.mark.parametrize("ratio", [1.5, 20])
def test_a_direction_that_the_start_lacks_is_noticed(ratio, on_a_device, monkeypatch):
    """The iteration stopped at the second direction, where the first one is at right angles to the
    random start and in two points, of which none is in the sample.
    """
    points = torch.zeros(400, 80, dtype=torch.float64)
    points[:, 0] = torch.linspace(-1, 1, 400, dtype=torch.float64)
    start = module._random_direction(80)
    hidden = torch.zeros(80, dtype=torch.float64)
    hidden[5:7] = torch.stack([start[6], -start[5]])
    hidden *= (ratio * points.square().sum() / hidden.square().sum() / 2).sqrt()
    points[[201, 198]] = torch.stack([hidden, -hidden])
    if on_a_device:
        monkeypatch.setattr(Cloud, "is_on_accelerator", True)
    assert anisotropy(points).item() == pytest.approx(naive_anisotropy(points), rel=1e-7)


@pytest.mark.parametrize("offset", [0, 1, 30, 3000])
@pytest.mark.parametrize("exponent", [-40, -10, 0, 10, 25])
def test_a_mean_and_a_unit_of_any_size(exponent, offset, inexact):
    points = (HOSTILE["low_rank"]() + offset) * 10.0**exponent
    assert anisotropy(points).item() == pytest.approx(naive_anisotropy(points.double()), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "is_shared"), [("gaussian", True), ("offset_3000", False), ("scale_1e30", False)]
)
def test_points_are_copied_only_where_they_must_be_centred(name, is_shared):
    points = HOSTILE[name]()
    assert (module._Scatter.of(Cloud(points)).points.data_ptr() == points.data_ptr()) == is_shared


@pytest.mark.parametrize("name", ["gaussian", "low_rank", "offset_3000", "d_gt_n"])
def test_the_scatter_matrix_and_its_products_agree(name):
    points = HOSTILE[name]()
    scatter = module._Scatter.of(Cloud(points))
    matrix = scatter.matrix()
    vector = module._start(scatter)
    torch.testing.assert_close(
        matrix @ vector, scatter.product(vector), rtol=1e-5, atol=1e-5 * matrix.max().item()
    )
    image, trace = scatter.product_and_trace(vector)
    torch.testing.assert_close(image, matrix @ vector, rtol=1e-5, atol=1e-5 * matrix.max().item())
    assert trace.item() == pytest.approx(matrix.trace().item(), rel=1e-5)
    assert torch.equal(matrix, matrix.T)


def test_without_a_gap_the_matrix_is_built_and_iterated_on(inexact, monkeypatch):
    points = torch.randn(1500, 300, generator=torch.Generator().manual_seed(0))
    matrix = Mock(wraps=module._Scatter.matrix)
    monkeypatch.setattr(module._Scatter, "matrix", lambda self: matrix(self))
    assert anisotropy(points).item() == pytest.approx(naive_anisotropy(points), rel=1e-7)
    assert matrix.call_count == 1


def test_exact_when_the_iteration_does_not_settle(monkeypatch):
    monkeypatch.setattr(module, "_MAX_STEPS", 6)
    monkeypatch.setattr(module, "_MAX_POINT_STEPS", 6)
    points = HOSTILE["gaussian"]()
    assert module._iterated(Cloud(points)) is None
    assert anisotropy(points).item() == pytest.approx(naive_anisotropy(points), rel=1e-7)


def test_a_direction_that_is_not_principal_is_rejected(monkeypatch):
    monkeypatch.setattr(module, "_leading_direction", lambda multiply, start, steps: (start, True))
    points = HOSTILE["gaussian"]()
    assert module._iterated(Cloud(points)) is None
    assert anisotropy(points).item() == pytest.approx(naive_anisotropy(points), rel=1e-7)


def test_undefined_is_nan_with_a_reason():
    points = torch.zeros(10, 4)
    assert anisotropy(points).isnan()
    assert anisotropy(points).dtype == torch.float64
    with pytest.raises(UndefinedError, match=r"^1 distinct of 10 points, at least 3 needed$"):
        anisotropy.or_raise(Cloud(points))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_layer_behind_a_collapsed_one_is_not_measured_by_its_rounding(dtype):
    """Attention over equal vectors gives vectors that differ in the last bits: they had an
    anisotropy of 0.35.
    """
    noise = torch.randn(300, 16, dtype=dtype) * 2 * torch.finfo(dtype).eps
    with pytest.raises(UndefinedError, match="rounding"):
        anisotropy.or_raise(1 + noise)
    assert anisotropy(1 + 1000 * noise).isfinite()
