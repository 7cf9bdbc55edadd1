"""The configuration of a tracker: what is measured and how, validated before the training starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import nn

from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.forward import Forward
from repdyn.capture.prepared_model import PreparedModel, prepare
from repdyn.capture.token_states import TokenPositions, positions_name
from repdyn.capture.trial import expect, try_model
from repdyn.measurement.identity import layer_choice, metric_set
from repdyn.measurement.memory import working_bytes
from repdyn.measurement.options import MeasurementOptions
from repdyn.measurement.type_checks import check_probe
from repdyn.metrics import DEFAULT_METRICS, MetricLike, as_tuple, resolve
from repdyn.probe import Probe
from repdyn.publish.keys import LogLayers, validate_log_layers
from repdyn.tracking.overhead import ExpectedCost
from repdyn.utils.distributed import ALONE, Ranks

OnFailure: TypeAlias = Literal["warn", "raise"]


def validate_measurement(
    metrics: str | Sequence[MetricLike],
    on_error: str,
    token_positions: TokenPositions | None = None,
    log_layers: LogLayers = "default",
    probe: Probe | None = None,
) -> None:
    """Check everything that can be checked without a model.

    Raises:
        TypeError: the probe is given, and none.
        ValueError: an unknown metric or setting, two metrics of one name, ``on_error`` other than "warn" or "raise", or
            token positions that are neither a slice nor a named function; ``log_layers`` that match no metric.
    """
    if probe is not None:
        check_probe(probe)
    positions_name(token_positions)
    if on_error not in {"warn", "raise"}:
        raise ValueError(f'expected on_error "warn" or "raise", got {on_error!r}')
    pairs = [(metric.name, subset) for metric, subset in resolve(metrics)]
    if repeated := sorted({pair for pair in pairs if pairs.count(pair) > 1}):
        metric, subset = repeated[0]
        raise ValueError(
            f"expected metrics of different names, got several called {metric} on {subset}; give each a name of its own"
        )
    validate_log_layers(log_layers, pairs)


@dataclass(frozen=True, kw_only=True)
class MeasurementConfig:
    """Settings of a measurement; arguments as for :func:`repdyn.measure`.

    ``log_layers`` are the layers that loggers get, as for :func:`repdyn.publish.keys.logged_values`.

    Raises:
        TypeError: the probe is none.
        ValueError: as :func:`validate_measurement` does.
    """

    probe: Probe
    metrics: str | Sequence[MetricLike] = DEFAULT_METRICS
    layers: LayerPatterns = None
    forward: Forward | None = None
    token_positions: TokenPositions | None = None
    tokens_per_forward: int = 8192
    on_error: OnFailure = "warn"
    log_layers: LogLayers = "default"
    probe_loss: bool = False

    def __post_init__(self) -> None:
        check_probe(self.probe)
        validate_measurement(self.metrics, self.on_error, self.token_positions, self.log_layers)
        object.__setattr__(self, "metrics", as_tuple(self.metrics))

    @property
    def options(self) -> MeasurementOptions:
        """The options of all measurements of a run."""
        names = ("metrics", "layers", "probe_loss", "forward", "token_positions", "tokens_per_forward")
        return MeasurementOptions(**{name: getattr(self, name) for name in names})

    @property
    def metric_names(self) -> list[str]:
        """The names of the metrics, as rows record them."""
        return [metric.name for metric, _ in resolve(self.metrics, self.probe)]

    def check_model(
        self, model: nn.Module, root_module: nn.Module | None = None, ranks: Ranks = ALONE
    ) -> Exception | None:
        """Run the model on a few windows of the probe, and leave it as it was.

        Returns:
            An error that is no fault of the configuration: too little memory, or a connection that failed. What fails
            on some ranks alone is left to the first measurement.

        Raises:
            ValueError: its forward pass fails, or its blocks cannot be identified; with what to do.
            RuntimeError: the blocks do not pass on states of the tokens.
        """
        found: Exception | None = None
        try:
            try_model(self._prepare(model, root_module), self.probe)
        except Exception as error:
            found = error
        is_refused = found is not None and not isinstance(found, OSError | MemoryError | torch.OutOfMemoryError)
        if all(ranks.all_gather(is_refused)) and found is not None:
            raise found
        return None if is_refused else found

    def expected_cost(self, model: nn.Module, root_module: nn.Module | None = None) -> ExpectedCost | None:
        """Return what a measurement will cost one process, from a trial of one batch; None where the model fails."""
        try:
            expected = expect(self._prepare(model, root_module), self.probe, self.tokens_per_forward)
            return ExpectedCost(expected.forward_seconds, working_bytes(expected.vectors, self.probe, self.metrics))
        except Exception:  # too little memory for a whole batch, say: the measurement itself reports it
            return None

    def _prepare(self, model: nn.Module, root_module: nn.Module | None) -> PreparedModel:
        settings = {"forward": self.forward, "token_positions": self.token_positions, "root_module": root_module}
        return prepare(model, self.layers, **settings)

    @property
    def metric_set(self) -> str:
        """The hash of what is measured, as rows record it."""
        return metric_set(
            self.metrics,
            self.layers,
            self.probe,
            token_positions=self.token_positions,
            probe_loss=self.probe_loss,
        )

    @property
    def choice(self) -> str:
        """The choice of layers and token positions, as rows record it."""
        return layer_choice(self.layers, self.token_positions)
