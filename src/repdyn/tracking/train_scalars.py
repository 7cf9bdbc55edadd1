"""Scalars of a training that are stored beside its measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from repdyn.store.schema import Checkpoint, Row, scalar_row
from repdyn.tables.scalars import LEARNING_RATE, LOSS

Scalar: TypeAlias = float | Tensor | None
"""A number, on whatever device; None where it is not known."""


def scalar_rows(
    checkpoint: Checkpoint, probe: str, loss: Scalar, learning_rate: Scalar, complain: Callable[[Exception], None]
) -> list[Row]:
    """Return a row for each scalar that is known.

    Args:
        checkpoint: the one that is measured.
        probe: hash of the probe.
        loss, learning_rate: those of the training.
        complain: is handed the error of a scalar that is not one number; it has no row.
    """
    rows = []
    for words, name, value in (("loss", LOSS, loss), ("learning rate", LEARNING_RATE, learning_rate)):
        if value is None:
            continue
        try:
            rows.append(scalar_row(checkpoint, name, float(value), probe=probe))
        except (RuntimeError, TypeError, ValueError) as error:
            complain(ValueError(f"expected the {words} as one number, got {type(value).__name__}: {error}"))
    return rows


def learning_rate_of(optimizer: Any) -> Scalar:
    """Return the learning rate of an optimizer's first parameter group; None where it has none."""
    groups = getattr(optimizer, "param_groups", None)
    return groups[0].get("lr") if groups else None
