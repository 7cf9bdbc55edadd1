"""One tester that every metric goes through: :class:`MetricTester` checks a metric against its
entry in ``metric_cases.py``.
"""

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from metric_cases import CASES, DIM, MetricCase, N, normal
from pretend_cuda import PretendCuda
from torch import Tensor

from repdyn.kernels import UndefinedError
from repdyn.metrics import METRICS, Metric
from repdyn.metrics.request import requested

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def _turned(x: Tensor, place: int) -> Tensor:
    return x @ torch.linalg.qr(normal(x.shape[1], x.shape[1], seed=9 + place)).Q


CHANGES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "translation": lambda x, place: x + torch.linspace(-1, 3 + place, x.shape[1]),
    "rotation": _turned,
    "scale": lambda x, place: x * (3.7 + place),
}
"""Changes of a cloud, by its place among the inputs."""
DEGENERATE: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like,
    "constant": lambda x: torch.full_like(x, 1.5),
}
# small enough for several chunks of the inputs above
CHUNKS: dict[str, Any] = {
    "classes.CHUNK": 5 * N,
    "classes._ROWS": 7,
    "cloud._CHUNK": 600,
    "dimension._CHUNK": 64 * 64 * DIM,
    "lens._LOGITS": 350,
    "linear_map._ROWS": 7,
    "local._CHUNK": 5 * 64 * DIM,
    "search._CPU_CHUNK": 2048,
    "search._TILE": 64,
    "shared_neighbours._ROWS": 7,
    "topics.CHUNK": 5 * N,
    "vocabulary._ROWS": {"cpu": 7},
    "vocabulary._VECTOR_CHUNK": 11,
}


class MetricTester:
    """Checks a metric against its case, by the path that a measurement takes."""

    def __init__(self, metric: Metric, case: MetricCase) -> None:
        self.case = case
        self.request = requested(metric, "all", {})

    def tensors(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        return [x.to(dtype) if x.is_floating_point() else x for x in self.case.inputs()]

    def value(self, tensors: list[Tensor]) -> Tensor:
        return self.request.compute(*self.case.wrap(*tensors))

    def check_definition(self, dtype: torch.dtype) -> None:
        """Compare the value in a precision with the oracle's of the same numbers."""
        rel = self.case.rel if dtype == torch.float64 else max(self.case.rel, 1e-5)
        self.check_value(self.tensors(dtype), rel)

    def check_value(self, tensors: list[Tensor], rel: float) -> None:
        """Compare the value with the oracle's: it is float64 in any precision, and within the range
        that the metric promises.
        """
        arrays = [(x.double() if x.is_floating_point() else x).numpy() for x in tensors]
        expected = np.asarray(self.case.oracle(*arrays, **self.request.settings), np.float64)
        value = self.value(tensors)
        assert value.dtype == torch.float64
        assert value.shape == expected.shape
        assert value.tolist() == pytest.approx(expected.tolist(), rel=rel, abs=1e-12)
        low, high = self.request.metric.range
        assert bool(((value >= low) & (value <= high)).all())

    def check_invariances(self) -> None:
        """Change the clouds in all ways: the value moves if and only if the case says so."""
        tensors = self.tensors()
        before = self.value(tensors)
        for name, change in CHANGES.items():
            of_each = f"{name} of each"
            if tensors[0].ndim == 2:
                together = [change(x, 0) if x.is_floating_point() else x for x in tensors]
                self._compare(before, together, {name, of_each}, name)
            if of_each in self.case.invariant:
                apart = [
                    change(x, place) if x.is_floating_point() else x
                    for place, x in enumerate(tensors)
                ]
                self._compare(before, apart, {of_each}, of_each)
        self._compare(before, _permuted(tensors), {"permutation"}, "permutation")

    def _compare(self, before: Tensor, tensors: list[Tensor], names: set[str], what: str) -> None:
        after = self.value(tensors)
        is_equal = torch.allclose(after, before, rtol=max(self.case.rel, 1e-8), atol=1e-10)
        if names & self.case.invariant:
            assert is_equal, f"{what} moves {self.request.name}: {before} became {after}"
        elif not self.case.is_count:
            assert not is_equal, f"{what} leaves {self.request.name} as it is: say so in its case"

    def check_surroundings(self) -> None:
        """Compute it amid autocast, gradients, another default dtype and a lower precision of
        products: none changes the value, and it changes none of them, nor its inputs.
        """
        tensors = self.tensors(torch.float32)
        expected = self.value(tensors)
        before = [x.clone() for x in tensors]
        state = torch.get_rng_state()
        inputs = [x.requires_grad_() if x.is_floating_point() else x for x in tensors]
        torch.set_float32_matmul_precision("medium")
        torch.set_default_dtype(torch.float64)
        try:
            with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
                value = self.value(inputs)
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_float32_matmul_precision("highest")
        assert torch.equal(value, expected)
        assert not value.requires_grad
        assert torch.equal(torch.get_rng_state(), state)
        assert all(map(torch.equal, inputs, before))

    def check_undefined(self) -> None:
        """Give it NaN or inf, and clouds without any shape: no value, with the code of a reason."""
        tensors = self.tensors()
        for bad in (math.nan, math.inf):
            spoilt = tensors[0].clone()
            spoilt.select(-2, 3)[..., 1] = bad
            self._check_reason([spoilt, *tensors[1:]], "not_finite")
        for name, change in DEGENERATE.items():
            degenerate = [change(x) if x.is_floating_point() else x for x in tensors]
            self._check_reason(degenerate, self.case.reasons.get(name))

    def _check_reason(self, tensors: list[Tensor], code: str | None) -> None:
        if code is None:
            assert bool(self.value(tensors).isfinite().all())
            return
        error = self._why_undefined(tensors)
        assert error is not None, f"{self.request.name} has a value, expected {code}"
        assert error.code == code, error.reason
        kernel = self.request.metric.function
        if hasattr(kernel, "or_raise"):
            value = kernel(*self.case.wrap(*tensors), **self.request.settings)
            assert value.dtype == torch.float64
            assert bool(value.isnan().all())

    def _why_undefined(self, tensors: list[Tensor]) -> UndefinedError | None:
        try:
            self.value(tensors)
        except UndefinedError as error:
            return error
        return None

    def check_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compute it in many chunks: a sum that forgets one is another."""
        whole = self.value(self.tensors(torch.float32))
        for name, value in CHUNKS.items():
            module, constant = name.split(".")
            kernels = importlib.import_module(f"repdyn.kernels.{module}")
            assert hasattr(kernels, constant), f"{name} is no more"
            monkeypatch.setattr(kernels, constant, value)
        in_chunks = self.value(self.tensors(torch.float32))
        torch.testing.assert_close(in_chunks, whole, rtol=1e-9, atol=1e-12)

    def check_device(self) -> None:
        """Compute it on a pretended GPU: the value stays there, and is that of the CPU."""
        expected = self.value(self.tensors(torch.float32))
        with PretendCuda():
            value = self.value([x.to("cuda") for x in self.tensors(torch.float32)])
            assert value.is_cuda
            value = value.cpu()
        torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-12)


def _permuted(tensors: list[Tensor]) -> list[Tensor]:
    """Return rows in another order; of attention weights, positions."""
    n = tensors[0].shape[-2]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(6))
    return [
        x[:, order][:, :, order] if x.ndim == 3 else x[order] if len(x) == n else x for x in tensors
    ]


def case_tester(name: str) -> MetricTester:
    return MetricTester(METRICS[name], CASES[name])
