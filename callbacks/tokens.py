"""Counting the tokens a training has consumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def add_tokens(seen: int | Tensor | None, batch: Any, world_size: int) -> int | Tensor | None:
    """Tokens so far with those of one more batch; None from the first batch that does not show its tokens.

    The sum stays a tensor until somebody reads it: reading would wait for the device at every batch.
    """
    if seen is None or not isinstance(batch, Mapping):
        return None
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    # a mask of more dimensions says who sees whom
    if isinstance(mask, Tensor) and mask.ndim == 2 and (not isinstance(ids, Tensor) or ids.shape == mask.shape):
        # counted, not added up: masks come in floating types whose sums stop at 2**24, or at 256
        return seen + (mask != 0).sum() * world_size
    if isinstance(ids, Tensor):
        return seen + ids.numel() * world_size
    return None
