"""Weights of a training: what tells those of one step from another's, averages of them, and what
metrics look at of the step before a measurement.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from repdyn.capture.wrappers import is_a
from repdyn.metrics import BlockWeights
from repdyn.tracking.scalars import Scalar
from repdyn.tracking.schedule import Schedule
from repdyn.utils.caller_state import plain_state

Weights: TypeAlias = Mapping[str, Tensor]
"""Parameters and buffers by their names in the module that is measured."""
AVERAGED = "averaged"
"""The kind of averaged weights; a part of their run's name and of their names in the loggers."""
_PER_TENSOR = 64
"""Values of a weight that a fingerprint reads."""
_NEVER = -1
"""A step that no training has."""


@plain_state()
def fingerprint(
    model: nn.Module, weights: Weights | None = None, *, with_buffers: bool = False
) -> str:
    """Return 16 hexadecimal digits of up to 64 evenly spread values of each weight (of this rank's
    shard).

    It differs between any two steps of a training, unless every change missed the sample. Weights
    that do not expose their values, such as some quantised or not yet loaded ones, are left out.

    Args:
        model: whose weights they are.
        weights: those in place of its own, by name.
        with_buffers: include buffers, such as the statistics of a batch normalisation.
    """
    digest = hashlib.sha256()
    in_model = [*model.named_parameters(), *(model.named_buffers() if with_buffers else ())]
    for name, model_weight in in_model:
        digest.update(name.encode())
        weight = weights[name] if weights and name in weights else model_weight
        weight = weight.detach()
        local = weight.to_local() if is_a(weight, "torch.DTensor") else weight
        # a tensor on "meta" has a shape and no values
        if local.device.type != "meta":
            with suppress(NotImplementedError, RuntimeError):
                sample = local.flatten()[:: max(1, local.numel() // _PER_TENSOR)][:_PER_TENSOR]
                sample = torch.view_as_real(sample) if sample.is_complex() else sample
                digest.update(sample.cpu().double().numpy().tobytes())
    return digest.hexdigest()[:16]


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def learning_rate_of(optimizers: Sequence[Any]) -> Scalar:
    """Return the learning rate of the first parameter group of the first optimizer, if any."""
    groups = getattr(optimizers[0], "param_groups", None) if optimizers else None
    return groups[0].get("lr") if groups else None


def weights_of_optimizers(
    model: nn.Module, optimizers: Sequence[Any]
) -> tuple[Weights | None, Weights | None]:
    """Return the trained and the averaged weights under a schedule-free optimizer; None for those
    that the model holds already.

    Such an optimizer trains y and averages x, and keeps z, with y = beta x + (1 - beta) z. The
    model holds y while it trains, and x after ``optimizer.eval()``. The other one is computed here,
    because the optimizer's own switch would write it into the model.

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
            # of the variants of Adam, and of SGD
            beta = group["betas"][0] if "betas" in group else group["momentum"]
            for parameter in group["params"]:
                name = names.get(id(parameter))
                state = optimizer.state.get(parameter, {})
                # before its first step a parameter has no z; without momentum y is z, and x cannot
                # be computed from them
                if name is None or "z" not in state or not beta:
                    continue
                in_model = parameter.detach()
                z = state["z"].to(parameter.dtype)
                if is_training:
                    # x = y + (1 - 1 / beta) (z - y), the definition of y solved for x
                    trained[name] = in_model
                    averaged[name] = in_model.lerp(z, 1 - 1 / beta)
                else:
                    trained[name] = in_model.lerp(z, 1 - beta)
                    averaged[name] = in_model
    if not averaged:
        return None, None
    return None if is_training else trained, averaged


class LastStep:
    """Keeps the gradients of a scheduled step and the weights before it, if a metric needs them.

    Gradients are copied as soon as the step is taken, since most loops clear them next; weights
    after every step whose next one is scheduled, since the optimizer overwrites them.

    Args:
        captures: the kinds of data that the metrics need, beside the states.
        schedule: the steps that are measured.
        module: the module that is measured; None where that is not known yet.
    """

    def __init__(
        self, captures: Collection[str], schedule: Schedule, module: nn.Module | None
    ) -> None:
        self.module = module
        self._needs_gradients = "gradients" in captures
        self._needs_weights = "weights_before" in captures
        self._schedule = schedule
        self.forget()

    def forget(self) -> None:
        """Drop what is kept."""
        self._gradients_at = _NEVER
        self._gradients: dict[str, Tensor] = {}
        self._weights_after = _NEVER
        self._weights: dict[str, Tensor] = {}

    def keep_gradients(self, step: int) -> None:
        """Keep the gradients of a scheduled step, where a trainer clears them before the step is
        measured.
        """
        if self._needs_gradients and self.module is not None and step in self._schedule:
            self._gradients_at = step
            self._gradients = {
                name: gradient.clone() for name, gradient in _gradients(self.module).items()
            }

    def keep_weights(self, step: int) -> None:
        """Keep the weights after a step if the next one is measured."""
        # a copy of all weights: only where the next step is measured
        is_needed = self._needs_weights and step + 1 in self._schedule
        if is_needed and self.module is not None and self._weights_after != step:
            self._weights_after = step
            self._weights = {
                name: weight.detach().clone() for name, weight in self.module.named_parameters()
            }

    def take(self, step: int, module: nn.Module) -> BlockWeights | None:
        """Return the gradients and earlier weights of the step that is measured, and drop them."""
        self.module = module
        if not self._needs_gradients and not self._needs_weights:
            return None
        # what was kept belongs to another step where this one was not scheduled, as the last is not
        gradients = self._gradients if self._gradients_at == step else _gradients(module)
        before = self._weights if self._weights_after == step - 1 else {}
        self.forget()
        return BlockWeights({}, gradients, before)


def _gradients(module: nn.Module) -> dict[str, Tensor]:
    return {
        name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None
    }
