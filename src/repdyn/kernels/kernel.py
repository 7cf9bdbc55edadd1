"""What makes a function of points a kernel: it computes in full precision, and returns NaN where
its value does not exist.

- :class:`UndefinedError`: why there is no value.
- :func:`nan_if_undefined`, :func:`mean_over_vectors`: turn a function into a :class:`Kernel`.
- :func:`full_precision`: the settings of torch under which kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import Tensor

from repdyn.kernels.arguments import as_points, as_tensor

P = ParamSpec("P")
Result = TypeVar("Result")


UndefinedCode = Literal["not_finite", "few_distinct", "rounding", "undefined"]
"""Kinds of reasons: NaN or inf in the states, fewer distinct vectors than are needed, vectors that
differ by rounding alone, and all others."""


class UndefinedError(ArithmeticError):
    """The quantity does not exist for this cloud; ``reason`` says why, in words fit for a table,
    and ``code`` of what kind that is.
    """

    def __init__(self, reason: str, code: UndefinedCode = "undefined") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code: UndefinedCode = code


class Kernel(Protocol[P]):
    """A function of clouds, sequences or attention weights that returns NaN where its value is
    undefined.
    """

    or_raise: Callable[P, Tensor]
    """The same function, which raises :class:`UndefinedError` with the reason instead."""
    std_error: Callable[..., Tensor] | None
    """The standard error of the value: a function of the same arguments and ``windows``, integers
    (n_vectors,), which names the window of text that each vector comes from. None where none is
    known."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...


def nan_if_undefined(
    compute: Callable[P, Tensor], std_error: Callable[..., Tensor] | None = None
) -> Kernel[P]:
    """Turn a function that raises :class:`UndefinedError` into a kernel that returns NaN instead,
    in full precision.

    The NaN is float64, on the device of the first argument, (n_vectors, dim), a Cloud or Sequences:
    one number; of attention weights (heads, n, n): one for each head. ``kernel.or_raise`` is the
    function itself, and ``kernel.std_error`` the one given.

    Example:
        >>> @nan_if_undefined
        ... def mean_length(x: Tensor) -> Tensor:
        ...     if len(x) == 0:
        ...         raise UndefinedError("0 vectors, at least 1 needed")
        ...     return x.double().norm(dim=1).mean()
        >>> mean_length(torch.ones(0, 3))
        tensor(nan, dtype=torch.float64)
        >>> mean_length.or_raise(torch.ones(0, 3))
        Traceback (most recent call last):
        repdyn.kernels.kernel.UndefinedError: 0 vectors, at least 1 needed
    """
    or_raise = in_full_precision(compute)
    first = next(iter(signature(compute).parameters))

    @wraps(compute)
    def kernel(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        try:
            return or_raise(*args, **kwargs)
        except UndefinedError:
            points = as_points(args[0] if args else kwargs[first])
            x: Tensor = points if isinstance(points, Tensor) else points.x
            return x.new_full(x.shape[:-2], torch.nan, dtype=torch.float64)

    result: Any = kernel
    result.or_raise = or_raise
    result.std_error = None if std_error is None else in_full_precision(std_error)
    return cast(Kernel[P], result)


def in_full_precision(compute: Callable[P, Result]) -> Callable[P, Result]:
    """Turn a function of points, a Cloud or Sequences into one that computes in
    :func:`full_precision`.

    It takes arrays, data frames and nested lists in the place of tensors.
    """
    first = next(iter(signature(compute).parameters))

    @wraps(compute)
    def computed(*args: Any, **kwargs: Any) -> Result:
        if args:
            points, *others = args
            points = as_points(points)
            args = (points, *map(as_tensor, others))
        else:
            points = as_points(kwargs.get(first))
            kwargs = kwargs | {first: points}
        kwargs = {name: as_tensor(value) for name, value in kwargs.items()}
        with full_precision((points if isinstance(points, Tensor) else points.x).device):
            return compute(*args, **kwargs)

    return cast("Callable[P, Result]", computed)


def mean_over_vectors(values: Callable[P, Tensor]) -> Kernel[P]:
    """Turn a function that returns one value for each vector, shape (n_vectors,), into a kernel:
    their mean.

    Its standard error treats the vectors of a window as dependent, and windows as independent.
    """

    @wraps(values)
    def compute(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        return values(*args, **kwargs).mean()

    @wraps(values)
    def std_error(*args: Any, windows: Tensor, **kwargs: Any) -> Tensor:
        of_vectors = values(*args, **kwargs)
        return error_of_sum(of_vectors - of_vectors.mean(), windows) / len(of_vectors)

    return nan_if_undefined(compute, std_error)


def error_of_sum(values: Tensor, windows: Tensor) -> Tensor:
    """Return the standard error of a sum of values (n,), 0 in expectation, whose sums over windows
    are independent.
    """
    names, number = windows.unique(return_inverse=True)
    of_window = values.new_zeros(len(names)).index_add_(0, number, values)
    n_windows = len(names)
    # C times the sample variance of the windows' sums, whose mean is taken as 0
    return (of_window.square().sum() * n_windows / (n_windows - 1)).sqrt()


@contextmanager
def full_precision(device: torch.device | str) -> Iterator[None]:
    """Compute matrix products on ``device`` in full float32 precision, without autocast and
    autograd.

    All settings are restored on exit. The precision of products is a setting of the process, so
    other threads see it.
    """
    # From 2.9 on torch has an old and a new copy of this setting, and reading the old one raises an
    # error if they disagree: so the new one is set before the old one is read, and both agree
    # inside.
    backends: Any = torch.backends  # torch's annotations leave out the new copy
    cuda = backends.cuda.matmul
    copies = []
    if hasattr(cuda, "fp32_precision") and hasattr(backends.mkldnn, "matmul"):
        for product, parent in ((cuda, backends.cudnn), (backends.mkldnn.matmul, backends.mkldnn)):
            # a product without a precision of its own reports its parent's, which must not become
            # its own
            precision = product.fp32_precision
            copies.append((product, "none" if precision == parent.fp32_precision else precision))
            product.fp32_precision = "ieee"
    before = torch.get_float32_matmul_precision()
    # otherwise partial sums of bfloat16 products may be rounded to bfloat16
    before_sums = cuda.allow_bf16_reduced_precision_reduction
    cuda.allow_bf16_reduced_precision_reduction = False
    try:
        torch.set_float32_matmul_precision("highest")
        with torch.no_grad(), torch.autocast(torch.device(device).type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
        cuda.allow_bf16_reduced_precision_reduction = before_sums
        for product, precision in copies:
            product.fp32_precision = precision
