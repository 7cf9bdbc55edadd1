"""A recorder: forward hooks that copy the sampled rows of the blocks' inputs and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.capture.after_attention import AfterAttention, Branches, Slot, inputs_by_slot, outputs_by_slot
from repdyn.capture.blocks import Block
from repdyn.capture.links import silent_blocks
from repdyn.capture.states import Buffers, LayerStates, States
from repdyn.probe import ProbeBatch

if TYPE_CHECKING:
    from repdyn.capture.prepared_model import PreparedModel


class Recorder:
    """Hooks that copy the inputs of the first block and the outputs of every block, stack by stack, as the blocks run.

    Blocks may take and return more than the states. The states are what one block returns and the next takes, as the
    model's first pass has shown; else the first part with one vector for each token.

    Args:
        model: whose blocks' outputs are layers.
        rows: (n_tokens,) the row of each token in the layers' buffers, -1 where it is not sampled; with those of means
            over sequences behind them, for batches that have ``means``.
        buffers: allocates the layers' buffers.
        branches: where each block adds its attention's output to its input, to record the sum too; see
            :func:`repdyn.capture.branches.find_branches`.
    """

    def __init__(
        self, model: PreparedModel, rows: np.ndarray, buffers: Buffers, branches: Branches | None = None
    ) -> None:
        self._model = model
        self._rows = rows
        self._n_rows = int(rows.max()) + 1
        self._buffers = buffers
        self._token_states = model.token_states()
        self._stacks = {stack: _Stack() for stack in model.stacks}
        self._after_attention = AfterAttention(branches or {}, self._n_rows, buffers)

    @contextmanager
    def attached(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for block in self._model.blocks:
                enter, leave = partial(self._enter, block), partial(self._leave, block)
                hooks.enter_context(block.module.register_forward_pre_hook(enter, with_kwargs=True))
                hooks.enter_context(block.module.register_forward_hook(leave))
            for stack, module in self._after_attention.modules:
                hooks.enter_context(module.register_forward_hook(partial(self._attend, stack)))
            yield

    @contextmanager
    def recording(self, batch: ProbeBatch) -> Iterator[None]:
        """Record one batch that runs inside, and check on leaving that every block ran."""
        rows = self._rows[batch.tokens]
        mean_rows = np.empty(0, dtype=rows.dtype) if batch.means is None else self._rows[batch.means]
        self._target = torch.from_numpy(np.concatenate([rows[rows >= 0], mean_rows[mean_rows >= 0]]))
        self._source = torch.from_numpy(batch.positions[rows >= 0])
        self._averaged = torch.from_numpy(np.flatnonzero(mean_rows >= 0))
        self._mask = batch.attention_mask != 0
        # All tokens of a batch without samples are compared, and none is kept.
        if not len(self._target):
            self._source = torch.from_numpy(batch.positions)
        self._token_states.begin(batch)
        for stack in self._stacks.values():
            stack.calls, stack.n_entered = [], 0
        self._after_attention.begin(self._target)
        yield
        called = {name for stack in self._stacks.values() for name in stack.calls}
        if reason := silent_blocks(self._model.blocks, self._model.module, called):
            raise RuntimeError(reason)
        for stack in self._stacks.values():
            stack.order = stack.order or stack.calls
            if stack.calls != stack.order:
                raise RuntimeError(
                    "expected the same blocks to run in the same order for every batch, got "
                    f"{_first_difference(stack.calls, stack.order)}; name the blocks that always run with layers="
                )
        self._after_attention.end(lambda place: self._stacks[place[0]].kept[place[1] - 1][1])

    def states(self, autocast: torch.dtype | None = None) -> States:
        """Return what was recorded; ``autocast`` as in :class:`repdyn.capture.states.LayerStates`."""
        self._token_states.check_positions_used()
        layers = [
            LayerStates(
                index,
                index / (len(stack.kept) - 1),
                *stack.kept[index],
                stack=name,
                after_attention=self._after_attention.of(name, index),
                autocast=autocast,
            )
            for name, stack in self._stacks.items()
            for index in sorted(stack.kept)
        ]
        return States(layers, self._rows)

    def _enter(self, block: Block, _module: nn.Module, args: tuple, kwargs: dict) -> None:
        stack, self._token_states.stack = self._stacks[block.stack], block.stack
        stack.n_entered += 1
        stack.n_calls.clear()
        if stack.n_entered == 1:
            self._pass(stack, 0, block, inputs_by_slot(args, kwargs))

    def _leave(self, block: Block, _module: nn.Module, _args: tuple, output: Any) -> None:
        stack, self._token_states.stack = self._stacks[block.stack], block.stack
        stack.calls.append(block.name)
        self._pass(stack, len(stack.calls), block, outputs_by_slot(output))

    def _attend(self, stack: str | None, module: nn.Module, _args: tuple, output: Any) -> None:
        """Keep the sampled rows of the attention's output that a block is about to add."""
        place, calls = (stack, self._stacks[stack].n_entered), self._stacks[stack].n_calls
        branch = self._after_attention.branch(place, module, calls[module])
        calls[module] += 1
        if branch is not None:
            for rows in self.all_rows({branch.slot: outputs_by_slot(output).get(branch.slot)}).values():
                self._after_attention.keep(place, self._select(rows)[: len(self._target)])

    def _pass(self, stack: _Stack, layer: int, block: Block, parts: Mapping[Slot, Any]) -> None:
        """Keep a layer's states."""
        if layer in stack.kept:
            slot = stack.slots[layer]
            states = self._select(self._rows_by_slot(block.name, {slot: parts.get(slot)})[slot])
        elif stack.order is None:
            found = self._rows_by_slot(block.name, parts)
            linked = self._model.slots.get(block.stack, (None, None))[layer > 0]
            stack.slots[layer] = linked if linked in found else next(iter(found))
            states = self._select(found[stack.slots[layer]])
            stack.kept[layer] = block.name, self._buffers.new(self._n_rows, states), states.device
        else:  # an extra call is an error when the batch has passed
            return
        buffer = stack.kept[layer][1]
        buffer[self._target] = states[: len(self._target)].to(buffer)

    def _select(self, rows: Tensor) -> Tensor:
        """Return the sampled rows of (n_sequences * length, dim), then the means over sequences that are kept."""
        sampled = rows[self._source.to(rows.device)]
        if not len(self._averaged):
            return sampled
        states = rows.unflatten(0, self._token_states.shape)[self._averaged.to(rows.device)]
        mask = self._mask[self._averaged].unsqueeze(-1).to(rows.device)
        # in float32 at least, and without the padding, whose states may be anything
        total = states.to(torch.promote_types(rows.dtype, torch.float32)).where(mask, 0).sum(1)
        return torch.cat([sampled, (total / mask.sum(1)).to(rows.dtype)])

    def _rows_by_slot(self, name: str, parts: Mapping[Slot, Any]) -> dict[Slot, Tensor]:
        """Return the parts that are states, at least one, each as (n_sequences * length, dim)."""
        found = self.all_rows(parts)
        if not found:
            raise RuntimeError(self._token_states.explain_mismatch(name, parts))
        return found

    def all_rows(self, parts: Mapping[Slot, Any], *, flat: bool = False) -> dict[Slot, Tensor]:
        """Return the parts that are states of the current batch, as rows; if ``flat`` also those that already are."""
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
    """The states kept of one stack, and what was learned from its first batch."""

    kept: dict[int, tuple[str, Tensor, torch.device]] = field(default_factory=dict)
    slots: dict[int, Slot] = field(default_factory=dict)
    """Which part the states are, by layer."""
    order: list[str] | None = None
    """Names of the blocks in the order in which the first batch ran them."""
    calls: list[str] = field(default_factory=list)
    n_entered: int = 0
    """How many blocks the current batch has entered."""
    n_calls: Counter[nn.Module] = field(default_factory=Counter)
    """Calls of each attention module since the current block was entered."""


def _first_difference(calls: list[str], before: list[str]) -> str:
    number = next(i for i, (now, then) in enumerate(zip_longest(calls, before)) if now != then)
    now, then = (repr(names[number]) if number < len(names) else "none" for names in (calls, before))
    return f"{now} as call {number + 1} where the first batch had {then}"
