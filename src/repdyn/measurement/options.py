"""What is measured of each layer, and how the model is run: declared once for all that measure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

from repdyn.capture.blocks import LayerPatterns, pattern_list
from repdyn.capture.calls import Forward
from repdyn.capture.hooks import KeepHooks
from repdyn.capture.states import STATES_BYTES, CaptureKind
from repdyn.metrics import DEFAULT_METRICS, MetricLike, MetricRequest, as_tuple, resolve
from repdyn.probe import Probe
from repdyn.probe.design import view_of


class MeasurementArguments(TypedDict, total=False):
    """Keyword arguments that everything that measures takes beside ``metrics`` and ``layers``."""

    probe_loss: bool
    """Measure the model's loss, accuracy and calibration on the probe too; see
    :mod:`repdyn.measurement.probe_loss`.
    """
    forward: Forward | None
    """``forward(model, batch)`` runs the model on a :class:`repdyn.probe.ProbeBatch`; None calls it
    with ``input_ids`` and, if it takes one, ``attention_mask``. The decoder of an encoder-decoder
    reads the same tokens as its encoder."""
    keep_hooks: KeepHooks
    """Forward hooks of yours that act when the model is measured. Others are tried on one sequence:
    those that change what the model puts out act, the rest are left out; see
    :mod:`repdyn.capture.hooks`."""
    tokens_per_forward: int | None
    """Largest number of tokens in one forward pass; None for 2,048 on a CPU, 8,192 elsewhere."""
    states_bytes: int
    """How much memory the states of all layers may take on the model's device; the rest is written
    to the system's temporary folder (TMPDIR), with the same values in the end."""


@dataclass(frozen=True, kw_only=True)
class MeasurementOptions:
    """Specifies what is measured of each layer, and how the model is run.

    The fields beside ``metrics`` and ``layers`` are those of :class:`MeasurementArguments`.

    Raises:
        ValueError: an unknown metric or setting, or two metrics of one name.
    """

    metrics: str | Sequence[MetricLike] = DEFAULT_METRICS
    """Names in :data:`repdyn.metrics.METRICS`, with settings and a subset unless the defaults are
    meant ("two_nn", "two_nn@no_sink", "two_nn[discard=0.8]"), or Metric objects; "all" for all that
    the probe allows."""
    layers: LayerPatterns = None
    """Name pattern of the blocks ("model.layers.*"), or several; for a model with several stacks,
    patterns by name of the stack; None finds them."""
    probe_loss: bool = False
    forward: Forward | None = None
    keep_hooks: KeepHooks = ()
    tokens_per_forward: int | None = None
    states_bytes: int = STATES_BYTES

    def __post_init__(self) -> None:
        # the class is frozen; one name and a list of one are the same choice
        object.__setattr__(self, "metrics", as_tuple(self.metrics))
        # rows are told apart by name and subset
        pairs = self.pairs()
        if repeated := sorted({pair for pair in pairs if pairs.count(pair) > 1}):
            metric, subset = repeated[0]
            raise ValueError(
                f"expected metrics of different names, got several called {metric} on {subset}; "
                "give each a name of its own"
            )

    def pairs(self) -> list[tuple[str, str]]:
        """Return the name and the subset of each metric."""
        return [(request.name, request.subset) for request in resolve(self.metrics)]

    def identity(self, probe: Probe | None = None, dtype: str = "auto") -> str:
        """Return 8 hexadecimal digits that identify the metrics, their settings and subsets, the
        layers, and the precision that weights are converted to ("auto": their own)."""
        return self._identity(resolve(self.metrics, probe), dtype)

    def _identity(self, requests: Sequence[MetricRequest], dtype: str) -> str:
        # in any order of the metrics, the same rows
        pairs = sorted(
            (request.name, request.settings_json, request.subset) for request in requests
        )
        # nothing is added for a default: keys in stores that were written before stay what they are
        converted = [] if dtype == "auto" else [dtype]
        loss = ["probe loss"] if self.probe_loss else []
        return hashlib.sha256(
            json.dumps([pairs, self.choice, *converted, *loss]).encode()
        ).hexdigest()[:8]

    @cached_property
    def choice(self) -> str:
        """Return the choice of layers as rows record it: as JSON, "" where there is none.

        >>> [MeasurementOptions(layers=layers).choice for layers in (None, "blocks.*",
        ...     {"encoder": "encoder.layers.*"})]
        ['', '["blocks.*"]', '{"encoder": ["encoder.layers.*"]}']
        """
        if self.layers is None:
            return ""
        if isinstance(self.layers, Mapping):
            return json.dumps(
                {stack: pattern_list(each) for stack, each in self.layers.items()}, sort_keys=True
            )
        return json.dumps(pattern_list(self.layers))


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Metrics, options and tokens of a measurement, resolved once: the same for all steps of a
    training, or checkpoints of a sweep.
    """

    probe: Probe
    options: MeasurementOptions
    dtype: str = "auto"
    """The precision that weights are converted to; "auto" for their own."""

    @cached_property
    def requests(self) -> Sequence[MetricRequest]:
        """Return what the metrics of the options stand for on the probe, one for each subset.

        Raises:
            ValueError: a metric needs something the probe lacks.
        """
        return resolve(self.options.metrics, self.probe)

    @cached_property
    def identity(self) -> str:
        """Return what identifies it in a store, beside the probe, as by
        :meth:`MeasurementOptions.identity`.
        """
        return self.options._identity(self.requests, self.dtype)

    @cached_property
    def captures(self) -> frozenset[CaptureKind]:
        """Return the kinds of data that are captured in addition to the states of layers."""
        return frozenset().union(*(request.metric.captures for request in self.requests))

    @cached_property
    def comparing(self) -> frozenset[str]:
        """Return the names of the metrics that compare a checkpoint with the one before it."""
        return frozenset(request.name for request in self.requests if request.compares)

    @cached_property
    def subsets(self) -> Sequence[str]:
        """Return the subsets whose samples are captured."""
        subsets = {view_of(request.subset).sampled for request in self.requests}
        # what is kept for the next checkpoint, and predicted, is sampled from all tokens
        if self.options.probe_loss or "previous_checkpoint" in self.captures:
            subsets.add("all")
        return sorted(subsets)

    @cached_property
    def needs_output_head(self) -> bool:
        """Return whether logits are computed from the states of layers."""
        return self.options.probe_loss or "output_head" in self.captures

    @cached_property
    def needs_final_norm(self) -> bool:
        """Return whether vectors are taken after the model's final norm."""
        return any(view_of(request.subset).normed for request in self.requests)

    @cached_property
    def n_neighbours(self) -> int:
        """Return how many nearest neighbours of each vector are searched for: one search serves all
        metrics of a layer, for the one that uses most.
        """
        return max(2, *(request.n_neighbours for request in self.requests))
