"""Branches: where each block's attention is added to the residual stream, learned from one pass of one sequence.

A block's post-attention state is what entered it plus what its attention puts out, before the feed-forward part. No
name says reliably which module's output that is, so it is looked up in what passes by: some module of the block takes
in exactly the sum (the norm of the feed-forward part, or the one after the attention), or the block puts out exactly
the sum and one other module's output (blocks that add both parts at once). What nothing confirms is refused, with a
reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from repdyn.capture.after_attention import Branch, Branches, Place, Slot, parts_of
from repdyn.capture.blocks import Block, Blocks
from repdyn.capture.recorder import Recorder
from repdyn.probe import ProbeBatch

NO_ATTENTION = "no part of the block is named attention"
NOT_ADDED = "the block does not add its attention's output to what entered it"
NESTED = "the blocks lie inside one another"

_NAME = re.compile(r"attn|attention", re.IGNORECASE)
Parts: TypeAlias = Mapping[Slot, Any]
# tokens that are looked at: thousands of numbers in each of a block's tensors
_TOKENS = 8
# roundings by which a sum may be off that the model has worked out in another order or precision
_ROUNDINGS = 2
# how much larger than that a branch must be, lest anything small be taken for it
_PLAIN = 10


def find_branches(
    blocks: Blocks, recorder: Recorder, batch: ProbeBatch, run: Callable[[ProbeBatch], object]
) -> Branches:
    """Learn from one forward pass where each block adds its attention to what entered it.

    Args:
        blocks: whose outputs are layers.
        recorder: of these blocks, for this batch alone, all of whose tokens it samples in their order; not attached.
        batch: one sequence, the probe's first.
        run: runs the model on it.

    Raises:
        RuntimeError: as :meth:`Recorder.expecting` does.
    """
    watch = _Watch(recorder)
    with watch.attached(blocks), recorder.attached(), recorder.expecting(batch):
        run(batch)
    layers = {(layer.stack, layer.index): layer.states[:_TOKENS] for layer in recorder.states().layers}
    places = [place for place in layers if place[1] > 0]
    if _nested(blocks):
        return dict.fromkeys(places, NESTED)
    return {
        (s, index): _branch(watch.seen[s, index], layers[s, index - 1], layers[s, index])
        if watch.has_attention[s, index]
        else NO_ATTENTION
        for s, index in places
    }


def _nested(blocks: Blocks) -> bool:
    modules = {block.module for block in blocks}
    return any(modules & set(module.modules()) - {module} for module in modules)


@dataclass(frozen=True, eq=False)
class _Seen:
    """The first tokens' vectors in one part of what a module took in or put out, (_TOKENS, dim)."""

    rows: Tensor
    module: nn.Module
    slot: Slot
    call: int
    """Which of the module's calls within the block."""
    taken_in: bool
    of_attention: bool = False
    """It was put out inside of the block's attention, or by what took that in as it was."""


