"""Post-attention states: the states between a block's attention and its feed-forward part, at the sampled tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from repdyn.capture.states import Buffers

Slot: TypeAlias = int | str
"""Position or name of states among a block's arguments or outputs."""

LayerKey: TypeAlias = tuple[str | None, int]
"""A stack and a layer."""


@dataclass(frozen=True)
class Branch:
    """The attention's output that a block adds to its input."""

    module: nn.Module
    """The module that returns it."""
    slot: Slot
    """Which part of the module's output it is."""
    call: int
    """Which of the module's calls within the block, from 0 on."""
    dtype: torch.dtype
    """Data type of the sum."""
    scale: float = 1.0
    """The factor by which the block multiplies it."""


Branches: TypeAlias = Mapping[LayerKey, Branch | str]
"""By stack and layer: the branch, or the reason why there is none."""


class AfterAttention:
    """The sums of each block's input and its attention's branch.

    A branch is written straight to its rows of the layer's buffer. The block's input is added when the batch has
    passed: only then are the states of the previous layer identified. So no whole batch is held in memory.

    Args:
        branches: the branch of each layer, or the reason why there is none.
        n_rows: number of rows of the buffers.
        buffers: allocates the buffers.
    """

    def __init__(self, branches: Branches, n_rows: int, buffers: Buffers) -> None:
        self._branches = {key: branch for key, branch in branches.items() if isinstance(branch, Branch)}
        self.modules = {(stack, branch.module) for (stack, _), branch in self._branches.items()}
        """The modules to hook, with the stack in whose blocks they run."""
        self._states: dict[LayerKey, Tensor | str] = {
            k: reason for k, reason in branches.items() if isinstance(reason, str)
        }
        self._n_rows = n_rows
        self._buffers = buffers

    def begin(self, target: Tensor) -> None:
        """Begin a batch; ``target`` are the rows of its sampled tokens."""
        self._target = target
        self._recorded: set[LayerKey] = set()

    def branch(self, key: LayerKey, module: nn.Module, call: int) -> Branch | None:
        """Return the layer's branch if this call of the module returns it."""
        branch = self._branches.get(key)
        return branch if branch is not None and branch.module is module and branch.call == call else None

    def keep(self, key: LayerKey, rows: Tensor) -> None:
        """Keep the sampled rows (n, dim) of a layer's branch."""
        branch = self._branches[key]
        self._recorded.add(key)
        rows = rows if branch.scale == 1 else rows * branch.scale
        states = self._buffer(key, rows.to(branch.dtype))
        states[self._target] = rows.to(states)

    def end(self, entered: Callable[[LayerKey], Tensor]) -> None:
        """Add the blocks' inputs when a batch has passed.

        Args:
            entered: returns the buffer of the states that entered a layer's block.
        """
        for key, branch in self._branches.items():
            before = entered(key)[self._target].to(branch.dtype)
            states = self._buffer(key, before)
            # NaN where the attention did not run: other ranks wait for a tensor from this one
            states[self._target] = states[self._target] + before.to(states) if key in self._recorded else torch.nan

    def of(self, stack: str | None, layer: int) -> Tensor | str | None:
        """Return (n_rows, dim), or the reason why there is none; None for a layer that no block returns."""
        return self._states.get((stack, layer))

    def _buffer(self, key: LayerKey, like: Tensor) -> Tensor:
        states = self._states.get(key)
        if not isinstance(states, Tensor):
            states = self._states[key] = self._buffers.new(self._n_rows, like)
        return states


def inputs_by_slot(args: tuple, kwargs: Mapping[str, Any]) -> dict[Slot, Any]:
    """Return the arguments of a module's call by position or name."""
    return {**dict(enumerate(args)), **kwargs}


def outputs_by_slot(value: Any) -> Mapping[Slot, Any]:
    """Return the output of a module's call by position or name."""
    if isinstance(value, Mapping):
        return value
    return dict(enumerate(value)) if isinstance(value, tuple | list) else {0: value}
