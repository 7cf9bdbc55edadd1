"""What a user asks to be measured, and what can be told to be wrong with it before there is a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from repdyn.layers.blocks import Layers
from repdyn.layers.forward import Forward
from repdyn.measurement import metric_set
from repdyn.metrics import DEFAULT_METRICS, MetricLike, resolve
from repdyn.probe import Probe

OnFailure: TypeAlias = Literal["warn", "raise"]


def refuse_unusable(metrics: str | Sequence[MetricLike], on_error: str) -> None:
    """What can be told to be wrong before there is a training.

    Raises:
        ValueError: an unknown metric, two settings of one, or another word than "warn" or "raise".
    """
    if on_error not in {"warn", "raise"}:
        raise ValueError(f'expected on_error "warn" or "raise", got {on_error!r}')
    pairs = [(metric.name, subset) for metric, subset in resolve(metrics)]
    if repeated := sorted({pair for pair in pairs if pairs.count(pair) > 1}):
        metric, subset = repeated[0]
        raise ValueError(
            f"expected one setting of each metric, got several of {metric} on {subset}; attach a tracker for each, "
            "with different name="
        )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be measured, and how; arguments as for :func:`repdyn.measure`."""

    probe: Probe
    metrics: Sequence[MetricLike] = DEFAULT_METRICS
    layers: Layers = None
    forward: Forward | None = None
    tokens_per_forward: int = 8192

    @property
    def metric_set(self) -> str:
        return metric_set(self.metrics, self.layers, self.probe)
