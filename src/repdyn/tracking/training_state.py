"""What is recorded of a training besides its measurements: a fingerprint of the weights, scalars, tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from repdyn.capture.library_classes import is_dtensor
from repdyn.store.scalars import LEARNING_RATE, LOSS, VALIDATION_LOSS
from repdyn.store.schema import Checkpoint, Row, scalar_row

Scalar: TypeAlias = float | Tensor | None
"""A number, on any device; None where it is not known."""

_PER_TENSOR = 64
_TITLES = {LOSS: "loss", VALIDATION_LOSS: "validation loss", LEARNING_RATE: "learning rate"}


def fingerprint(model: nn.Module) -> str:
    """Return 16 hexadecimal digits of up to 64 evenly spread values of each weight (of this rank's shard).

    It differs between any two steps of a training, unless every change missed the sample. Weights that do not expose
    their values, such as some quantised or not yet loaded ones, are left out.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(_sample(parameter.detach()).numpy().tobytes())
    return digest.hexdigest()[:16]


def _sample(weight: Tensor) -> Tensor:
    local = weight.to_local() if is_dtensor(weight) else weight
    if local.device.type == "meta":
        return torch.empty(0)
    try:
        return local.flatten()[:: max(1, local.numel() // _PER_TENSOR)][:_PER_TENSOR].double().cpu()
    except (NotImplementedError, RuntimeError):
        return torch.empty(0)


def scalar_rows(
    checkpoint: Checkpoint, probe: str, scalars: Mapping[str, Scalar], on_error: Callable[[Exception], None]
) -> list[Row]:
    """Return a row for each scalar that is known.

    Args:
        checkpoint: the one that is measured.
        probe: hash of the probe.
        scalars: values of the training by their names in :mod:`repdyn.store.scalars`.
        on_error: called with the error of a scalar that is not one number; it gets no row.
    """
    rows = []
    for name, value in scalars.items():
        if value is None:
            continue
        try:
            # a loss that still has its graph is converted with a warning unless it is detached
            number = float(value.detach() if isinstance(value, Tensor) else value)
            rows.append(scalar_row(checkpoint, name, number, probe=probe))
        except (RuntimeError, TypeError, ValueError) as error:
            on_error(ValueError(f"expected the {_TITLES[name]} as one number, got {type(value).__name__}: {error}"))
    return rows


def learning_rate_of(optimizer: Any) -> Scalar:
    """Return the learning rate of an optimizer's first parameter group; None where it has none."""
    groups = getattr(optimizer, "param_groups", None)
    return groups[0].get("lr") if groups else None


def add_tokens(seen: int | Tensor | None, batch: Any, world_size: int) -> int | Tensor | None:
    """Return the tokens seen so far, one more batch included; None from the first batch whose tokens are unknown.

    The sum stays a tensor until it is read: reading would wait for the device at every batch.
    """
    if seen is None or not isinstance(batch, Mapping):
        return None
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    # a mask of more dimensions says which positions see which
    if isinstance(mask, Tensor) and mask.ndim == 2 and (not isinstance(ids, Tensor) or ids.shape == mask.shape):
        # counted, not added up: masks come in floating types whose sums stop at 2**24, or at 256
        return seen + (mask != 0).sum() * world_size
    if isinstance(ids, Tensor):
        return seen + ids.numel() * world_size
    return None
