"""The options of a measurement, declared once for :func:`repdyn.measure`, the trackers and the sweep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

from repdyn.capture.blocks import LayerPatterns, pattern_list
from repdyn.capture.forward import Forward
from repdyn.capture.states import STATES_BYTES
from repdyn.capture.token_states import TokenPositions, positions_name
from repdyn.metrics import DEFAULT_METRICS, Metric, MetricLike, as_tuple, resolve
from repdyn.probe import Probe


class MeasurementArguments(TypedDict, total=False):
    """Keyword arguments that everything that measures takes beside ``metrics`` and ``layers``."""

    probe_loss: bool
    """Measure the model's loss, accuracy and calibration on the probe too; see :mod:`repdyn.measurement.probe_loss`."""
    forward: Forward | None
    """``forward(model, batch)`` runs the model on a :class:`repdyn.probe.ProbeBatch`; None calls it with ``input_ids``
    and, if it takes one, ``attention_mask``. The decoder of an encoder-decoder reads the same tokens as its encoder."""
    token_positions: TokenPositions | None
    """For a model that inserts learned vectors (meta tokens, a tuned prompt, registers), which positions of the states
    are tokens: a slice of the positions, ``slice(k, None)`` if k vectors precede the tokens; or a function from states
    (n_sequences, n_positions, dim) and the ProbeBatch to the states of its tokens, (n_sequences, length, dim). None if
    each position is a token."""
    tokens_per_forward: int
    """Largest number of tokens in one forward pass; 8,192 unless given."""
    states_bytes: int
    """How much memory the states of all layers may take on the model's device; the rest is written to the system's
    temporary folder (TMPDIR), with the same values in the end."""


@dataclass(frozen=True, kw_only=True)
class MeasurementOptions:
    """Specifies what is measured of each layer, and how the model is run.

    The fields beside ``metrics`` and ``layers`` are those of :class:`MeasurementArguments`.

    Raises:
        ValueError: an unknown metric or setting, two metrics of one name, or token positions that are neither a slice
            nor a named function.
    """

    metrics: str | Sequence[MetricLike] = DEFAULT_METRICS
    """Names in :data:`repdyn.metrics.METRICS`, with settings and a token subset unless the defaults are meant
    ("two_nn", "two_nn@no_sink", "two_nn[discard=0.8]"), or Metric objects; "all" for all that the probe allows."""
    layers: LayerPatterns = None
    """Name pattern of the blocks ("model.layers.*"), or several; for a model with several stacks, patterns by name of
    the stack; None finds them."""
    probe_loss: bool = False
    forward: Forward | None = None
    token_positions: TokenPositions | None = None
    tokens_per_forward: int = 8192
    states_bytes: int = STATES_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", as_tuple(self.metrics))
        positions_name(self.token_positions)
        pairs = self.pairs()
        if repeated := sorted({pair for pair in pairs if pairs.count(pair) > 1}):
            metric, subset = repeated[0]
            raise ValueError(
                f"expected metrics of different names, got several called {metric} on {subset}; give each a name of "
                "its own"
            )

    def resolved(self, probe: Probe | None = None) -> list[tuple[Metric, str]]:
        """Return each metric with its token subset."""
        key = "" if probe is None else probe.hash
        if key not in self._resolved:
            self._resolved[key] = resolve(self.metrics, probe)
        return self._resolved[key]

    @cached_property
    def _resolved(self) -> dict[str, list[tuple[Metric, str]]]:
        return {}

    def pairs(self, probe: Probe | None = None) -> list[tuple[str, str]]:
        """Return the name and the token subset of each metric."""
        return [(metric.name, subset) for metric, subset in self.resolved(probe)]

    def identity(self, probe: Probe | None = None, dtype: str = "auto") -> str:
        """Return 8 hexadecimal digits that identify the metrics, their settings and subsets, the layers and positions.

        Args:
            probe: what they are measured on; None where it is not known yet.
            dtype: precision that the weights were converted to; "auto" for their own.
        """
        pairs = sorted((metric.name, metric.settings_json, subset) for metric, subset in self.resolved(probe))
        converted = [] if dtype == "auto" else [dtype]
        loss = ["probe loss"] if self.probe_loss else []
        return hashlib.sha256(json.dumps([pairs, self.choice, *converted, *loss]).encode()).hexdigest()[:8]

    @cached_property
    def choice(self) -> str:
        """The choice of layers and token positions, as rows record it."""
        return layer_choice(self.layers, self.token_positions)


def layer_choice(layers: LayerPatterns, token_positions: TokenPositions | None = None) -> str:
    """Return the choice of layers and token positions as rows record it: as JSON, "" where there is none.

    >>> layer_choice(None), layer_choice("blocks.*"), layer_choice({"encoder": "encoder.layers.*"})
    ('', '["blocks.*"]', '{"encoder": ["encoder.layers.*"]}')
    >>> layer_choice("blocks.*", slice(2, None))
    '{"layers": ["blocks.*"], "token_positions": "2:"}'
    """
    if token_positions is not None:
        patterns = layer_choice(layers)
        blocks = json.loads(patterns) if patterns else None
        return json.dumps({"layers": blocks, "token_positions": positions_name(token_positions)})
    if layers is None:
        return ""
    if isinstance(layers, Mapping):
        return json.dumps({stack: pattern_list(patterns) for stack, patterns in layers.items()}, sort_keys=True)
    return json.dumps(pattern_list(layers))
