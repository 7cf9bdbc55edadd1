"""Compare each token's state at every layer with its state at the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.capture import capture, no_progress
from repdyn.capture.prepared_model import prepare
from repdyn.capture.states import LayerStates
from repdyn.kernels import Cloud, Undefined, full_precision
from repdyn.kernels.matched import cosines
from repdyn.probe import Probe
from repdyn.studies.convergence.bootstrap import SequenceSums


@dataclass(frozen=True, eq=False)
class TokenCosines:
    """Cosine of each sampled token's state at every layer with its state at the last one, in one stack of blocks."""

    stack: str | None
    """Name of the stack, in a model that has several."""
    cosines: np.ndarray
    """(L + 1, n_sampled) float64 in [-1, 1]; 1 at the last layer, up to rounding."""
    rows: np.ndarray
    """(n_tokens,) column in ``cosines`` of each token of the probe, -1 where it is not sampled."""
    sequences: np.ndarray
    """(n_tokens,) number of each token's sequence."""

    def sum_by_sequence(self, tokens: np.ndarray) -> SequenceSums:
        """Sum the cosines of sampled tokens over each sequence.

        Args:
            tokens: their numbers in the probe, as ``probe.sample(subset)`` returns them.
        """
        chosen = tokens.ravel()
        sequences, n_sequences = self.sequences[chosen], int(self.sequences[-1]) + 1
        sums = [np.bincount(sequences, layer[self.rows[chosen]], n_sequences) for layer in self.cosines]
        return SequenceSums(np.stack(sums, axis=1), np.bincount(sequences, minlength=n_sequences))


def token_cosines(
    model: nn.Module,
    probe: Probe,
    subsets: Sequence[str],
    layers: LayerPatterns = None,
    *,
    progress: Callable[[float], None] = no_progress,
) -> list[TokenCosines]:
    """Run a model over a probe and compute ``cos(h_l(t), h_L(t))`` for every sampled token t and layer l.

    The last layer L is the last block's output before a final normalisation. The mean over the sample of a subset is
    the metric "alignment" on that subset.

    Args:
        model: as for :func:`repdyn.capture.capture.capture`.
        probe: the tokens.
        subsets: token subsets whose samples are compared.
        layers: name pattern of the blocks; None detects them.
        progress: called with the share of the probe that has run.

    Returns:
        One for each stack of blocks.

    Raises:
        ValueError: a state that is zero or not finite, and so has no direction; and as for ``capture``.
        RuntimeError: as for ``capture``.
    """
    states = capture(prepare(model, layers), probe, subsets, progress=progress)
    sequences = np.repeat(np.arange(len(probe.lengths)), probe.lengths.numpy())
    stacks: dict[str | None, list[LayerStates]] = {}
    for layer in states.layers:
        stacks.setdefault(layer.stack, []).append(layer)
    return [
        TokenCosines(stack, np.stack([_cosines(layer, layers[-1]) for layer in layers]), states.rows, sequences)
        for stack, layers in stacks.items()
    ]


def _cosines(layer: LayerStates, last: LayerStates) -> np.ndarray:
    try:
        with full_precision(layer.device):
            found = cosines(*(Cloud(one.states.to(one.device)) for one in (layer, last))).cpu().numpy()
        reason = "" if np.isfinite(found).all() else f"{np.isnan(found).sum()} of {len(found)} are NaN or infinite"
    except Undefined as undefined:
        found, reason = np.empty(0), undefined.reason
    if reason:
        raise ValueError(
            f"expected states with a direction at layer {layer.index} ({layer.module}) and at the last layer, got some "
            f"without: {reason}"
        )
    return found
