"""The recorder: forward hooks that copy the sampled rows of what passes through the blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.layers.blocks import Block, Blocks
from repdyn.layers.states import Buffers, LayerStates, States
from repdyn.probe import ProbeBatch


class Recorder:
    """Copies what enters the first block of each stack and what every block puts out, in the order the blocks run.

    Args:
        blocks: whose outputs are layers.
        rows: (n_tokens,) the row of each token in the layers' buffers, -1 where it is not sampled.
        buffers: makes the layers' buffers.
        pads_right: the model lengthens sequences on the right by itself, to a multiple of something.
        lists: the lists of blocks in the model, for messages.
    """

    def __init__(
        self, blocks: Blocks, rows: np.ndarray, buffers: Buffers, *, pads_right: bool = False, lists: str = "none"
    ) -> None:
        self._blocks = blocks
        self._rows = rows
        self._n_rows = int(rows.max()) + 1
        self._buffers = buffers
        self._pads_right = pads_right
        self._lists = lists
        self._stacks = {block.stack: _Stack() for block in blocks}

    @contextmanager
    def attached(self) -> Iterator[None]:
        handles = []
        try:
            for block in self._blocks:
                handles.append(block.module.register_forward_pre_hook(partial(self._enter, block), with_kwargs=True))
                handles.append(block.module.register_forward_hook(partial(self._leave, block)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def expecting(self, batch: ProbeBatch) -> Iterator[None]:
        """While one batch passes: know which of its rows are sampled, and afterwards that every block ran."""
        rows = self._rows[batch.first_token :][: len(batch.positions)]
        self._target = torch.from_numpy(rows[rows >= 0])
        self._source = torch.from_numpy(batch.positions[rows >= 0])
        self._shape = tuple(batch.input_ids.shape)
        for stack in self._stacks.values():
            stack.calls = []
        yield
        called = {name for stack in self._stacks.values() for name in stack.calls}
        silent = [block.name for block in self._blocks if block.name not in called]
        if silent:
            raise RuntimeError(
                f"expected every block to run, but {len(silent)} of {len(self._blocks)} did not: {_few(silent)}; the "
                f"forward pass does not go through them. Name the blocks it does go through with layers=; the "
                f"model has {self._lists}"
            )
        for stack in self._stacks.values():
            stack.n_calls = stack.n_calls or len(stack.calls)
            if len(stack.calls) != stack.n_calls:
                raise RuntimeError(
                    f"expected the same number of block calls for every batch, got {len(stack.calls)} after "
                    f"{stack.n_calls}; name the blocks that always run with layers="
                )

    def states(self) -> States:
        layers = [
            LayerStates(index, index / (len(stack.kept) - 1), *kept, stack=name)
            for name, stack in self._stacks.items()
            for index, kept in enumerate(stack.kept)
        ]
        return States(layers, self._rows)

    def _enter(self, block: Block, _module: nn.Module, args: tuple, kwargs: dict) -> None:
        if not self._stacks[block.stack].calls:
            named = [kwargs[name] for name in _STATE_ARGUMENTS if name in kwargs]
            others = [value for value in kwargs.values() if self._first_rows([value]) is not None]
            # Under a name that is not known, it is the states where nothing else could be.
            self._keep(0, block, (*args, *named, *(others if len(others) == 1 else ())))

    def _leave(self, block: Block, _module: nn.Module, _args: tuple, output: Any) -> None:
        calls = self._stacks[block.stack].calls
        calls.append(block.name)
        self._keep(len(calls), block, output)

    def _keep(self, layer: int, block: Block, value: Any) -> None:
        stack = self._stacks[block.stack]
        states = self._as_rows(block.name, value)
        if stack.n_calls is None:
            stack.kept.append((block.name, self._buffers.new(self._n_rows, states), states.device))
        if layer < len(stack.kept):  # a call too many is refused when the batch has passed
            buffer = stack.kept[layer][1]
            buffer[self._target] = states[self._source.to(states.device)].to(buffer)

    def _as_rows(self, name: str, value: Any) -> Tensor:
        """(n_sequences * length, dim), whichever way round the block has its dimensions."""
        parts = list(_parts(value))
        found = self._first_rows(parts)
        if found is not None:
            return found
        tensors = [part for part in parts if isinstance(part, Tensor)]
        received = f"{tuple(tensors[0].shape)} of {tensors[0].dtype}" if tensors else type(value).__name__
        raise RuntimeError(
            f"expected states of shape {(*self._shape, 'dim')} at {name!r}, got {received}; name blocks that pass one "
            "vector for each token with layers="
        )

    def _first_rows(self, parts: Iterable[Any]) -> Tensor | None:
        tensors = (part for part in parts if isinstance(part, Tensor) and part.is_floating_point())
        return next((rows for rows in map(self._rows_of, tensors) if rows is not None), None)

    def _rows_of(self, states: Tensor) -> Tensor | None:
        """States as rows, several streams of one token end to end; None where they are not one or more a token."""
        n_sequences, length = self._shape
        shape = tuple(states.shape)
        if self._pads_right and len(shape) == 3 and shape[0] == n_sequences and shape[1] > length:
            return states[:, :length].flatten(0, 1)
        if len(shape) == 3 and shape[:2] == (length, n_sequences):
            return states.transpose(0, 1).flatten(0, 1)
        if len(shape) == 4 and shape[1:3] == self._shape:  # streams first
            return states.permute(1, 2, 0, 3).flatten(2).flatten(0, 1)
        if len(shape) in {3, 4} and shape[:2] == self._shape:
            return states.flatten(2).flatten(0, 1)
        return None


@dataclass
class _Stack:
    """What has been kept of one stack."""

    kept: list[tuple[str, Tensor, torch.device]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    n_calls: int | None = None
    """As many as in the first batch."""


# Names under which families pass the states to a block as a keyword.
_STATE_ARGUMENTS = ("hidden_states", "src", "x", "input", "inputs")


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, tuple | list) else [value]


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
