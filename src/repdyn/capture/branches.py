"""Branches: where each block's attention is added to the residual stream, learned from one pass of
one sequence.

A block's post-attention state is its input plus its attention's output. No name identifies reliably
which module's output that is, so it is inferred from the tensors that pass through: some module of
the block takes exactly the sum (the norm of the feed-forward part, or the one after the attention),
or the block returns exactly the sum and one other module's output (blocks that add both parts at
once). What nothing confirms is rejected, with a reason.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.capture.blocks import Block, Blocks
from repdyn.capture.states import STATES_BYTES, Branch, Branches, Buffers, LayerKey, Recorder
from repdyn.capture.token_states import Slot, are_equal, watched, widened
from repdyn.probe import ProbeBatch

if TYPE_CHECKING:
    from repdyn.capture.model import RunnableModel

NO_ATTENTION = "no part of the block is named attention"
NOT_ADDED = "the block does not add its attention's output to what entered it"

_NAME = re.compile(r"attn|attention", re.IGNORECASE)
# tokens that are compared: thousands of numbers in each of a block's tensors
_TOKENS = 8
# roundings by which a sum may be off that the model has computed in another order or precision
_ROUNDINGS = 2
# how much larger than that a branch must be, so that nothing small passes for it
_MIN_SIZE = 10


@dataclass(frozen=True, eq=False)
class _ModuleTensor:
    """The first tokens' vectors in one part of a module's inputs or outputs, (_TOKENS, dim)."""

    rows: Tensor
    module: str
    slot: Slot
    call: int
    """Which of the module's calls within the block."""
    is_input: bool
    of_attention: bool
    """Whether it was returned inside the block's attention, or by a module that received that
    unchanged.
    """


class _Watch:
    """Keeps the tensors that the modules inside of blocks take and return, block by block.

    Args:
        blocks: the blocks, each of which begins a layer.
        rows_by_slot: returns the parts of a call that are states, as rows.
    """

    def __init__(self, blocks: Blocks, rows_by_slot: Callable[..., Mapping[Slot, Tensor]]) -> None:
        self.tensors: dict[LayerKey, list[_ModuleTensor]] = defaultdict(list)
        """By layer, in the order of time."""
        self.has_attention: dict[LayerKey, bool] = {}
        self._rows_by_slot = rows_by_slot
        self._attention = {block.module: _attention_of(block.module) for block in blocks}
        self._attentive = set().union(*self._attention.values())
        self._n_entered = Counter[str | None]()
        self._calls = Counter[nn.Module]()
        self._dims = set[int]()

    def enter_block(self, block: Block, taken: Mapping[Slot, Any]) -> None:
        self._n_entered[block.stack] += 1
        self.has_attention[self._layer(block)] = bool(self._attention[block.module])
        self._calls.clear()
        self._dims = {rows.shape[1] for rows in self._rows_by_slot(taken).values()}

    def enter(self, inner: Block, taken: Mapping[Slot, Any]) -> None:
        self._keep(inner, taken, is_input=True, of_attention=False)

    def leave(self, inner: Block, returned: Mapping[Slot, Any]) -> None:
        module = inner.module
        seen = self.tensors[self._layer(inner)]
        received = [
            tensor.rows
            for tensor in seen
            if tensor.is_input and (tensor.module, tensor.call) == (inner.name, self._calls[module])
        ]
        passed_on = any(
            tensor.of_attention and any(are_equal(rows, tensor.rows) for rows in received)
            for tensor in seen
        )
        of_attention = module in self._attentive or passed_on
        self._keep(inner, returned, is_input=False, of_attention=of_attention)
        self._calls[module] += 1

    def _layer(self, block: Block) -> LayerKey:
        return block.stack, self._n_entered[block.stack]

    def _keep(
        self, inner: Block, parts: Mapping[Slot, Any], *, is_input: bool, of_attention: bool
    ) -> None:
        # rows without an axis of sequences confirm a sum here, where there is one sequence, and are
        # no branch
        for slot, rows in self._rows_by_slot(parts, flat=not of_attention).items():
            if rows.shape[1] in self._dims:
                tensor = _ModuleTensor(
                    rows=rows[:_TOKENS].clone(),
                    module=inner.name,
                    slot=slot,
                    call=self._calls[inner.module],
                    is_input=is_input,
                    of_attention=of_attention,
                )
                self.tensors[self._layer(inner)].append(tensor)


