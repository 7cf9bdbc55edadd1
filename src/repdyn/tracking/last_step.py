"""The training step before a measurement, as far as metrics look at it."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from repdyn.metrics import BlockWeights
from repdyn.tracking.schedule import Schedule

_NEVER = -1


class LastStep:
    """Keeps the gradients of a scheduled step and the weights before it, if a metric needs them.

    Args:
        captures: what the metrics need.
        schedule: by which steps are measured.
        module: what is measured; None where that is not known yet.
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
        """Keep nothing."""
        self._gradients_at = _NEVER
        self._gradients: dict[str, Tensor] = {}
        self._weights_after = _NEVER
        self._weights: dict[str, Tensor] = {}

    def keep_gradients(self, step: int) -> None:
        """Keep the gradients of a scheduled step, for a trainer that clears them before the step is
        measured.
        """
        if self._needs_gradients and self.module is not None and step in self._schedule:
            self._gradients_at = step
            self._gradients = {
                name: gradient.clone() for name, gradient in _gradients(self.module).items()
            }

    def keep_weights(self, step: int) -> None:
        """Keep the weights after a step, from which the next one leads to weights that are
        measured.
        """
        is_needed = self._needs_weights and step + 1 in self._schedule
        if is_needed and self.module is not None and self._weights_after != step:
            self._weights_after = step
            self._weights = {
                name: weight.detach().clone() for name, weight in self.module.named_parameters()
            }

    def take(self, step: int, module: nn.Module) -> BlockWeights | None:
        """Return what is known of the step that led to a measured one; it is kept no longer."""
        self.module = module
        if not self._needs_gradients and not self._needs_weights:
            return None
        gradients = self._gradients if self._gradients_at == step else _gradients(module)
        before = self._weights if self._weights_after == step - 1 else {}
        self.forget()
        return BlockWeights({}, gradients, before)


def _gradients(module: nn.Module) -> dict[str, Tensor]:
    return {
        name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None
    }
