"""What the blocks of a model hand on to each other: whether one stream of states goes through them.

Looked at in one pass, for models that no library defines. Blocks whose outputs are added to the
stream outside of them do not return it, and blocks that carry two streams return both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from repdyn.capture.blocks import Block, Blocks
from repdyn.capture.token_states import Slot, are_same_states, watched, widened

SUM = "sum"
"""The slot of the sum of a block's output and of the residual that the next one adds it to."""


class Streams:
    """Watches a pass, and keeps which parts of their outputs blocks hand on to the next.

    Args:
        blocks: the blocks of one stack, or all members of the list that they are from.
        module: the model that runs, in which the norms are that take a sum.
    """

    def __init__(self, blocks: Blocks, module: nn.Module) -> None:
        inside = {block.module for block in blocks}
        self._blocks = blocks
        # TorchScript refuses hooks before a forward
        self._others = [
            other
            for other in module.modules()
            if other not in inside and not isinstance(other, torch.jit.ScriptModule)
        ]
        self._entered: dict[Slot, Tensor] = {}
        self._left: dict[Slot, Tensor] = {}
        self._left_by = ""
        self.broken: tuple[str, str] | None = None
        """A block, and the next one, which takes nothing that the first has returned."""
        self.links: dict[Slot, Slot] = {}
        """By the part of an output, the argument of the next block that it is."""
        self.moving: set[Slot] = set()
        """The parts that are handed on and are not just passed through."""
        self._sums: list[set[tuple[Slot, Slot]]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the pass that runs inside."""
        with watched(self._blocks, self._enter, self._leave), watched(self._others, self._look):
            yield

    @property
    def summed(self) -> tuple[Slot, Slot] | None:
        """The two parts whose sum a norm of each next block takes, or the last norm."""
        if len(self._sums) < 2:
            return None
        return min(set.intersection(*self._sums), key=str, default=None)

    def _enter(self, block: Block, taken: Mapping[Slot, Any]) -> None:
        before = list(self._entered.values())
        self._entered = _states_in(taken)
        if not self._left_by:
            return
        links = {}
        for give, states in self._left.items():
            for take, other in self._entered.items():
                if are_same_states(states, other):
                    links[give] = take
        self.links |= {give: take for give, take in links.items() if give not in self.links}
        self.moving |= {
            give
            for give in links
            if not any(are_same_states(other, self._left[give]) for other in before)
        }
        shapes = {states.shape for states in self._left.values()}
        is_comparable = any(states.shape in shapes for states in self._entered.values())
        if not links and is_comparable and self.broken is None:
            self.broken = self._left_by, block.name

    def _leave(self, block: Block, returned: Mapping[Slot, Any]) -> None:
        self._left_by = block.name
        # copies: what follows may write into them
        self._left = {slot: states.clone() for slot, states in _states_in(returned).items()}
        self._sums.append(set())

    def _look(self, _module: nn.Module, taken: Mapping[Slot, Any]) -> None:
        if len(self._left) < 2:
            return
        for first, second in permutations(self._left, 2):
            is_new = str(first) < str(second) and (first, second) not in self._sums[-1]
            if is_new and self._left[first].shape == self._left[second].shape:
                total = widened(self._left[first]) + widened(self._left[second])
                if any(_is_about(total, states) for states in _states_in(taken).values()):
                    self._sums[-1].add((first, second))


def chain_of(module: nn.Module, blocks: Blocks) -> Blocks | None:
    """Return the members of the list that named blocks are from, whose states go through all of
    them; None where they are from several places, or parts of blocks."""
    parents = {block.name.rpartition(".")[0] for block in blocks}
    named = dict(module.named_modules())
    parent = named.get(parents.pop()) if len(parents) == 1 else None
    if not isinstance(parent, nn.ModuleList | nn.Sequential):
        return None
    members = set(parent)
    return [Block(name, member) for name, member in named.items() if member in members]


def _states_in(parts: Mapping[Slot, Any]) -> dict[Slot, Tensor]:
    return {
        slot: value.detach()
        for slot, value in parts.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 3
    }


def _is_about(total: Tensor, states: Tensor) -> bool:
    """Return whether states are a sum, up to the rounding of their precision."""
    if total.shape != states.shape:
        return False
    difference = (total - widened(states)).norm()
    return bool(difference <= 8 * torch.finfo(states.dtype).eps * total.norm())


def refusal_of_chain(broken: tuple[str, str], blocks: Sequence[Block]) -> str:
    """Return that blocks do not return the stream of states, and what to do."""
    first, second = broken
    patterns = _patterns(blocks)
    return (
        f"expected blocks that each take the output of the one before, but {second!r} does not "
        f"take the output of {first!r}, so that what they return is not the stream of states; name "
        "blocks whose outputs are with layers=, or measure what these return as a stack of its own "
        f'with layers={{"outputs": {patterns}}}'
    )


def refusal_of_several(moving: set[Slot], blocks: Sequence[Block]) -> str:
    """Return that blocks carry several streams, and how to choose one."""
    names = sorted(map(str, moving))
    chosen = [f"{pattern}:{names[-1]}" for pattern in _patterns(blocks)]
    return (
        f"expected blocks that carry one stream of states, got {len(names)} in parts "
        f"{' and '.join(names)} of what {blocks[0].name!r} returns; choose the stream of one part "
        f"with layers={chosen}"
    )


def _patterns(blocks: Sequence[Block]) -> list[str]:
    """Return patterns that name blocks: one where they are the whole of a list."""
    parent = blocks[0].name.rpartition(".")[0]
    names = [block.name for block in blocks]
    is_list = names == [f"{parent}.{number}" for number in range(len(names))]
    return [f"{parent}.*"] if parent and is_list else names
