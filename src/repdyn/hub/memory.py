"""Determine the memory of a checkpoint before it is loaded: a file of 4 kB can describe tensors of any size."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

import psutil
import torch
from safetensors import safe_open
from torch import Tensor, nn

from repdyn.hub.errors import CheckpointError

_MOST_COPIES = 4
"""How often the tensors of a file may repeat its values: T5 saves its embeddings up to four times, tied."""
_MOST_PER_BYTE = 2
"""Largest number of a model's weights for each byte of its files, in which most take 2 bytes; a few may be missing."""
_MOST_PER_BYTE_QUANTISED = 8  # of one bit each


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
        CheckpointError: the file does not hold every value of the tensors, since a tensor repeats some by its strides,
            or many tensors share the same ones.
    """
    tensors = [value for value in values if isinstance(value, Tensor)]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    n_bytes = path.stat().st_size
    total = sum(map(_n_bytes, tensors))
    repeating = any(_n_bytes(tensor) > tensor.untyped_storage().nbytes() for tensor in tensors)
    if repeating or sum(storages.values()) > n_bytes or total > _MOST_COPIES * n_bytes:
        raise CheckpointError(
            f"{path.name} holds {n_bytes:,} bytes, and its tensors would take {total:,}: their values are repeated, "
            "which is not supported"
        )
    return total


def memory_of_weights(path: Path, dtype: torch.dtype | None) -> float:
    """Return the memory in bytes of the weights of a file in a precision, None for their own; 0 for other files.

    Raises:
        CheckpointError: as :func:`memory_of`.
        SafetensorError: the file is damaged.
    """
    if path.suffix == ".bin":
        return memory_of_file(path)
    if path.suffix != ".safetensors":
        return 0
    with safe_open(path, framework="pt") as weights:  # raises an error for a file that was cut off
        first = next(iter(weights.keys()), None)
        stored = weights.get_tensor(first).dtype if dtype and first else None
    return path.stat().st_size * (dtype.itemsize / stored.itemsize if dtype and stored else 1)


def require_free_memory(n_bytes: float, precision: str, remedy: str) -> None:
    """Check that weights fit into memory: Linux would kill the process otherwise.

    Args:
        n_bytes: what they take.
        precision: their precision, for the message.
        remedy: what to do if they do not fit.

    Raises:
        CheckpointError: less is free.
    """
    available = psutil.virtual_memory().available
    if n_bytes > available:
        raise CheckpointError(
            f"out of memory: its weights take {n_bytes / 1e9:.1f} GB in {precision}, and {available / 1e9:.1f} GB are "
            f"free; {remedy}"
        )


def memory_of_model(model: nn.Module, dtype: torch.dtype) -> int:
    """Return the memory in bytes of a model whose parameters have this precision; buffers have their own."""
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return n_parameters * dtype.itemsize + sum(map(_n_bytes, model.buffers()))


def require_weights_for(model: nn.Module, n_bytes: int, *, quantised: bool) -> None:
    """Check that files can hold the weights of a model, which would otherwise be created at random first.

    Args:
        model: the model that the configuration describes, without values (on the meta device).
        n_bytes: size of its weight files.
        quantised: the files may hold several weights in a byte.

    Raises:
        CheckpointError: they are too small.
    """
    n_weights = sum(parameter.numel() for parameter in model.parameters())
    if n_weights > n_bytes * (_MOST_PER_BYTE_QUANTISED if quantised else _MOST_PER_BYTE):
        raise CheckpointError(
            f"its configuration describes {type(model).__name__} with {n_weights:,} weights, and its files hold "
            f"{n_bytes:,} bytes, too few for them; config.json belongs to another model"
        )


def _n_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
