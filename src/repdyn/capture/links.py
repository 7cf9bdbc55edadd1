"""Whether the blocks of a model pass one stream of states from each to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from repdyn.capture.after_attention import Slot, inputs_by_slot, outputs_by_slot
from repdyn.capture.blocks import Block, list_candidates
from repdyn.capture.token_states import TokenStates


class Links:
    """Hooks that compare what each block takes with what the one before returned, in a pass over one batch.

    Args:
        model: the module that is run.
        blocks: its blocks, which pass states from one to the next, or do not.
        states: where the tokens of the batch are, in any tensor of a block.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[Block], states: TokenStates) -> None:
        self._model, self._blocks, self._states = model, blocks, states
        self._entered: dict[str | None, dict[Slot, Tensor]] = {}
        self._left: dict[str | None, tuple[str, dict[Slot, Tensor]]] = {}
        self.slots: dict[str | None, tuple[Slot, Slot]] = {}
        """By stack, which part of what blocks take and which of what they return the states are."""
        self._called: set[str] = set()
        self.failure = ""
        """What was wrong with the blocks that ran."""

    @property
    def reason(self) -> str:
        """Why the blocks are not the layers of one stream; "" where they are."""
        return self.failure or silent_blocks(self._blocks, self._model, self._called)

    @contextmanager
    def attached(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for block in self._blocks:
                enter, leave = partial(self._enter, block), partial(self._leave, block)
                hooks.enter_context(block.module.register_forward_pre_hook(enter, with_kwargs=True))
                hooks.enter_context(block.module.register_forward_hook(leave))
            yield

    def _enter(self, block: Block, _module: nn.Module, args: tuple, kwargs: dict) -> None:
        entered = self._rows(block, inputs_by_slot(args, kwargs))
        previous, left = self._left.get(block.stack, ("", {}))
        before = self._entered.get(block.stack, {}).values()
        self._entered[block.stack] = entered
        if not left or self.failure:
            return
        pairs = [(into, out) for out in left for into in entered if _same(left[out], entered[into])]
        # what a block only passes on, such as positions, is not its states
        pairs.sort(key=lambda pair: any(_same(states, left[pair[1]]) for states in before))
        if pairs:
            self.slots.setdefault(block.stack, pairs[0])
            return
        self.failure = (
            f"expected blocks that each take the output of the one before, but {block.name!r} does not take the output "
            f"of {previous!r}, so that these are not the layers of one stream; name the blocks that are with layers=, "
            f"or run the model once with forward=; the model has {list_candidates(self._model)}"
        )

    def _leave(self, block: Block, _module: nn.Module, _args: tuple, output: Any) -> None:
        self._called.add(block.name)
        self._left[block.stack] = block.name, self._rows(block, outputs_by_slot(output))

    def _rows(self, block: Block, parts: Mapping[Slot, Any]) -> dict[Slot, Tensor]:
        self._states.stack = block.stack
        tensors = {k: part for k, part in parts.items() if isinstance(part, Tensor) and part.is_floating_point()}
        found = {slot: rows for slot, part in tensors.items() if (rows := self._states.rows_of(part)) is not None}
        if not found and not self.failure:
            self.failure = self._states.explain_mismatch(block.name, parts)
        return found


def silent_blocks(blocks: Sequence[Block], model: nn.Module, called: Collection[str]) -> str:
    """Return what is wrong where some blocks were not called in a pass; "" where all were."""
    silent = [block.name for block in blocks if block.name not in called]
    if not silent:
        return ""
    return (
        f"expected every block to run, but {len(silent)} of {len(blocks)} did not: {_few(silent)}; the forward "
        "pass does not go through them. Name the blocks it does go through with layers=; the model has "
        f"{list_candidates(model)}"
    )


def _same(states: Tensor, others: Tensor) -> bool:
    """Return whether two tensors are the same states, up to device, precision and one scale factor.

    RWKV halves its states every few blocks against overflow.
    """
    if states.shape != others.shape:
        return False
    states = states.to(others)
    if torch.allclose(states, others, rtol=0, atol=0, equal_nan=True):
        return True
    finite = states.isfinite() & others.isfinite()
    a, b = states[finite].double(), others[finite].double()
    scale = (a * b).sum() / a.square().sum()
    rounding = 2 * torch.finfo(others.dtype).eps
    return bool(scale != 0) and torch.allclose(scale * a, b, rtol=rounding, atol=0)


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
