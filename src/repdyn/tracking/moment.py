"""What is recorded of a training besides its measurements: step, tokens, scalars, and which weights it has."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from repdyn.capture.wrappers import is_dtensor
from repdyn.store.scalars import LEARNING_RATE, LOSS, VALIDATION_LOSS
from repdyn.store.schema import Checkpoint, Row, scalar_row

Scalar: TypeAlias = float | Tensor | None
"""A number, on any device; None where it is not known."""
Weights: TypeAlias = Mapping[str, Tensor]
"""Parameters and buffers by their names in the module that is measured."""

_PER_TENSOR = 64
_TITLES = {LOSS: "loss", VALIDATION_LOSS: "validation loss", LEARNING_RATE: "learning rate"}


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Describes a training after a step."""

    step: int
    """Optimizer steps taken, as the loggers of the training count them."""
    trainer_step: int | None = None
    """The trainer's own count, by which checkpoints are named, if it has one."""
    tokens_seen: int | None = None
    """Training tokens consumed, if known."""
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    """Values that are stored with the measurement, by their names in :mod:`repdyn.store.scalars`."""
    weights: Weights | None = None
    """What is measured in place of the model's own weights; None for these."""
    averaged: Weights | None = None
    """Averaged weights of the same model, which are measured as well."""


def fingerprint(model: nn.Module, weights: Weights | None = None, *, with_buffers: bool = False) -> str:
    """Return 16 hexadecimal digits of up to 64 evenly spread values of each weight (of this rank's shard).

    It differs between any two steps of a training, unless every change missed the sample. Weights that do not expose
    their values, such as some quantised or not yet loaded ones, are left out.

    Args:
        model: whose weights they are.
        weights: those in place of its own, by name.
        with_buffers: include buffers, such as the statistics of a batch normalisation.
    """
    digest = hashlib.sha256()
    for name, own in [*model.named_parameters(), *(model.named_buffers() if with_buffers else ())]:
        digest.update(name.encode())
        weight = weights[name] if weights and name in weights else own
        digest.update(_sample(weight.detach()).numpy().tobytes())
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


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def averages_of(model: nn.Module, holders: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Yield the averages of a model that modules hold (``torch.optim.swa_utils.AveragedModel``), once they have any."""
    for holder in holders:
        for module in holder.modules():
            if isinstance(module, AveragedModel) and int(module.n_averaged) and type(module.module) is type(model):
                yield module.module


def by_schedule_free(model: nn.Module, optimizers: Iterable[Any]) -> tuple[Weights | None, Weights | None]:
    """Return the trained and the averaged weights under a schedule-free optimizer; None for the model's own.

    The model holds y while it trains and the average x after ``optimizer.eval()``; the optimizer keeps z, of which
    y = beta x + (1 - beta) z. Its own switch between them would write into the model.

    Source: Defazio et al. (2024), The Road Less Scheduled, equations 7 to 9.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained: dict[str, Tensor] = {}
    averaged: dict[str, Tensor] = {}
    is_training = True
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            if "train_mode" not in group:
                continue
            is_training = group["train_mode"]
            beta = group["betas"][0] if "betas" in group else group["momentum"]
            for parameter in group["params"]:
                name, state = names.get(id(parameter)), optimizer.state.get(parameter, {})
                if name is None or "z" not in state or not beta:
                    continue
                now, z = parameter.detach(), state["z"].to(parameter.dtype)
                averaged[name] = now.lerp(z, 1 - 1 / beta) if is_training else now
                trained[name] = now if is_training else now.lerp(z, 1 - beta)
    if not averaged:
        return None, None
    return (None, averaged) if is_training else (trained, averaged)
