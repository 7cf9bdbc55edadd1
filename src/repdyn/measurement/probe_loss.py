"""The loss of a model on the probe, beside the geometry that the probe measures.

The last layer's states of the sampled tokens go through the model's own output head, which
:func:`repdyn.capture.output_head.find_output_head` certifies. A decoder predicts the token after
each sampled one. An encoder predicts sampled tokens that are replaced by the mask, in a forward
pass of its own: at most :data:`MASKED_SHARE` of the probe. Special tokens are never predicted. Both
see no more context than the probe's windows have, so that the loss is above that of long texts.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from repdyn.capture.output_head import OutputHead
from repdyn.capture.states import LayerStates, States
from repdyn.kernels import UndefinedError, full_precision
from repdyn.kernels.lens import calibration_error, predict_targets
from repdyn.measurement.estimates import mean_and_spread
from repdyn.measurement.rows import RECORDED, OnError, reason_of
from repdyn.probe import Probe
from repdyn.store.schema import (
    PROBE_ACCURACY,
    PROBE_BITS_PER_BYTE,
    PROBE_CALIBRATION_ERROR,
    PROBE_LOSS,
    Checkpoint,
    Estimate,
    PointCloud,
    Quantity,
    Row,
    provenance,
    scalar_row,
)

MASKED_SHARE = 0.15
"""Largest fraction of the probe's tokens that are masked at once, as in the training of BERT."""
UNKNOWN_DIRECTION = (
    "whether a position sees later ones is unknown, and so is what the model predicts"
)
NO_MASK = "an encoder predicts masked tokens, and the probe knows no mask token"
_RANGES = {
    PROBE_LOSS: (0.0, math.inf),
    PROBE_BITS_PER_BYTE: (0.0, math.inf),
    PROBE_ACCURACY: (0.0, 1.0),
    PROBE_CALIBRATION_ERROR: (0.0, 1.0),
}


Targets: TypeAlias = list[tuple[np.ndarray, Tensor]]
"""By batch, the indices in the probe of what tokens are predicted from, and the ids of these
tokens, (n,) each.
"""


def next_tokens(probe: Probe) -> Targets:
    """Return the tokens that follow the sampled ones in the same window."""
    # not where the next token is a special one, which no text has
    predicts = probe.has_next & ~np.append(probe.is_special[1:], True)
    positions = [sampled[predicts[sampled]] for sampled in probe.sample("all")]
    return [(at, probe.tokens[torch.from_numpy(at + 1)]) for at in positions]


def masked_tokens(probe: Probe, mask_id: int) -> tuple[Probe, Targets]:
    """Return the probe with some of its sampled tokens masked, and these tokens.

    Each batch contributes equally many, in the order of the sample, which alternates between
    windows.
    """
    batches = probe.sample("all")
    # a share of all tokens of the probe: those that are not sampled stay, and are the context
    n_masked = min(batches.shape[1], int(MASKED_SHARE * len(probe.tokens)) // len(batches))
    positions = [batch[~probe.is_special[batch]][:n_masked] for batch in batches]
    indices = [torch.from_numpy(at) for at in positions]
    masked = probe.tokens.clone()
    masked[torch.cat(indices)] = mask_id
    # without special tokens, since the masks must not change the subsets
    targets = [(at, probe.tokens[index]) for at, index in zip(positions, indices, strict=True)]
    return replace(probe, tokens=masked, special_ids=()), targets


class ProbeLoss:
    """The prediction of a probe's tokens by one checkpoint.

    ``capture`` captures the states of the masked probe's sampled tokens, for an encoder only; all
    processes call it, and each gets those of its layers.
    """

    def __init__(
        self,
        probe: Probe,
        causal: bool | None,
        head: OutputHead | str,
        capture: Callable[[Probe], States],
    ) -> None:
        self._probe = probe
        self._head = head
        self._causal = causal
        self._masked: States | None = None
        # now, while no other states are in memory; the last layer's alone are kept
        if causal is False and probe.mask_id is not None and callable(head):
            masked_probe, self._targets = masked_tokens(probe, probe.mask_id)
            states = capture(masked_probe)
            self._masked = replace(
                states, layers=[layer for layer in states.layers if layer.is_last]
            )
        elif causal:
            self._targets = next_tokens(probe)

    def rows(
        self, last: LayerStates, states: States, checkpoint: Checkpoint, on_error: OnError
    ) -> list[Row]:
        """Return the scalars of the checkpoint: loss, bits per byte, accuracy and calibration
        error.
        """
        try:
            values, n_tokens = self._values(last, states)
        except RECORDED[on_error] as error:
            reason = reason_of(error)
            return [
                scalar_row(
                    checkpoint,
                    PROBE_LOSS,
                    math.nan,
                    probe=self._probe.hash,
                    reason=reason.text,
                    reason_code=reason.code,
                )
            ]
        # the batches of the sample of all tokens, which predictions are made from
        independent = self._probe.has_disjoint_batches("all")
        cloud = PointCloud(
            probe=self._probe.hash,
            n_vectors=n_tokens,
            n_unique=n_tokens,
            design=self._probe.design.name,
        )
        return [
            Row(
                checkpoint=checkpoint,
                cloud=cloud,
                quantity=Quantity(metric=name),
                estimate=Estimate(
                    **mean_and_spread(np.array(batches), independent, _RANGES[name]),
                    **provenance(),
                ),
            )
            for name, batches in values.items()
        ]

    def _values(self, last: LayerStates, states: States) -> tuple[dict[str, list[float]], int]:
        """Return the values of every batch by name, and the number of predicted tokens in the
        smallest.
        """
        if not callable(self._head):
            raise UndefinedError(self._head)
        if self._causal is None:
            raise UndefinedError(UNKNOWN_DIRECTION)
        if self._causal is False and self._masked is None:
            raise UndefinedError(NO_MASK)
        # an encoder's states of the probe itself have seen the tokens
        if self._masked is not None:
            last, states = self._masked.take(), self._masked
        with full_precision(last.device):
            batches = [
                predict_targets(last.states[states.rows_of(at)], tokens.to(last.device), self._head)
                for at, tokens in self._targets
            ]
        losses = [float(batch.loss.mean()) for batch in batches]
        values = {PROBE_LOSS: losses}
        # that of masked tokens is no compression
        if self._causal and self._probe.bytes_per_token is not None:
            nats_per_bit = math.log(2)
            values[PROBE_BITS_PER_BYTE] = [
                loss / nats_per_bit / self._probe.bytes_per_token for loss in losses
            ]
        values[PROBE_ACCURACY] = [float(batch.is_correct.double().mean()) for batch in batches]
        values[PROBE_CALIBRATION_ERROR] = [float(calibration_error(batch)) for batch in batches]
        return values, min(len(at) for at, _ in self._targets)