class _Watch:
    """Hooks on all modules of the blocks: what they take in and put out, by stack and layer, in the order of time."""

    def __init__(self, recorder: Recorder) -> None:
        self.seen: dict[Place, list[_Seen]] = {}
        self.has_attention: dict[Place, bool] = {}
        self._recorder = recorder
        self._n_entered: Counter[str | None] = Counter()
        self._calls: Counter[nn.Module] = Counter()
        self._dims: set[int] = set()

    @contextmanager
    def attached(self, blocks: Blocks) -> Iterator[None]:
        handles = []
        whole = {block.module: block for block in blocks}
        of_stack = {module: block.stack for block in blocks for module in block.module.modules()}
        attention = {module for block in blocks for module in _attention_of(block.module)}
        try:
            for module, stack in of_stack.items():
                if module in whole:
                    enter = partial(self._enter, whole[module])
                    handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
                    continue
                take_in, put_out = partial(self._take_in, stack), partial(self._put_out, stack, module in attention)
                handles.append(module.register_forward_pre_hook(take_in, with_kwargs=True))
                handles.append(module.register_forward_hook(put_out))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, block: Block, _module: nn.Module, args: tuple, kwargs: dict) -> None:
        self._n_entered[block.stack] += 1
        self._calls.clear()
        given = {**dict(enumerate(args)), **kwargs}
        self._dims = {rows.shape[1] for rows in self._recorder.all_rows(given).values()}
        place = block.stack, self._n_entered[block.stack]
        self.seen[place], self.has_attention[place] = [], bool(_attention_of(block.module))

    def _take_in(self, stack: str | None, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self._note(stack, module, {**dict(enumerate(args)), **kwargs}, taken_in=True)

    def _put_out(self, stack: str | None, of_attention: bool, module: nn.Module, _args: tuple, output: Any) -> None:
        passed_on = of_attention or self._took_in_attention(stack, module)
        self._note(stack, module, parts_of(output), taken_in=False, of_attention=passed_on)
        self._calls[module] += 1

    def _took_in_attention(self, stack: str | None, module: nn.Module) -> bool:
        seen, call = self.seen.get((stack, self._n_entered[stack]), []), self._calls[module]
        taken_in = [one.rows for one in seen if one.taken_in and one.module is module and one.call == call]
        return any(one.of_attention and any(_equal(rows, one.rows) for rows in taken_in) for one in seen)

    def _note(
        self, stack: str | None, module: nn.Module, parts: Parts, taken_in: bool, of_attention: bool = False
    ) -> None:
        seen, call = self.seen.get((stack, self._n_entered[stack]), []), self._calls[module]
        # rows without an axis of sequences confirm a sum here, where there is one sequence, and are no branch
        for slot, rows in self._recorder.all_rows(parts, flat=not of_attention).items():
            if rows.shape[1] in self._dims:
                seen.append(_Seen(rows[:_TOKENS].clone(), module, slot, call, taken_in, of_attention))


def _attention_of(block: nn.Module) -> set[nn.Module]:
    """The modules inside of what is named attention. A norm may be named after it, and has no parts."""
    named = [
        module
        for name, module in block.named_modules()
        if _NAME.search(name.rpartition(".")[2])
        and (next(module.children(), None) is not None or _NAME.search(type(module).__name__))
    ]
    return {inner for module in named for inner in module.modules()}


def _branch(seen: list[_Seen], entered: Tensor, left: Tensor) -> Branch | str:
    """The branch of the block that led from one layer to the next, or why there is none."""
    fits = [one for one in seen if one.rows.shape == entered.shape]
    branches = [(place, one) for place, one in enumerate(fits) if one.of_attention and not one.taken_in]
    sums = [(place, one.rows) for place, one in enumerate(fits) if one.taken_in] + [(len(fits), left)]
    for scale_of in (_unscaled, _scale):
        for place, total in sums:
            for earlier, one in branches:
                if earlier < place and (scale := scale_of(entered, one.rows, total)) is not None:
                    return _as_branch(one, entered, scale)
    others = [one.rows for one in fits if not one.taken_in]
    for _, one in branches:
        if any(other is not one.rows and _adds_up(entered, one.rows, other, left) for other in others):
            return _as_branch(one, entered, 1.0)
    return NOT_ADDED


def _as_branch(one: _Seen, entered: Tensor, scale: float) -> Branch:
    return Branch(one.module, one.slot, one.call, torch.promote_types(one.rows.dtype, entered.dtype), scale)


def _unscaled(entered: Tensor, branch: Tensor, total: Tensor) -> float | None:
    return 1.0 if _equal(_sum(entered, branch), total) else None


def _scale(entered: Tensor, branch: Tensor, total: Tensor) -> float | None:
    """What the branch is multiplied by in a sum; None where the rest is more than rounding."""
    if _equal(entered, total):
        return None
    x, a, t = (tensor.to(entered.device).double() for tensor in (entered, branch, total))
    scale = float(((t - x) * a).sum() / a.square().sum())
    # the number that the model was given, if it was given a short one
    for shorter in (float(f"{scale:.{digits}g}") for digits in range(1, 9)):
        if _equal(_sum(entered, branch * shorter), total):
            return shorter
    if not _within_rounding(t - x - scale * a, scale * a, x.abs() + (scale * a).abs(), total.dtype):
        return None
    return 1.0 if abs(scale - 1) <= torch.finfo(total.dtype).eps else scale


def _adds_up(entered: Tensor, branch: Tensor, other: Tensor, total: Tensor) -> bool:
    """Whether a block puts out what entered it plus two branches."""
    orders = ((entered, branch, other), (branch, other, entered), (entered, other, branch))
    if any(_equal(_sum(_sum(first, second), third), total) for first, second, third in orders):
        return True
    x, a, b, t = (tensor.to(entered.device).double() for tensor in (entered, branch, other, total))
    return _within_rounding(t - x - a - b, a, x.abs() + a.abs() + b.abs(), total.dtype)


def _within_rounding(rest: Tensor, branch: Tensor, terms: Tensor, dtype: torch.dtype) -> bool:
    """Whether what is left of a sum is rounding, and the branch more than that."""
    rounding = _ROUNDINGS * torch.finfo(dtype).eps * torch.linalg.vector_norm(terms)
    return bool(torch.linalg.vector_norm(rest) <= rounding) and bool(
        torch.linalg.vector_norm(branch) >= _PLAIN * rounding
    )


def _sum(first: Tensor, second: Tensor) -> Tensor:
    return first + second.to(first.device)


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool((first == second.to(first)).all())
