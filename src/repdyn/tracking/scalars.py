"""What a training does at a step, beside its model: losses, the learning rate, tokens seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from repdyn.store.schema import Checkpoint, Row, scalar_row

Scalar: TypeAlias = float | Tensor | None
"""A number, on any device; None where it is not known."""


def scalar_rows(
    checkpoint: Checkpoint,
    probe: str,
    scalars: Mapping[str, Scalar],
    on_error: Callable[[Exception], None],
) -> list[Row]:
    """Return a row for each scalar that is known; ``on_error`` gets an error for each one that is
    not a number, and has no row.
    """
    rows = []
    for name, value in scalars.items():
        if value is None:
            continue
        # only here, at a measured step: to read a tensor, the host waits for the device
        try:
            # a loss that still has its graph is converted with a warning unless it is detached
            number = float(value.detach() if isinstance(value, Tensor) else value)
            rows.append(scalar_row(checkpoint, name, number, probe=probe))
        except (RuntimeError, TypeError, ValueError) as error:
            on_error(
                ValueError(f"expected {name} as one number, got {type(value).__name__}: {error}")
            )
    return rows


def add_tokens(seen: int | Tensor | None, batch: Any, world_size: int) -> int | Tensor | None:
    """Return the tokens seen so far, one more batch included; None from the first batch whose
    tokens are unknown.

    The sum stays a tensor until it is read: reading would wait for the device at every batch.
    """
    if seen is None or not isinstance(batch, Mapping):
        return None
    ids = batch.get("input_ids")
    mask = batch.get("attention_mask")
    # (batch, tokens) marks padding; a mask of more dimensions says which positions see which
    if isinstance(mask, Tensor) and mask.ndim == 2:
        is_of_tokens = not isinstance(ids, Tensor) or ids.shape == mask.shape
        if is_of_tokens:
            # counted, not added up: float32 stops counting at 2**24, bfloat16 at 256
            return seen + (mask != 0).sum() * world_size
    if isinstance(ids, Tensor):
        return seen + ids.numel() * world_size
    return None
