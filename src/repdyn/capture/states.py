"""The states of all layers: which row is which token's, in memory up to a limit, in temporary files beyond it.

A tensor in a file is read and written like any other; the system keeps as much of it in RAM as it can spare. The file
has no name: what it takes on the disk is free again with the tensor's last view, or with the process, however it ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile, gettempdir
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

STATES_BYTES = 2 << 30

CaptureKind: TypeAlias = Literal["following", "last", "after_attention", "attention_weights", "embeddings", "previous_checkpoint"]
"""What may be captured beside a layer's own states: the next and the last layer's, the states between a block's
attention and its feed-forward part, attention weights, the input embeddings; those of the checkpoint before."""


@dataclass(frozen=True)
class LayerStates:
    """One layer's vectors of the sampled tokens."""

    index: int
    depth: float
    module: str
    states: Tensor
    """(n_sampled, dim), on ``device`` or in a file, rows as ``States.rows_of`` tells."""
    device: torch.device
    """Where the model had them."""
    stack: str | None = None
    """Name of the stack it belongs to, in a model that has several."""
    after_attention: Tensor | str | None = None
    """(n_sampled, dim) what entered the block with its attention's output added, or why there is none; None where it
    was not asked for."""

    @property
    def is_last(self) -> bool:
        """Whether no layer of its stack comes after it."""
        return self.depth == 1.0


@dataclass(frozen=True)
class States:
    """The layers' vectors of the sampled tokens, from one pass over the probe."""

    layers: list[LayerStates]
    """Those that have not been taken."""
    rows: np.ndarray
    """(n_tokens,) each token's row in the states of every layer, -1 where it is not sampled."""
    beside: list[LayerStates] = field(default_factory=list)
    """Layers that other ranks measure, and those here are compared with."""
    embeddings: Tensor | str = "the input embeddings were not asked for"
    """(vocabulary, dim) the table that turned the probe's tokens into vectors; or why it is not known."""

    def take(self) -> LayerStates:
        """The next layer, its states on its device. Its memory is free again when the caller lets go of it."""
        layer = self.layers.pop(0)
        self.beside[:] = [other for other in self.beside if other.is_last or not _is_past(other, layer)]
        return replace(layer, states=layer.states.to(layer.device))

    def following(self, layer: LayerStates) -> Tensor:
        """The states of the layer that comes after one that was taken, (n_sampled, dim), wherever they wait."""
        return self._of(layer.stack, lambda other: other.index == layer.index + 1)

    def last(self, layer: LayerStates) -> Tensor:
        """The states of the last layer of a taken one's stack; those of the layer itself are not looked for."""
        return self._of(layer.stack, lambda other: other.is_last)

    def _of(self, stack: str | None, wanted: Callable[[LayerStates], bool]) -> Tensor:
        return next(other.states for other in (*self.layers, *self.beside) if other.stack == stack and wanted(other))

    def rows_of(self, tokens: np.ndarray) -> slice | Tensor:
        """Where the given token numbers stand in each layer's states, as a slice (a view, no copy) where they can be.

        Raises:
            ValueError: a token that is not sampled.
        """
        rows = self.rows[tokens]
        if (rows < 0).any():
            raise ValueError(
                f"expected tokens that were sampled, got {(rows < 0).sum()} of {len(rows)} that were not; name their "
                "subset in capture(..., subsets)"
            )
        return slice(rows[0], rows[-1] + 1) if (np.diff(rows) == 1).all() else torch.from_numpy(rows)


def _is_past(other: LayerStates, layer: LayerStates) -> bool:
    return other.stack == layer.stack and other.index <= layer.index


class Buffers:
    """Makes one buffer after another, of which those in memory take ``limit`` bytes at most, all together.

    Args:
        limit: bytes.
        n_expected: how many buffers will be asked for, to tell the space they need should there be too little.
    """

    def __init__(self, limit: int, n_expected: int) -> None:
        self._left = limit
        self._n_to_come = n_expected

    def new(self, n_rows: int, like: Tensor) -> Tensor:
        """(n_rows, dim), uninitialised: dim and dtype of ``like`` (any, dim), on its device or in a file.

        Raises:
            OSError: the temporary folder has too little space.
        """
        n_bytes = n_rows * like.shape[1] * like.itemsize
        if n_bytes <= self._left:
            self._left -= n_bytes
            buffer = like.new_empty(n_rows, like.shape[1])
        else:
            buffer = torch.frombuffer(self._file(n_bytes), dtype=like.dtype).view(n_rows, like.shape[1])
        self._n_to_come -= 1
        return buffer

    def _file(self, n_bytes: int) -> mmap.mmap:
        with TemporaryFile(prefix="repdyn-states-") as file:
            try:
                _reserve(file.fileno(), n_bytes)
            except OSError as error:
                file.truncate(0)  # what was reserved of it counts as free
                needed, free = n_bytes * max(1, self._n_to_come), shutil.disk_usage(gettempdir()).free
                raise OSError(
                    f"expected at least {needed / 1e9:.1f} GB of free space in {gettempdir()} for the states of layers "
                    f"beyond states_bytes, got {free / 1e9:.1f} GB ({error.strerror}); set TMPDIR to a folder with "
                    "more, take a probe of fewer vectors, or raise states_bytes"
                ) from error
            return mmap.mmap(file.fileno(), n_bytes)


def assembled(pieces: Sequence[Tensor], places: Sequence[np.ndarray], buffers: Buffers, like: Tensor) -> Tensor:
    """Bring pieces of a layer's states together.

    Args:
        pieces: each (n, dim), of which the first so many vectors count as it has places.
        places: of each piece the rows its vectors go to.
        buffers: makes the whole, (n_rows, dim).
        like: states of that dim and dtype, on the device that is wanted.
    """
    whole = buffers.new(sum(map(len, places)), like)
    for piece, rows in zip(pieces, places, strict=True):
        whole[torch.from_numpy(rows)] = piece[: len(rows)].to(whole.device)
    return whole


def _reserve(file: int, n_bytes: int) -> None:
    """Give an open file its size and its place on the disk: a disk found full on writing would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, n_bytes)
    elif shutil.disk_usage(gettempdir()).free < n_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    else:
        os.truncate(file, n_bytes)
