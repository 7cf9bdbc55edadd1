"""What the blocks of a model hand on to each other: whether one stream of states goes through them.

Looked at in one pass. Blocks whose outputs are added to the stream outside of them do not return
it, blocks that leave this to the next one return it in two parts, and blocks that carry two streams
return both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from repdyn.capture.blocks import Block, Blocks, list_candidates
from repdyn.capture.token_states import Slot, TokenStates, are_same_states, watched, widened

SUM = "sum"
"""The slot of the sum of a block's output and of the residual that the next one adds it to."""
StatesOf: TypeAlias = Callable[[Mapping[Slot, Any]], Mapping[Slot, Tensor]]


@dataclass
class Stream:
    """Collects what the blocks of one stack hand on, in the course of a pass."""

    links: dict[Slot, Slot] = field(default_factory=dict)
    """By the part of an output, the argument of the next block that it is."""
    changed: dict[Slot, list[bool]] = field(default_factory=dict)
    """By the part, whether each block that takes it returns another one, in their order."""
    sums: list[set[tuple[Slot, Slot]]] = field(default_factory=list)
    """For each block that was left, the pairs of parts whose sum a module takes after it."""
    entered: Mapping[Slot, Tensor] = field(default_factory=dict)
    left: Mapping[Slot, Tensor] = field(default_factory=dict)
    left_by: str = ""
    used: set[Slot] = field(default_factory=set)
    """The parts of the last output that a module takes as they are."""

    @property
    def moving(self) -> set[Slot]:
        """Return the parts that are handed on and not just passed through, as positions are.

        What the first block alone changes, it makes for all others, as the values of attention that
        RWKV-7 and value residuals hand on.
        """
        return {give for give, changed in self.changed.items() if any(changed[1:] or changed)}

    @property
    def slots(self) -> tuple[Slot, Slot] | None:
        """Return which argument of a block and which part of its output the states are."""
        # where branches begin at zero nothing moves yet: the head takes the states
        likely = self.moving or self.used
        gives = [give for give in self.links if give in likely] or list(self.links)
        return (self.links[gives[0]], gives[0]) if gives else None

    @property
    def summed(self) -> tuple[Slot, Slot] | None:
        """Return the two parts whose sum a norm of each next block takes, or the last norm."""
        if len(self.sums) < 2:
            return None
        return min(set.intersection(*self.sums), key=str, default=None)

    def enter(self, taken: Mapping[Slot, Tensor]) -> bool:
        """Note what a block takes, and return whether it takes what the one before returned."""
        before = self.entered
        self.entered = taken
        is_linked = False
        for give, states in self.left.items():
            takes = [take for take, other in taken.items() if are_same_states(states, other)]
            if not takes:
                continue
            is_linked = True
            if give not in self.links:
                self.links[give] = takes[0]
                # only now it shows which argument the block before has this part from
                self._compare(give, states, before)
        return is_linked

    def _compare(self, give: Slot, states: Tensor, taken: Mapping[Slot, Tensor]) -> None:
        """Note whether a block that has returned a part has changed it, if it takes one."""
        if self.links.get(give) in taken:
            is_same = any(are_same_states(other, states) for other in taken.values())
            self.changed.setdefault(give, []).append(not is_same)

    def leave(self, name: str, returned: Mapping[Slot, Tensor]) -> None:
        """Note what a block returns."""
        self.left_by = name
        for give, states in returned.items():
            self._compare(give, states, self.entered)
        # copies: what follows may write into them
        self.left = {slot: states.clone() for slot, states in returned.items()}
        self.used = set()
        self.sums.append(set())

    def look(self, taken: Mapping[Slot, Tensor]) -> None:
        """Note the parts of the last output that a module takes, or whose sum it takes."""
        if len(self.left) < 2:
            return
        for give, states in self.left.items():
            if give not in self.used and any(are_same_states(states, s) for s in taken.values()):
                self.used.add(give)
        for first, second in permutations(self.left, 2):
            is_new = str(first) < str(second) and (first, second) not in self.sums[-1]
            if is_new and self.left[first].shape == self.left[second].shape:
                total = widened(self.left[first]) + widened(self.left[second])
                if any(_is_about(total, states) for states in taken.values()):
                    self.sums[-1].add((first, second))


