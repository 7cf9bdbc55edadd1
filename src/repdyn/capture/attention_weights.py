"""Finds attention weights among the outputs of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from repdyn.capture.token_states import TokenStates

_EXCESS = 0.02
"""How far a row of weights may exceed a sum of 1, in half precision."""


def find_weights(output: Any, token_states: TokenStates) -> Tensor | None:
    """Find attention weights in the output of a module for one sequence: shares that sum to at most 1.

    Args:
        output: the module's.
        token_states: finds the positions of the sequence's tokens.

    Returns:
        Weights (heads, n, n), from each of the n tokens to each; None where there are none.
    """
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else [output]
    for part in parts:
        if not isinstance(part, Tensor) or not part.is_floating_point() or part.ndim not in {3, 4}:
            continue
        weights = part[0] if part.ndim == 4 and len(part) == 1 else part
        # (1, n, n) may be the sequence's states
        if weights.ndim != 3 or weights.shape[1] != weights.shape[2] or (part.ndim == 3 and len(part) == 1):
            continue
        tokens = token_states.token_indices(weights.shape[1])
        if tokens is not None and _are_shares(weights):
            tokens = tokens.to(weights.device)
            return weights if len(tokens) == weights.shape[1] else weights[:, tokens[:, None], tokens]
    return None


def _are_shares(weights: Tensor) -> bool:
    sums = weights.sum(dim=-1, dtype=torch.float32)
    return bool((weights >= 0).all() and (sums > 0).all() and (sums <= 1 + _EXCESS).all())
