"""The states between a block's attention and its feed-forward part, kept for the sampled tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from repdyn.capture.states import Buffers

Slot: TypeAlias = int | str
"""Where states stand among a block's arguments or in its output: a position, or a name."""

Place: TypeAlias = tuple[str | None, int]
"""A stack and a layer."""


@dataclass(frozen=True)
class Branch:
    """What a block adds for its attention to what entered it."""

    module: nn.Module
    """In its output."""
    slot: Slot
    """Which part of the output."""
    call: int
    """Which of the module's calls within the block, from 0 on."""
    dtype: torch.dtype
    """Of the sum."""
    scale: float = 1.0
    """What the block multiplies it by."""


Branches: TypeAlias = Mapping[Place, Branch | str]
"""By stack and layer: the branch, or why there is none."""


class AfterAttention:
    """The sums of what enters each block and of its attention's branch.

    A branch is written straight to its rows of the layer's buffer. What entered the block is added when the batch has
    passed: the states of the layer before are settled then. So nothing of a whole batch is held.

    Args:
        branches: where they are.
        n_rows: of the buffers.
        buffers: makes them.
    """

    def __init__(self, branches: Branches, n_rows: int, buffers: Buffers) -> None:
        self.modules = {(stack, b.module) for (stack, _), b in branches.items() if isinstance(b, Branch)}
        """Those to watch, with the stack in whose blocks they run."""
        self._branches = {place: branch for place, branch in branches.items() if isinstance(branch, Branch)}
        self._kept: dict[Place, Tensor | str] = {p: why for p, why in branches.items() if isinstance(why, str)}
        self._n_rows = n_rows
        self._buffers = buffers

    def begin(self, target: Tensor) -> None:
        """A batch begins; ``target`` are the rows of its sampled tokens."""
        self._target = target
        self._seen: set[Place] = set()

    def branch(self, place: Place, module: nn.Module, call: int) -> Branch | None:
        """The branch, if this is the call of the module that puts it out."""
        branch = self._branches.get(place)
        return branch if branch is not None and branch.module is module and branch.call == call else None

    def keep(self, place: Place, rows: Tensor) -> None:
        """The sampled rows (n, dim) of a layer's branch."""
        branch = self._branches[place]
        self._seen.add(place)
        rows = rows if branch.scale == 1 else rows * branch.scale
        if place not in self._kept:
            self._kept[place] = self._buffers.new(self._n_rows, rows.to(branch.dtype))
        if isinstance(kept := self._kept[place], Tensor):
            kept[self._target] = rows.to(kept)

    def end(self, entered: Callable[[Place], Tensor]) -> None:
        """The batch has passed.

        Args:
            entered: gives the buffer of the states that entered a layer's block.
        """
        for place, branch in self._branches.items():
            before = entered(place)[self._target].to(branch.dtype)
            if place not in self._kept:
                self._kept[place] = self._buffers.new(self._n_rows, before)
            if isinstance(kept := self._kept[place], Tensor):
                # not numbers where the attention did not run: other ranks wait for a tensor from this one
                kept[self._target] = kept[self._target] + before.to(kept) if place in self._seen else torch.nan

    def of(self, stack: str | None, layer: int) -> Tensor | str | None:
        """(n_rows, dim), or why there is none; None for a layer that no block puts out."""
        return self._kept.get((stack, layer))


def parts_of(value: Any) -> Mapping[Slot, Any]:
    """What a module takes in or puts out, part by part."""
    if isinstance(value, Mapping):
        return value
    return dict(enumerate(value)) if isinstance(value, tuple | list) else {0: value}
