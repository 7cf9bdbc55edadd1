"""What users hand to a kernel, as tensors: arrays of numpy and its kin, data frames, nested
lists."""

import os
from typing import Any

import torch
from torch import Tensor


def as_points(value: Any) -> Any:
    """Return the first argument of a kernel: points as a tensor, or what holds some in ``x``.

    Numbers in nested lists are float64; those of an array keep their type.

    Raises:
        TypeError: something else, with what to write.
    """
    points = as_tensor(value, dtype=torch.float64)
    if isinstance(points, Tensor) or isinstance(getattr(points, "x", None), Tensor):
        return points
    advice = "give it as torch.as_tensor(...)"
    if isinstance(value, str | os.PathLike):
        advice = "read the file first: numpy.load(path), torch.load(path)"
    raise TypeError(
        "expected vectors of shape (n_vectors, dim), as a tensor, an array, a data frame or nested "
        f"lists of numbers, got {type(value).__name__}; {advice}"
    )


def as_tensor(value: Any, dtype: torch.dtype | None = None) -> Any:
    """Return a tensor of an array, a data frame or nested lists, anything else as it is.

    Args:
        value: any argument of a kernel.
        dtype: of the numbers in nested lists; None for integers as int64, others as float32.

    Raises:
        TypeError: an array or list of something else than numbers.
        ValueError: lists of different lengths.
    """
    if isinstance(value, Tensor | str | int | float):
        return value
    # a named tuple is a record
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return _of_list(value, dtype)
    to_array = getattr(value, "__array__", None)
    if to_array is not None:
        return _of_array(to_array(), type(value).__name__)
    return value


def _of_list(values: Any, dtype: torch.dtype | None) -> Tensor:
    if values and all(isinstance(row, Tensor) for row in values):
        return torch.stack(list(values))
    try:
        return torch.tensor(values, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        if "sequence of length" in str(error):
            raise ValueError(f"expected lists of one length, got others: {error}") from error
        raise TypeError(f"expected nested lists of numbers, got others: {error}") from error


def _of_array(array: Any, kind: str) -> Tensor:
    if array.dtype.kind == "O":  # a data frame with columns of several types
        try:
            array = array.astype("float64")
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"expected numbers, got a {kind} with something else: {error}; select its columns "
                "of numbers first"
            ) from error
    if array.dtype.kind == "f" and (array.dtype.itemsize > 8 or not array.dtype.isnative):
        array = array.astype("float64")
    # torch takes no other; and the last bits of a value do not depend on the order in memory
    if not (array.flags.writeable and array.flags.c_contiguous):
        array = array.copy()
    try:
        return torch.as_tensor(array)
    except TypeError as error:
        raise TypeError(f"expected numbers, got a {kind} of {array.dtype}") from error
