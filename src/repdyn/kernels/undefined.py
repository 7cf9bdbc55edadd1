"""Kernels return NaN where they are undefined, or raise the reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, Protocol, cast

import torch
from torch import Tensor

P = ParamSpec("P")


class Undefined(ArithmeticError):
    """The quantity does not exist for this cloud; ``reason`` says why, in words fit for a table."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Kernel(Protocol[P]):
    """A function of point clouds, sequences or attention weights that returns NaN where its value is undefined."""

    or_raise: Callable[P, Tensor]
    """The same function, which raises :class:`Undefined` with the reason instead."""
    std_error: Callable[..., Tensor] | None
    """The standard error of the value: a function of the same arguments and ``windows``, integers (n_vectors,), which
    names the window of text that each vector comes from. None where none is known."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...


def nan_if_undefined(compute: Callable[P, Tensor], std_error: Callable[..., Tensor] | None = None) -> Kernel[P]:
    """Turn a function that raises :class:`Undefined` into a kernel that returns NaN instead.

    The NaN is float64, on the device of the first argument, (n_vectors, dim), a Cloud or Sequences: one number; of
    attention weights (heads, n, n): one for each head. ``kernel.or_raise`` is the function itself, and
    ``kernel.std_error`` the one given.

    Example:
        >>> @nan_if_undefined
        ... def mean_length(x: Tensor) -> Tensor:
        ...     if len(x) == 0:
        ...         raise Undefined("0 vectors, at least 1 needed")
        ...     return x.double().norm(dim=1).mean()
        >>> mean_length(torch.ones(0, 3))
        tensor(nan, dtype=torch.float64)
        >>> mean_length.or_raise(torch.ones(0, 3))
        Traceback (most recent call last):
        repdyn.kernels.undefined.Undefined: 0 vectors, at least 1 needed
    """
    first = next(iter(signature(compute).parameters))

    @wraps(compute)
    def kernel(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        try:
            return compute(*args, **kwargs)
        except Undefined:
            points: Any = args[0] if args else kwargs[first]
            x: Tensor = points if isinstance(points, Tensor) else points.x
            return x.new_full(x.shape[:-2], torch.nan, dtype=torch.float64)

    result: Any = kernel
    result.or_raise, result.std_error = compute, std_error
    return cast(Kernel[P], result)


def mean_over_vectors(values: Callable[P, Tensor]) -> Kernel[P]:
    """Turn a function that returns one value for each vector, shape (n_vectors,), into a kernel: their mean.

    Its standard error treats the vectors of a window as dependent, and windows as independent.
    """

    @wraps(values)
    def compute(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        return values(*args, **kwargs).mean()

    def std_error(*args: Any, windows: Tensor, **kwargs: Any) -> Tensor:
        of_vectors = values(*args, **kwargs)
        return error_of_sums(sums_by_group(of_vectors - of_vectors.mean(), windows)) / len(of_vectors)

    return nan_if_undefined(compute, std_error)


def sums_by_group(values: Tensor, groups: Tensor) -> Tensor:
    """Return the sum of the values, shape (n,), over each group, in the order of the groups' numbers."""
    names, number = groups.unique(return_inverse=True)
    return values.new_zeros(len(names)).index_add_(0, number, values)


def error_of_sums(of_window: Tensor) -> Tensor:
    """Return the standard error of the sum of independent terms whose expected sum is 0, one for each window."""
    n_windows = len(of_window)
    return (of_window.square().sum() * n_windows / (n_windows - 1)).sqrt()
