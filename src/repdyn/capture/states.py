"""The states of all layers, in memory up to a limit and in temporary files beyond it.

A tensor in a file is read and written like any other; the system keeps as much of it in RAM as it can. The file has no
name: its space is freed with the tensor's last view, or with the process, however it ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile, gettempdir
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from repdyn.probe import ProbeBatch
from repdyn.utils.distributed import Ranks

STATES_BYTES = 2 << 30

CaptureKind: TypeAlias = Literal[
    "following",
    "last",
    "after_attention",
    "attention_weights",
    "embeddings",
    "output_head",
    "previous_checkpoint",
    "whole_windows",
]
"""What can be captured in addition to a layer's own states: the next and the last layer's, the states between a block's
attention and its feed-forward part, attention weights, the input embeddings, the output head; the states of the
previous checkpoint; all tokens of some windows of the probe."""


@dataclass(frozen=True)
class LayerStates:
    """One layer's vectors of the sampled tokens."""

    index: int
    depth: float
    module: str
    states: Tensor
    """(n_sampled, dim), on ``device`` or in a file, rows as in ``States.rows_of``."""
    device: torch.device
    """Where the model had them."""
    stack: str | None = None
    """Name of the stack it belongs to, in a model that has several."""
    after_attention: Tensor | str | None = None
    """(n_sampled, dim) the block's input plus its attention's output, or why there is none; None where it was not
    captured."""
    autocast: torch.dtype | None = None
    """Precision of the autocast that the model's own forward pass entered; None where it entered none."""

    @property
    def is_last(self) -> bool:
        """Return whether it is the last layer of its stack."""
        return self.depth == 1.0

    @property
    def precision(self) -> str:
        """Return the precision in which the states were computed, such as "float32" or "bfloat16 autocast"."""
        if self.autocast in {None, self.states.dtype}:
            return str(self.states.dtype).removeprefix("torch.")
        return f"{str(self.autocast).removeprefix('torch.')} autocast"


@dataclass(frozen=True)
class States:
    """The layers' vectors of the sampled tokens, from one pass over the probe."""

    layers: list[LayerStates]
    """Those that have not been taken yet."""
    rows: np.ndarray
    """(n_tokens,) each token's row in the states of every layer, -1 where it is not sampled."""
    references: list[LayerStates] = field(default_factory=list)
    """Layers that other ranks measure and that layers of this rank are compared with."""
    embeddings: Tensor | str = "the input embeddings were not captured"
    """(vocabulary, dim) the model's input embedding; or why it is not known."""

    def __iter__(self) -> Iterator[LayerStates]:
        """Take one layer after the other."""
        while self.layers:
            yield self.take()

    def take(self) -> LayerStates:
        """Remove and return the next layer, its states on its device."""
        layer = self.layers.pop(0)
        self.references[:] = [
            other
            for other in self.references
            if other.is_last or other.stack != layer.stack or other.index > layer.index
        ]
        return replace(layer, states=layer.states.to(layer.device))

    def following(self, layer: LayerStates) -> Tensor:
        """Return the states of the layer after one that was taken, (n_sampled, dim), on any device."""
        return self._of(layer.stack, lambda other: other.index == layer.index + 1)

    def last(self, layer: LayerStates) -> Tensor:
        """Return the states of the last layer in the stack of one that was taken, which must not be the last itself."""
        return self._of(layer.stack, lambda other: other.is_last)

    def _of(self, stack: str | None, wanted: Callable[[LayerStates], bool]) -> Tensor:
        return next(
            other.states for other in (*self.layers, *self.references) if other.stack == stack and wanted(other)
        )

    def rows_of(self, tokens: np.ndarray) -> slice | Tensor:
        """Return the rows of the given tokens in each layer's states, as a slice (a view, no copy) where possible."""
        rows = self.rows[tokens]
        if (rows < 0).any():
            raise ValueError(
                f"expected tokens that were sampled, got {(rows < 0).sum()} of {len(rows)} that were not; name their "
                "subset in capture(..., subsets)"
            )
        return slice(rows[0], rows[-1] + 1) if (np.diff(rows) == 1).all() else torch.from_numpy(rows)