class Streams:
    """Watches a pass, and keeps what the blocks of each stack hand on.

    Args:
        module: the model that runs.
        blocks: its blocks, or all members of the list that they are from.
        search: finds the states of tokens; None for a model of other inputs, any of whose tensors
            may be states.
        strict: whether each of the blocks must take and return states.
        is_one: whether one stream must go through all of the blocks, as a part of what they return
            or as the sum of two parts.
    """

    def __init__(
        self,
        module: nn.Module,
        blocks: Blocks,
        search: TokenStates | None,
        *,
        strict: bool,
        is_one: bool,
    ) -> None:
        self.by_stack = {block.stack: Stream() for block in blocks}
        self.called: set[str] = set()
        """The names of the blocks that ran."""
        self.failure = ""
        """Why what these blocks return is no stream of states; "" where it may be one."""
        self.is_one = is_one
        self._module = module
        self._blocks = blocks
        self._search = search
        self._strict = strict
        inside = {block.module for block in blocks}
        # TorchScript refuses hooks before a forward
        self._others = [
            Block("", other, blocks[0].stack)
            for other in (module.modules() if is_one else ())
            if other not in inside and not isinstance(other, torch.jit.ScriptModule)
        ]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the pass that runs inside."""
        with watched(self._blocks, self._enter, self._leave), watched(self._others, self._look):
            yield

    def _enter(self, block: Block, taken: Mapping[Slot, Any]) -> None:
        stream = self.by_stack[block.stack]
        states = self._states(block, taken)
        if stream.enter(states) or not stream.left or self.failure:
            return
        # stages of a model of images have other shapes each, and something in between
        shapes = {left.shape for left in stream.left.values()}
        if self._strict or any(entered.shape in shapes for entered in states.values()):
            self.failure = _refusal_of_chain(self._module, self._blocks, stream.left_by, block.name)

    def _leave(self, block: Block, returned: Mapping[Slot, Any]) -> None:
        self.called.add(block.name)
        self.by_stack[block.stack].leave(block.name, self._states(block, returned))

    def _look(self, other: Block, taken: Mapping[Slot, Any]) -> None:
        stream = self.by_stack[other.stack]
        if len(stream.left) > 1:
            stream.look(self._states_in(taken))

    def _states(self, block: Block, parts: Mapping[Slot, Any]) -> Mapping[Slot, Tensor]:
        states = self._states_in(parts)
        if self._strict and self._search and not states and not self.failure:
            self.failure = self._search.explain_mismatch(block.name, parts)
        return states

    def _states_in(self, parts: Mapping[Slot, Any]) -> Mapping[Slot, Tensor]:
        if self._search:
            return self._search.rows_by_slot(parts)
        return {
            slot: value.detach()
            for slot, value in parts.items()
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 3
        }


def chain_of(module: nn.Module, blocks: Blocks) -> Blocks | None:
    """Return the members of the list that named blocks are from, whose states go through all of
    them; None where they are from several places, or parts of blocks."""
    parents = {block.name.rpartition(".")[0] for block in blocks}
    named = dict(module.named_modules())
    parent = named.get(parents.pop()) if len(parents) == 1 else None
    if not isinstance(parent, nn.ModuleList | nn.Sequential):
        return None
    members = set(parent)
    stack = blocks[0].stack
    return [Block(name, member, stack) for name, member in named.items() if member in members]


def _is_about(total: Tensor, states: Tensor) -> bool:
    """Return whether states are a sum, up to the rounding of their precision."""
    if total.shape != states.shape:
        return False
    difference = (total - widened(states)).norm()
    return bool(difference <= 8 * torch.finfo(states.dtype).eps * total.norm())


def _refusal_of_chain(module: nn.Module, blocks: Blocks, first: str, second: str) -> str:
    """Return that blocks do not return the stream of states, and what to do."""
    return (
        f"expected blocks that each take the output of the one before, but {second!r} does not "
        f"take the output of {first!r}, so that what they return is not the stream of states; name "
        f"blocks whose outputs are with layers= (the model has {list_candidates(module)}), or "
        f'measure what these return as a stack of its own with layers={{"outputs": '
        f"{_patterns(blocks)}}}"
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
