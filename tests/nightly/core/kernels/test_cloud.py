import ast
import math
import pickle
import sys
from pathlib import Path

import pytest
import torch

import repdyn.kernels
from repdyn.kernels import Cloud, UndefinedError, cloud, full_precision

REPEATING = torch.tensor([[1.0, 2.0], [0.0, 5.0], [1.0, 2.0], [-0.0, 5.0], [3.0, 3.0], [1.0, 2.0]])


@pytest.mark.parametrize(
    "points",
    [
        torch.zeros(5),
        torch.zeros(2, 3, 4),
        torch.zeros(5, 0),
        torch.zeros(4, 2).long(),
        torch.zeros(4, 2).cfloat(),
    ],
    ids=["1 axis", "3 axes", "no coordinates", "integers", "complex"],
)
def test_what_is_no_cloud_is_refused(points):
    with pytest.raises(ValueError, match="expected points"):
        Cloud(points)


def _with(value):
    points = torch.eye(5)
    points[3, 1] = value
    return points


UNDEFINED = {
    "nan": (_with(math.nan), "the points contain NaN"),
    "inf": (_with(math.inf), "the points contain inf"),
    "minus_inf": (_with(-math.inf), "the points contain inf"),
    "nan_and_inf": (torch.tensor([[math.nan], [math.inf], [0]]), "the points contain NaN"),
    "none": (torch.zeros(0, 4), "0 distinct of 0 points, at least 3 needed"),
    "two_distinct": (torch.eye(2).repeat(50, 1), "2 distinct of 100 points, at least 3 needed"),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("points", "reason"), UNDEFINED.values(), ids=UNDEFINED.keys())
def test_undefined_clouds_say_why(points, reason, dtype):
    with pytest.raises(UndefinedError) as caught:
        Cloud(points.to(dtype)).require_defined()
    assert caught.value.reason == str(caught.value) == reason


def test_undefined_survives_pickling():
    assert pickle.loads(pickle.dumps(UndefinedError("why"))).reason == "why"


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_distinct_rows_in_order_of_first_occurrence(dtype, columns):
    """Whether or not rows fill whole 64-bit words."""
    points = REPEATING[:, :columns].to(dtype)
    assert torch.equal(Cloud(points).distinct.points, points[[0, 1, 4]])


@pytest.mark.parametrize(
    "hashes", [torch.zeros_like, lambda x: x // 3], ids=["all_collide", "some_collide"]
)
def test_rows_that_share_a_hash_are_told_apart(monkeypatch, hashes):
    generator = torch.Generator().manual_seed(0)
    points = torch.randint(4, (200, 3), generator=generator).float()
    expected = Cloud(points).distinct.points
    assert len(expected) == len({tuple(row) for row in points.tolist()}) < 200
    monkeypatch.setattr(cloud, "_row_hashes", lambda words: hashes(torch.arange(len(words))))
    assert torch.equal(Cloud(points).distinct.points, expected)


def test_distinct_does_not_copy_when_nothing_repeats():
    points = torch.randn(50, 8)
    assert Cloud(points).distinct.points.data_ptr() == points.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_centred(dtype):
    points = (torch.randn(3000, 70, generator=torch.Generator().manual_seed(0)) + 100).to(dtype)
    centred = Cloud(points).centred
    assert centred.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    # the largest magnitude, about 104, comes down by 2**7
    exact = (points.double() - points.double().mean(0)) / 128
    # a deviation is rounded as those from a point amid the cloud are, some hundredths here
    torch.testing.assert_close(centred.double(), exact, rtol=2e-7, atol=1e-9)


@pytest.fixture
def precision():
    """Both generations of torch's setting, put back afterwards."""
    generic = torch.backends.fp32_precision
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.fp32_precision = generic
    torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"


def _settings():
    try:
        old = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to read the old setting once the new one disagrees with it
        old = "disagrees"
    return (
        old,
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.mkldnn.matmul.fp32_precision,
    )


def _set_parent():
    torch.backends.fp32_precision = "tf32"


def _set_product():
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def _set_old_flag():
    torch.backends.cuda.matmul.allow_tf32 = True


USERS = {
    "default": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "allow_tf32": _set_old_flag,
    "new_for_everything": _set_parent,
    "new_for_products": _set_product,
}


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("user", USERS)
def test_exact_arithmetic_sets_and_restores_precision(user):
    USERS[user]()
    before = _settings()
    with full_precision("cpu"):
        assert _settings() == ("highest", "ieee", "ieee")
        assert torch.backends.cuda.matmul.allow_tf32 is False
    assert _settings() == before


@pytest.mark.usefixtures("precision")
def test_exact_arithmetic_restores_after_an_error():
    USERS["medium"]()
    before = _settings()
    with pytest.raises(KeyError), full_precision("cpu"):
        raise KeyError
    assert _settings() == before


def test_exact_arithmetic_turns_autocast_and_autograd_off():
    weights = torch.ones(4, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(torch.device("cpu")):
        product = weights @ weights
    assert product.dtype == torch.float32
    assert not product.requires_grad


MODULES = sorted(Path(repdyn.kernels.__file__).parent.glob("*.py"))


def _imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield node.module


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_kernels_import_torch_and_the_standard_library_alone(path):
    allowed = {"torch", *sys.stdlib_module_names}
    for name in _imported(ast.parse(path.read_text())):
        assert name.split(".")[0] in allowed or name.startswith("repdyn.kernels"), (
            f"{path.name} imports {name}"
        )