class Buffers:
    """An allocator of buffers, which take at most ``limit`` bytes of memory all together; further ones are in files."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def new(self, n_rows: int, like: Tensor) -> Tensor:
        """Return (n_rows, dim), uninitialised: dim and dtype of ``like`` (any, dim), on its device or in a file."""
        n_bytes = n_rows * like.shape[1] * like.itemsize
        if n_bytes <= self._left:
            self._left -= n_bytes
            return like.new_empty(n_rows, like.shape[1])
        with TemporaryFile(prefix="repdyn-states-") as file:
            try:
                _reserve(file.fileno(), n_bytes)
            except OSError as error:
                file.truncate(0)  # frees what was reserved
                free = shutil.disk_usage(gettempdir()).free
                raise OSError(
                    f"expected {n_bytes / 1e9:.1f} GB of free space in {gettempdir()} for the states of each layer "
                    f"beyond states_bytes, got {free / 1e9:.1f} GB ({error.strerror}); set TMPDIR to a folder with "
                    "more, take a probe of fewer vectors, or raise states_bytes"
                ) from error
            mapped = mmap.mmap(file.fileno(), n_bytes)
        return torch.frombuffer(mapped, dtype=like.dtype).view(n_rows, like.shape[1])


def _reserve(file: int, n_bytes: int) -> None:
    """Reserve a file's space on the disk: a disk found full on writing would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, n_bytes)
    elif shutil.disk_usage(gettempdir()).free < n_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    else:
        os.truncate(file, n_bytes)


def rows_of_batches(batches: Iterable[ProbeBatch], rows: np.ndarray) -> np.ndarray:
    """Return the rows of the states that come from the tokens, or from means, of these batches, ascending."""
    none = np.array([], dtype=int)
    parts = [part for batch in batches for part in (batch.tokens, none if batch.means is None else batch.means)]
    found = rows[np.concatenate([none, *parts])]
    return np.sort(found[found >= 0])


def exchange_layers(
    parts: States,
    rows: np.ndarray,
    places: Sequence[np.ndarray],
    captures: Collection[CaptureKind],
    buffers: Buffers,
    ranks: Ranks,
) -> States:
    """Turn every rank's rows of all layers into all rows of every size-th layer, and of those it is compared with.

    ``rows`` and ``places`` are the rows, in the whole states, of each token and of each rank.
    """
    whole, failure = States([], rows, embeddings=parts.embeddings), None

    def gather(part: Tensor, owner: int) -> Tensor | None:
        nonlocal failure
        pieces = ranks.gather(part, max(map(len, places)), owner=owner)
        if pieces is None or failure:
            return None
        try:
            states = buffers.new(sum(map(len, places)), part)
            for piece, of_rank in zip(pieces, places, strict=True):
                states[torch.from_numpy(of_rank)] = piece[: len(of_rank)].to(states.device)
            return states
        except Exception as error:  # too little memory or disk here: the others still wait for what this rank has
            failure = error

    for number in range(len(parts.layers)):
        part = parts.layers.pop(0)
        owner = number % ranks.size
        states = gather(part.states, owner)
        after = part.after_attention
        after = gather(after, owner) if isinstance(after, Tensor) else after
        if states is not None:
            whole.layers.append(replace(part, states=states, after_attention=after))
        # the ranks besides its owner that compare layers of their own with it: all, or that of the layer before
        comparing = set(range(ranks.size)) if "last" in captures and part.is_last else set()
        if "following" in captures and part.index > 0:
            comparing.add((owner - 1) % ranks.size)
        for other in sorted(comparing - {owner}):
            states = gather(part.states, other)
            if states is not None:
                whole.references.append(replace(part, states=states, after_attention=None))
    with ranks.sync_errors():
        if failure:
            raise failure
    return whole
