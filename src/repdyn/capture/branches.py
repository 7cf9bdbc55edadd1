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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.capture.blocks import Block
from repdyn.capture.states import STATES_BYTES, Branch, Branches, Buffers, LayerKey, Recorder
from repdyn.capture.token_states import Slot, are_equal, watched, widened
from repdyn.probe import ProbeBatch

if TYPE_CHECKING:
    from repdyn.capture.runnable_model import RunningModel

NO_ATTENTION = "no part of the block is named attention"
NOT_ADDED = "the block does not add its attention's output to what entered it"
NESTED = "the blocks lie inside one another"

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
    module: nn.Module
    slot: Slot
    call: int
    """Which of the module's calls within the block."""
    is_input: bool
    of_attention: bool = False
    """Whether it was returned inside the block's attention, or by a module that received that
    unchanged.
    """


def find_branches(running: RunningModel, batch: ProbeBatch) -> Branches:
    """Learn from one forward pass, of one sequence, where each block adds its attention's output to
    its input.
    """
    blocks = running.model.blocks
    modules = {block.module for block in blocks}
    stack_of = {module: block.stack for block in blocks for module in block.module.modules()}
    inside = [
        Block("", module, stack) for module, stack in stack_of.items() if module not in modules
    ]
    attention = {module: _attention_of(module) for module in modules}
    attentive = set().union(*attention.values())
    recorder = Recorder(running.model, np.arange(len(batch.positions)), Buffers(STATES_BYTES))
    rows_by_slot = recorder.token_states.rows_by_slot
    tensors: dict[LayerKey, list[_ModuleTensor]] = defaultdict(list)  # in the order of time
    has_attention: dict[LayerKey, bool] = {}
    n_entered, calls, dims = Counter[str | None](), Counter[nn.Module](), set[int]()

    def enter(block: Block, taken: Mapping[Slot, Any]) -> None:
        n_entered[block.stack] += 1
        has_attention[block.stack, n_entered[block.stack]] = bool(attention[block.module])
        calls.clear()
        dims.clear()
        dims.update(rows.shape[1] for rows in rows_by_slot(taken).values())

    def keep(part: Block, parts: Mapping[Slot, Any], *, of_attention: bool | None = None) -> None:
        # rows without an axis of sequences confirm a sum here, where there is one sequence, and are
        # no branch
        for slot, rows in rows_by_slot(parts, flat=not of_attention).items():
            if rows.shape[1] in dims:
                first, is_input = rows[:_TOKENS].clone(), of_attention is None
                tensor = _ModuleTensor(
                    first, part.module, slot, calls[part.module], is_input, bool(of_attention)
                )
                tensors[part.stack, n_entered[part.stack]].append(tensor)

    def leave(part: Block, returned: Mapping[Slot, Any]) -> None:
        module = part.module
        call = calls[module]
        seen = tensors[part.stack, n_entered[part.stack]]
        received = [
            one.rows for one in seen if one.is_input and one.module is module and one.call == call
        ]
        passed_on = any(
            one.of_attention and any(are_equal(rows, one.rows) for rows in received) for one in seen
        )
        keep(part, returned, of_attention=module in attentive or passed_on)
        calls[module] += 1

    with watched(blocks, enter), watched(inside, keep, leave), recorder.recording(batch):
        running(batch)
    layers = {
        (layer.stack, layer.index): layer.states[:_TOKENS] for layer in recorder.states().layers
    }
    keys = [key for key in layers if key[1] > 0]
    if any(modules & set(module.modules()) - {module} for module in modules):
        return dict.fromkeys(keys, NESTED)
    return {
        (s, index): _branch(tensors[s, index], layers[s, index - 1], layers[s, index])
        if has_attention[s, index]
        else NO_ATTENTION
        for s, index in keys
    }


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
    fits = [one for one in tensors if one.rows.shape == entered.shape]
    branches = [
        (place, one) for place, one in enumerate(fits) if one.of_attention and not one.is_input
    ]
    sums = [(place, one.rows) for place, one in enumerate(fits) if one.is_input] + [
        (len(fits), left)
    ]
    for scale_of in (_unscaled, _scale):
        for place, total in sums:
            for earlier, one in branches:
                if earlier < place and (scale := scale_of(entered, one.rows, total)) is not None:
                    return _as_branch(one, entered, scale)
    others = [one.rows for one in fits if not one.is_input]
    for _, one in branches:
        if any(
            other is not one.rows and _adds_up(entered, one.rows, other, left) for other in others
        ):
            return _as_branch(one, entered, 1.0)
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
    if not _within_rounding(t - x - scale * a, scale * a, x.abs() + (scale * a).abs(), total.dtype):
        return None
    return 1.0 if abs(scale - 1) <= torch.finfo(total.dtype).eps else scale


def _adds_up(entered: Tensor, branch: Tensor, other: Tensor, total: Tensor) -> bool:
    """Return whether a block returns its input plus two branches."""
    orders = ((entered, branch, other), (branch, other, entered), (entered, other, branch))
    if any(are_equal(_sum(_sum(first, second), third), total) for first, second, third in orders):
        return True
    x, a, b, t = (widened(tensor.to(entered.device)) for tensor in (entered, branch, other, total))
    return _within_rounding(t - x - a - b, a, x.abs() + a.abs() + b.abs(), total.dtype)


def _within_rounding(rest: Tensor, branch: Tensor, terms: Tensor, dtype: torch.dtype) -> bool:
    """Return whether the rest of a sum is rounding, and the branch more than that."""
    rounding = _ROUNDINGS * torch.finfo(dtype).eps * torch.linalg.vector_norm(terms)
    return bool(torch.linalg.vector_norm(rest) <= rounding) and bool(
        torch.linalg.vector_norm(branch) >= _MIN_SIZE * rounding
    )


def _sum(first: Tensor, second: Tensor) -> Tensor:
    return first + second.to(first.device)
