"""Input states: which tensors in a forward pass hold vectors of a batch of inputs, and at which
positions they are taken.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from repdyn.capture.token_states import TokenStates


class InputStates(TokenStates):
    """A search for states with positions of their own, from which as many vectors are taken of each
    input.

    States are (n_inputs, n_positions, dim), (n_inputs, height, width, dim), or (n_inputs, dim)
    where one vector of each input is taken. Each stack may have a choice of positions of its own.

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
        tensors = [value for value in parts.values() if isinstance(value, Tensor)]
        of_inputs = [
            (tensor, by_input)
            for tensor in tensors
            if (by_input := self._by_input(tensor)) is not None
        ]
        n_inputs, n_required = self.batch.input_ids.shape
        if not of_inputs:
            got = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensor"
            maps = "; of maps of channels, give pooled features to repdyn.torchmetrics"
            return (
                f"expected states of shape ({n_inputs}, n_positions, dim) at {name!r}, got {got}; "
                "name blocks that pass such states with layers="
                f"{maps if any(tensor.ndim == 4 for tensor in tensors) else ''}"
            )
        states, by_input = of_inputs[0]
        fewest = int(self._counting(by_input).sum(1).min())
        return (
            f"expected at least {n_required} positions that count of each input at {name!r}, got "
            f"{fewest} in states of shape {tuple(states.shape)}; make the probe with "
            f"vectors_per_input={max(fewest, 1)} or of more inputs, or leave this layer out with "
            "layers="
        )

    def _by_input(self, states: Tensor) -> Tensor | None:
        """Return states as (n_inputs, n_positions, dim), or None."""
        n_inputs, wanted = self.batch.input_ids.shape
        if states.ndim == 2 and wanted == 1 and len(states) == n_inputs:
            return states.unsqueeze(1)
        # attention weights and masks are square, maps of patches hardly ever
        if states.ndim == 4 and len(states) == n_inputs and states.shape[2] != states.shape[3]:
            return states.flatten(1, 2)
        if states.ndim != 3 or states.shape[int(self._positions_first)] != n_inputs:
            return None
        return states.transpose(0, 1) if self._positions_first else states

    def _positions_of(self, states: Tensor) -> Tensor | None:
        """Return the positions that are taken, (n_inputs, vectors_per_input); None where too few
        count.
        """
        counting = self._counting(states)
        draws = self.batch.draws
        n_parts = self.batch.input_ids.shape[1]
        n_counting = counting.sum(1, keepdim=True)
        if int(n_counting.min()) < n_parts:
            return None
        bounds = torch.arange(n_parts + 1) * n_counting // n_parts
        ranks_of_taken = bounds[:, :-1] + (draws * bounds.diff()).long()
        # those that count come first, in their order
        return (~counting).int().argsort(dim=1, stable=True).gather(1, ranks_of_taken)

    def _counting(self, states: Tensor) -> Tensor:
        """Return which positions count by the stack's rule, (n_inputs, n_positions) on the CPU.

        A mask with more positions than the states (n_inputs, n_positions, dim), of samples where
        these are of frames, is scaled to them: where it covers the first part of an input, as many
        frames count as are covered in full.
        """
        rule = self.batch.rule_of(self.stack)
        if callable(rule):
            return self._counting_by_function(rule, states)
        if isinstance(rule, str):
            return self._counting_by_mask(rule, states.shape[1])
        counting = torch.zeros(states.shape[:2], dtype=torch.bool)
        counting[:, rule or slice(None)] = True
        return counting

    def _counting_by_function(self, rule: Callable[..., Any], states: Tensor) -> Tensor:
        """Return the mask that a function of the caller's returns for states."""
        counting = rule(states, self.batch.inputs)
        came = type(counting).__name__
        if isinstance(counting, Tensor):
            if counting.dtype == torch.bool and counting.shape == states.shape[:2]:
                return counting.cpu()
            came = f"{tuple(counting.shape)} of {counting.dtype}"
        raise ValueError(
            f"expected positions= to return a mask of shape {tuple(states.shape[:2])} of "
            f"torch.bool, got {came}; return True for each position that counts"
        )

    def _counting_by_mask(self, rule: str, n_positions: int) -> Tensor:
        """Return the mask that is among the inputs by the name ``rule``, scaled to the positions
        of states.
        """
        inputs = self.batch.inputs
        mask = inputs.get(rule) if isinstance(inputs, Mapping) else None
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            names = (
                ", ".join(inputs) if isinstance(inputs, Mapping) else f"{len(inputs)} without names"
            )
            raise ValueError(
                f"expected positions={rule!r} to name a mask (n_inputs, length) among the inputs, "
                f"got {names}; give the mask with the inputs, or a slice or a function as "
                "positions="
            )
        mask = mask.cpu() != 0
        length = mask.shape[1]
        if length == n_positions:
            return mask
        covered = mask.sum(1, keepdim=True)
        if length < n_positions or not bool((mask == (torch.arange(length) < covered)).all()):
            raise ValueError(
                f"expected the mask {rule!r} with one value for each of {n_positions} positions, "
                f"or padding at the end of longer inputs, got length {length}; give a function as "
                "positions= that returns the mask of the positions"
            )
        return torch.arange(n_positions) < covered * n_positions // length