def find_branches(model: RunnableModel, batch: ProbeBatch) -> Branches:
    """Learn from one forward pass, of one sequence, where each block adds its attention's output to
    its input.

    The pass runs by itself, so that what a model draws or changes in it does not reach the pass
    over the probe.
    """
    with model.evaluating() as running:
        blocks = running.model.blocks
        modules = {block.module for block in blocks}
        stack_of = {module: block.stack for block in blocks for module in block.module.modules()}
        inside = [
            Block(name, module, stack_of[module])
            for name, module in running.model.module.named_modules()
            if module in stack_of and module not in modules
        ]
        recorder = Recorder(running.model, np.arange(len(batch.positions)), Buffers(STATES_BYTES))
        watch = _Watch(blocks, recorder.token_states.rows_by_slot)
        with (
            watched(blocks, watch.enter_block),
            watched(inside, watch.enter, watch.leave),
            recorder.recording(batch),
        ):
            running(batch)
    layers = {
        (layer.stack, layer.index): layer.states[:_TOKENS] for layer in recorder.states().layers
    }
    branches: dict[LayerKey, Branch | str] = {}
    for (stack, index), left in layers.items():
        key = stack, index
        if index == 0:
            continue
        if not watch.has_attention[key]:
            branches[key] = NO_ATTENTION
        else:
            branches[key] = _branch(watch.tensors[key], layers[stack, index - 1], left)
    return branches


def _attention_of(block: nn.Module) -> set[nn.Module]:
    """Return the modules inside those named attention. A norm may be named after it, and has no
    parts.
    """
    named = [
        module
        for name, module in block.named_modules()
        if _NAME.search(name.rpartition(".")[2])
        and (next(module.children(), None) is not None or _NAME.search(type(module).__name__))
    ]
    return {inner for module in named for inner in module.modules()}


def _branch(tensors: list[_ModuleTensor], entered: Tensor, left: Tensor) -> Branch | str:
    """Return the branch of the block that leads from one layer to the next, or why there
    is none.
    """
    fits = [tensor for tensor in tensors if tensor.rows.shape == entered.shape]
    branches = [
        (time, tensor)
        for time, tensor in enumerate(fits)
        if tensor.of_attention and not tensor.is_input
    ]
    sums = [(time, tensor.rows) for time, tensor in enumerate(fits) if tensor.is_input]
    sums.append((len(fits), left))
    for scale_of in (_unscaled, _scale):
        for time_of_sum, total in sums:
            for time, branch in branches:
                scale = scale_of(entered, branch.rows, total) if time < time_of_sum else None
                if scale is not None:
                    return _as_branch(branch, entered, scale)
    outputs = [tensor for tensor in fits if not tensor.is_input]
    return _branch_of_two_outputs(outputs, entered, left)


def _branch_of_two_outputs(
    outputs: list[_ModuleTensor], entered: Tensor, left: Tensor
) -> Branch | str:
    """Return the branch of a block that adds it and another output to its input at once."""
    for branch in outputs:
        if not branch.of_attention:
            continue
        for other in outputs:
            if other is not branch and _adds_up(entered, branch.rows, other.rows, left):
                return _as_branch(branch, entered, 1.0)
    return NOT_ADDED


def _as_branch(tensor: _ModuleTensor, entered: Tensor, scale: float) -> Branch:
    return Branch(
        module=tensor.module,
        slot=tensor.slot,
        call=tensor.call,
        dtype=torch.promote_types(tensor.rows.dtype, entered.dtype),
        scale=scale,
    )


def _unscaled(entered: Tensor, branch: Tensor, total: Tensor) -> float | None:
    return 1.0 if are_equal(_sum(entered, branch), total) else None


def _scale(entered: Tensor, branch: Tensor, total: Tensor) -> float | None:
    """Return the factor of the branch in a sum; None where the rest is more than rounding."""
    if are_equal(entered, total):
        return None
    x, a, t = (widened(tensor.to(entered.device)) for tensor in (entered, branch, total))
    scale = float(((t - x) * a).sum() / a.square().sum())
    # the configured number, if it is a short one
    for shorter in (float(f"{scale:.{digits}g}") for digits in range(1, 9)):
        if are_equal(_sum(entered, branch * shorter), total):
            return shorter
    norm = torch.linalg.vector_norm
    rounding = _ROUNDINGS * torch.finfo(total.dtype).eps * norm(x.abs() + (scale * a).abs())
    is_sum = norm(t - x - scale * a) <= rounding and norm(scale * a) >= _MIN_SIZE * rounding
    return scale if is_sum else None


def _adds_up(entered: Tensor, branch: Tensor, other: Tensor, total: Tensor) -> bool:
    """Return whether a block returns its input plus two branches, added one after the other or
    first to each other.
    """
    orders = ((entered, branch, other), (branch, other, entered))
    return any(
        are_equal(_sum(_sum(first, second), third), total) for first, second, third in orders
    )


def _sum(first: Tensor, second: Tensor) -> Tensor:
    return first + second.to(first.device)
