"""The recorder: forward hooks that copy the sampled rows of what passes through the blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.capture.after_attention import AfterAttention, Branches, Slot, parts_of
from repdyn.capture.blocks import Block, Blocks
from repdyn.capture.states import Buffers, LayerStates, States
from repdyn.capture.token_states import TokenPositions, TokenStates
from repdyn.probe import ProbeBatch


class Recorder:
    """Copies what enters the first block of each stack and what every block puts out, in the order the blocks run.

    Blocks may take and put out more than the states. Which part is the states is told in the first batch: what one
    block puts out and the next takes in. Where no such part is, it is the first that has one vector for each token.

    Args:
        blocks: whose outputs are layers.
        rows: (n_tokens,) the row of each token in the layers' buffers, -1 where it is not sampled.
        buffers: makes the layers' buffers.
        chained: each block must take in what the one before it puts out, else the blocks are not the layers of a model.
        token_positions, pads_right: as for :class:`repdyn.capture.token_states.TokenStates`.
        lists: the lists of blocks in the model, for messages.
        branches: where each block's attention is added to what entered it, if the sum is wanted too; see
            :func:`repdyn.capture.branches.find_branches`.
    """

    def __init__(
        self,
        blocks: Blocks,
        rows: np.ndarray,
        buffers: Buffers,
        *,
        chained: bool = False,
        token_positions: TokenPositions | None = None,
        pads_right: bool = False,
        lists: str = "none",
        branches: Branches | None = None,
    ) -> None:
        self._blocks = blocks
        self._rows = rows
        self._n_rows = int(rows.max()) + 1
        self._buffers = buffers
        self._chained = chained
        self._token_states = TokenStates(token_positions, pads_right=pads_right)
        self._lists = lists
        self._stacks = {block.stack: _Stack() for block in blocks}
        self._after_attention = AfterAttention(branches or {}, self._n_rows, buffers)

    @contextmanager
    def attached(self) -> Iterator[None]:
        handles = []
        try:
            for block in self._blocks:
                handles.append(block.module.register_forward_pre_hook(partial(self._enter, block), with_kwargs=True))
                handles.append(block.module.register_forward_hook(partial(self._leave, block)))
            for stack, module in self._after_attention.modules:
                handles.append(module.register_forward_hook(partial(self._attend, stack)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def expecting(self, batch: ProbeBatch) -> Iterator[None]:
        """While one batch passes: know which of its rows are sampled, and afterwards that every block ran."""
        rows = self._rows[batch.tokens]
        self._target = torch.from_numpy(rows[rows >= 0])
        self._source = torch.from_numpy(batch.positions[rows >= 0])
        # Of a batch without samples all tokens are compared, and none is kept.
        self._seen = self._source if len(self._source) else torch.from_numpy(batch.positions)
        self._token_states.begin(batch)
        for stack in self._stacks.values():
            stack.calls, stack.n_entered = [], 0
        self._after_attention.begin(self._target)
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
            self._settle_rest(stack)
            stack.order, stack.given = stack.order or stack.calls, {}
            if stack.calls != stack.order:
                raise RuntimeError(
                    "expected the same blocks to run in the same order for every batch, got "
                    f"{_first_difference(stack.calls, stack.order)}; name the blocks that always run with layers="
                )
        self._after_attention.end(lambda place: self._stacks[place[0]].kept[place[1] - 1][1])

    def states(self) -> States:
        self._token_states.check_choice_is_used()
        layers = [
            LayerStates(
                index,
                index / (len(stack.kept) - 1),
                *stack.kept[index],
                stack=name,
                after_attention=self._after_attention.of(name, index),
            )
            for name, stack in self._stacks.items()
            for index in sorted(stack.kept)
        ]
        return States(layers, self._rows)

    def _enter(self, block: Block, _module: nn.Module, args: tuple, kwargs: dict) -> None:
        stack = self._stacks[block.stack]
        given = {**dict(enumerate(args)), **kwargs}
        stack.n_entered += 1
        stack.n_calls.clear()
        if stack.n_entered == 1:
            self._pass(stack, 0, block, given)
        elif stack.order is None and stack.calls:
            self._link(stack, block, given)

    def _leave(self, block: Block, _module: nn.Module, _args: tuple, output: Any) -> None:
        stack = self._stacks[block.stack]
        stack.calls.append(block.name)
        self._pass(stack, len(stack.calls), block, parts_of(output))

    def _attend(self, stack: str | None, module: nn.Module, _args: tuple, output: Any) -> None:
        """Keep the sampled rows of what a block is about to add for its attention."""
        place, calls = (stack, self._stacks[stack].n_entered), self._stacks[stack].n_calls
        branch = self._after_attention.branch(place, module, calls[module])
        calls[module] += 1
        if branch is not None:
            for rows in self.all_rows({branch.slot: parts_of(output).get(branch.slot)}).values():
                self._after_attention.keep(place, rows[self._source.to(rows.device)])

    def _pass(self, stack: _Stack, layer: int, block: Block, parts: Mapping[Slot, Any]) -> None:
        """States pass by: kept where it is known which part they are, else held until the next block tells."""
        if stack.order is None:
            for earlier in [number for number in stack.waiting if number > 0]:
                self._settle(stack, earlier)
            stack.waiting[layer] = block.name, self._sampled(self._rows_by_slot(block.name, parts))
            if layer == 0:
                stack.given = stack.waiting[0][1]
        elif layer in stack.kept:  # a call too many is refused when the batch has passed
            slot = stack.slots[layer]
            rows = self._rows_by_slot(block.name, {slot: parts.get(slot)})
            self._keep(stack, layer, rows[slot][self._source.to(rows[slot].device)])

    def _link(self, stack: _Stack, block: Block, given: Mapping[Slot, Any]) -> None:
        """Learn from what enters a block which part of the last block's output the states are."""
        layer = len(stack.calls)
        if layer not in stack.waiting:
            return
        before, put_out = stack.waiting[layer]
        taken_in = self._sampled(self._rows_by_slot(block.name, given) if self._chained else self.all_rows(given))
        out, into = _passed_on(put_out, taken_in, stack.given)
        stack.given = taken_in
        if out is None and self._chained:
            raise RuntimeError(
                f"expected blocks that each take in what the one before puts out, but {block.name!r} does not take in "
                f"what {before!r} puts out, so that these are not the layers of one stream; name the blocks that are "
                f"with layers=, or say how to run the model once with forward=; the model has {self._lists}"
            )
        if 0 in stack.waiting:
            self._settle(stack, 0, into)
        stack.linked = out if out is not None else stack.linked
        self._settle(stack, layer, out)

    def _settle_rest(self, stack: _Stack) -> None:
        for layer in list(stack.waiting):
            self._settle(stack, layer, stack.linked if layer > 0 else None)

    def _settle(self, stack: _Stack, layer: int, slot: Slot | None = None) -> None:
        """Keep what was held of a layer: the part at ``slot`` where there is one, else the first."""
        name, samples = stack.waiting.pop(layer)
        stack.slots[layer] = slot if slot is not None and slot in samples else next(iter(samples))
        states = samples[stack.slots[layer]]
        stack.kept[layer] = name, self._buffers.new(self._n_rows, states), states.device
        self._keep(stack, layer, states[: len(self._target)])

    def _keep(self, stack: _Stack, layer: int, states: Tensor) -> None:
        buffer = stack.kept[layer][1]
        buffer[self._target] = states.to(buffer)

    def _sampled(self, rows: Mapping[Slot, Tensor]) -> dict[Slot, Tensor]:
        return {slot: states[self._seen.to(states.device)] for slot, states in rows.items()}

    def _rows_by_slot(self, name: str, parts: Mapping[Slot, Any]) -> dict[Slot, Tensor]:
        """The parts that are states, at least one: each (n_sequences * length, dim), whichever way round it was."""
        found = self.all_rows(parts)
        if not found:
            raise RuntimeError(self._token_states.refusal(name, parts))
        return found

    def all_rows(self, parts: Mapping[Slot, Any], *, flat: bool = False) -> dict[Slot, Tensor]:
        """The parts that are states of the batch that passes, as rows; if ``flat`` also those that are rows already."""
        tensors = {k: part for k, part in parts.items() if isinstance(part, Tensor) and part.is_floating_point()}
        found = {slot: self._rows_of(tensor, flat) for slot, tensor in tensors.items()}
        return {slot: rows for slot, rows in found.items() if rows is not None}

    def _rows_of(self, states: Tensor, flat: bool) -> Tensor | None:
        n_sequences, length = self._token_states.shape
        if not flat or states.ndim != 2:
            return self._token_states.rows_of(states)
        if len(states) == n_sequences * length:
            return states
        return self._token_states.rows_of(states[None]) if n_sequences == 1 else None


