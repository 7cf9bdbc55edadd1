"""Both kernels against float64 oracles, on clouds that break careless ones, whatever the
surroundings.
"""

import pytest
import torch
from hostile import HOSTILE, naive_anisotropy, naive_two_nn

from repdyn.kernels import anisotropy, two_nn


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif("not torch.cuda.is_available()")]
        ),
    ]
)
def device(request):
    return request.param


@pytest.mark.parametrize("name", HOSTILE)
def test_anisotropy_is_that_of_a_float64_svd(name, device):
    points = HOSTILE[name]()
    # the contract is 1e-5; what holds on all of these is 1e-7
    assert anisotropy(points.to(device)).item() == pytest.approx(naive_anisotropy(points), rel=1e-7)


@pytest.mark.parametrize("name", HOSTILE)
def test_two_nn_is_that_of_brute_force_in_float64(name, device):
    points = HOSTILE[name]()
    # the contract is 1e-4; what holds on all of these is 1e-9
    assert two_nn(points.to(device)).item() == pytest.approx(naive_two_nn(points), rel=1e-9)


@pytest.mark.parametrize("kernel", [anisotropy, two_nn])
def test_results_are_float64_scalars_where_the_points_are(kernel, device):
    result = kernel(HOSTILE["bfloat16"]().to(device))
    assert result.shape == ()
    assert result.dtype == torch.float64
    assert result.device.type == device


@pytest.fixture
def medium_precision():
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"


SURROUNDINGS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference_mode": torch.inference_mode,
    "grad": torch.enable_grad,
}


@pytest.mark.parametrize("kernel", [anisotropy, two_nn])
@pytest.mark.parametrize("surroundings", SURROUNDINGS)
@pytest.mark.parametrize(
    "name",
    [
        "low_rank",
        "std_500_offset_3000",
        "duplicates_20_percent",
        "bfloat16",
        "float16",
        "transposed",
        "d_gt_n",
    ],
)
def test_surroundings_do_not_matter(kernel, surroundings, name):
    points = HOSTILE[name]()
    undisturbed = kernel(points)
    points.requires_grad_()
    with SURROUNDINGS[surroundings]():
        result = kernel(points)
    assert result.item() == undisturbed.item()
    assert not result.requires_grad


@pytest.mark.usefixtures("medium_precision")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_users_medium_precision_does_not_matter(name):
    points = HOSTILE[name]()
    assert anisotropy(points).item() == pytest.approx(naive_anisotropy(points), rel=1e-7)
    assert two_nn(points).item() == pytest.approx(naive_two_nn(points), rel=1e-9)
    assert torch.get_float32_matmul_precision() == "medium"


def _rotation(dim):
    return torch.linalg.qr(
        torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    ).Q


INVARIANCES = {
    "translation": lambda x: x + torch.linspace(-5, 50, x.shape[1]),
    "rotation": lambda x: x @ _rotation(x.shape[1]),
    "reflection": lambda x: -x,
    "scaling": lambda x: x * 3.7,
    "permutation": lambda x: x[torch.randperm(len(x), generator=torch.Generator().manual_seed(9))],
    "zero_columns": lambda x: torch.nn.functional.pad(x, (3, 40)),
}


@pytest.mark.parametrize("kernel", [anisotropy, two_nn])
@pytest.mark.parametrize("change", INVARIANCES)
@pytest.mark.parametrize(
    "name", ["gaussian", "low_rank", "duplicates_20_percent", "heavy_tail", "d_gt_n", "n_5"]
)
def test_invariances(kernel, change, name):
    points = HOSTILE[name]().double()
    assert kernel(INVARIANCES[change](points)).item() == pytest.approx(
        kernel(points).item(), rel=1e-8
    )
