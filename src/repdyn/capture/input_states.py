"""The states of a probe's inputs: the vectors of each input that are taken among the positions that count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from repdyn.capture.token_states import TokenStates
from repdyn.probe.inputs import CountingRule, InputBatch


class InputStates(TokenStates):
    """A search for states with positions of their own, from which as many vectors are taken of each input.

    States are (n_inputs, n_positions, dim), (n_inputs, height, width, dim), or (n_inputs, dim) where one vector of each
    input is taken. Each stack may have a choice of positions of its own.

    Args:
        positions_first: whether states are (n_positions, n_inputs, dim) instead.
    """

    def __init__(self, *, positions_first: bool = False) -> None:
        super().__init__()
        self._positions_first = positions_first

    def rows_of(self, states: Tensor) -> Tensor | None:
        by_input = self._by_input(states)
        positions = None if by_input is None else self._positions_of(by_input)
        if by_input is None or positions is None:
            return None
        index = positions.to(by_input.device).unsqueeze(-1).expand(-1, -1, by_input.shape[-1])
        return by_input.gather(1, index).flatten(0, 1)

    def explain_mismatch(self, name: str, parts: Mapping[Any, Any]) -> str:
        tensors = [part for part in parts.values() if isinstance(part, Tensor)]
        found = [(each, by_input) for each in tensors if (by_input := self._by_input(each)) is not None]
        n_inputs, wanted = self.shape
        if not found:
            got = ", ".join(str(tuple(each.shape)) for each in tensors) or "no tensor"
            return (
                f"expected states of shape ({n_inputs}, n_positions, dim) at {name!r}, got {got}; name blocks that "
                "pass such states with layers="
            )
        states, by_input = found[0]
        fewest = int(self._counting(by_input).sum(1).min())
        return (
            f"expected at least {wanted} positions that count of each input at {name!r}, got {fewest} in states of "
            f"shape {tuple(states.shape)}; take fewer vectors of more inputs (max_vectors= and vectors_per_input= of "
            "Probe.from_inputs), or leave this layer out with layers="
        )

    def _by_input(self, states: Tensor) -> Tensor | None:
        """Return states as (n_inputs, n_positions, dim), or None."""
        n_inputs, wanted = self.shape
        if states.ndim == 2 and wanted == 1 and len(states) == n_inputs:
            return states.unsqueeze(1)
        # attention weights and masks are square, maps of patches hardly ever
        if states.ndim == 4 and len(states) == n_inputs and states.shape[2] != states.shape[3]:
            return states.flatten(1, 2)
        if states.ndim != 3 or states.shape[int(self._positions_first)] != n_inputs:
            return None
        return states.transpose(0, 1) if self._positions_first else states

    def _positions_of(self, states: Tensor) -> Tensor | None:
        """Return the positions that are taken, (n_inputs, vectors_per_input); None where too few count."""
        counting, draws = self._counting(states), self._batch.required_draws
        n_parts, n_counting = self.shape[1], counting.sum(1, keepdim=True)
        if int(n_counting.min()) < n_parts:
            return None
        bounds = torch.arange(n_parts + 1) * n_counting // n_parts
        place = bounds[:, :-1] + (draws * bounds.diff()).long()
        # those that count come first, in their order
        return (~counting).int().argsort(dim=1, stable=True).gather(1, place)

    def _counting(self, states: Tensor) -> Tensor:
        """Return which positions count, (n_inputs, n_positions) on the CPU."""
        inputs, rule = self._batch.inputs, self._batch.rule_of(self.stack)
        return counting_positions(states, inputs, rule)


def counting_positions(states: Tensor, inputs: InputBatch, rule: CountingRule) -> Tensor:
    """Return which positions count by a rule, (n_inputs, n_positions) on the CPU.

    A mask with more positions than the states, of samples where the states are of frames, is scaled to them: where it
    covers the first part of an input, as many frames count as are covered in full.

    Args:
        states: (n_inputs, n_positions, dim).
        inputs: those of the batch.
        rule: see :data:`repdyn.probe.inputs.CountingRule`.

    Raises:
        ValueError: a mask that is not among the inputs, or a function that returns no mask.
    """
    shape = states.shape[:2]
    if rule is None:
        return torch.ones(shape, dtype=torch.bool)
    if isinstance(rule, slice):
        counting = torch.zeros(shape, dtype=torch.bool)
        counting[:, rule] = True
        return counting
    if isinstance(rule, str):
        mask = inputs.get(rule) if isinstance(inputs, Mapping) else None
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            names = ", ".join(inputs) if isinstance(inputs, Mapping) else f"{len(inputs)} without names"
            raise ValueError(
                f"expected positions={rule!r} to name a mask (n_inputs, length) among the inputs, got {names}; give "
                "the mask with the inputs, or a slice or a function as positions="
            )
        return _scaled(mask.cpu() != 0, shape[1], rule)
    counting = rule(states, inputs)
    if not isinstance(counting, Tensor) or counting.dtype != torch.bool or counting.shape != shape:
        came = (
            f"{tuple(counting.shape)} of {counting.dtype}" if isinstance(counting, Tensor) else type(counting).__name__
        )
        raise ValueError(
            f"expected positions= to return a mask of shape {tuple(shape)} of torch.bool, got {came}; return True for "
            "each position that counts"
        )
    return counting.cpu()


def _scaled(mask: Tensor, n_positions: int, name: str) -> Tensor:
    length = mask.shape[1]
    if length == n_positions:
        return mask
    covered = mask.sum(1, keepdim=True)
    if length < n_positions or not bool((mask == (torch.arange(length) < covered)).all()):
        raise ValueError(
            f"expected the mask {name!r} with one value for each of {n_positions} positions, or padding at the end of "
            f"longer inputs, got length {length}; give a function as positions= that returns the mask of the positions"
        )
    return torch.arange(n_positions) < covered * n_positions // length