@dataclass
class _Stack:
    """What has been kept of one stack, and what its first batch has told."""

    kept: dict[int, tuple[str, Tensor, torch.device]] = field(default_factory=dict)
    slots: dict[int, Slot] = field(default_factory=dict)
    """Of each layer, which part the states are."""
    order: list[str] | None = None
    """Names of the blocks as the first batch ran them."""
    calls: list[str] = field(default_factory=list)
    n_entered: int = 0
    """How many blocks the batch has entered."""
    n_calls: Counter[nn.Module] = field(default_factory=Counter)
    """Of the modules that attend, since a block was entered."""
    waiting: dict[int, tuple[str, dict[Slot, Tensor]]] = field(default_factory=dict)
    """Layers of the first batch of which it is not known yet which part the states are: all that could be."""
    given: dict[Slot, Tensor] = field(default_factory=dict)
    """What the last block took in that could be states, in the first batch."""
    linked: Slot | None = None
    """Which part of an output entered the next block last."""


def _passed_on(
    put_out: Mapping[Slot, Tensor], taken_in: Mapping[Slot, Tensor], given: Mapping[Slot, Tensor]
) -> tuple[Slot, Slot] | tuple[None, None]:
    """Where the states stand in what one block put out, and where in what the next took in; None where they do not.

    Args:
        given: what the first of the two had taken in. What it only passed on, such as positions, is not its states.
    """
    pairs = [(out, into) for out in put_out for into in taken_in if _same(put_out[out], taken_in[into])]
    if len(pairs) > 1:
        pairs.sort(key=lambda pair: any(_same(before, put_out[pair[0]]) for before in given.values()))
    return pairs[0] if pairs else (None, None)


def _same(states: Tensor, others: Tensor) -> bool:
    """Whether the next block was given these states: on its own device, in its own precision, perhaps all scaled alike.

    RWKV halves them every few blocks, lest they overflow.
    """
    if states.shape != others.shape:
        return False
    states = states.to(others)
    if torch.allclose(states, others, rtol=0, atol=0, equal_nan=True):
        return True
    finite = states.isfinite() & others.isfinite()
    ours, theirs = states[finite].double(), others[finite].double()
    scale = (ours * theirs).sum() / ours.square().sum()
    rounding = 2 * torch.finfo(others.dtype).eps
    return bool(scale != 0) and torch.allclose(scale * ours, theirs, rtol=rounding, atol=0)


def _first_difference(calls: list[str], before: list[str]) -> str:
    number = next(i for i, (now, then) in enumerate(zip_longest(calls, before)) if now != then)
    now, then = (repr(names[number]) if number < len(names) else "none" for names in (calls, before))
    return f"{now} as call {number + 1} where the first batch had {then}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
