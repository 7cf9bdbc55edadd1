"""Sizes of the tensors in a pickled file: a file of 4 kB can describe tensors that would take any memory."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from repdyn.hub.errors import CheckpointError


def memory_of_file(path: Path) -> int:
    """Return the memory in bytes that the tensors of a file take when each is loaded; their values are not read.

    Raises:
        CheckpointError: as :func:`memory_of`.
    """
    # only files of the former format cannot be mapped, which are no zip archives
    content = torch.load(path, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(path))
    return memory_of(content.values() if isinstance(content, dict) else (), path)


def memory_of(values: Iterable[object], path: Path) -> int:
    """Return the memory in bytes of the tensors among the values read from a file; shared ones count each time.

    Raises:
        CheckpointError: the file does not hold every value of the tensors, since a tensor repeats some by its strides.
    """
    tensors = [value for value in values if isinstance(value, Tensor)]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    n_bytes = path.stat().st_size
    repeating = any(_n_bytes(tensor) > tensor.untyped_storage().nbytes() for tensor in tensors)
    if repeating or sum(storages.values()) > n_bytes:
        raise CheckpointError(
            f"{path.name} holds {n_bytes:,} bytes, and its tensors would take "
            f"{sum(map(_n_bytes, tensors)):,}: their values are repeated, which is not supported"
        )
    return sum(map(_n_bytes, tensors))


def _n_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
