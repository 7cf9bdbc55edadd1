"""From a model and a probe to each token's cosine between a layer and the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.capture import capture, no_progress
from repdyn.capture.states import LayerStates
from repdyn.kernels import Cloud, Undefined, full_precision
from repdyn.kernels.matched import cosines
from repdyn.probe import Probe
from repdyn.studies.convergence.bootstrap import SequenceSums


@dataclass(frozen=True, eq=False)
class TokenCosines:
    """One stack of blocks: how near each sampled token is to where it ends, at every layer."""

    stack: str | None
    """Its name, in a model that has several."""
    cosines: np.ndarray
    """(L + 1, n_sampled) float64 in [-1, 1]; of the last layer 1, up to rounding."""
    rows: np.ndarray
    """(n_tokens,) where in ``cosines`` each token of the probe stands, -1 where it is not sampled."""
    sequences: np.ndarray
    """(n_tokens,) number of the sequence each token of the probe stands in."""

    def summed(self, tokens: np.ndarray) -> SequenceSums:
        """The cosines of sampled tokens, summed over those of each sequence.

        Args:
            tokens: their numbers in the probe, as ``probe.sample(subset)`` tells them.
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
    """Run a model over a probe, and compare each sampled token at every layer with itself at the last one.

    ``cos(h_l(t), h_L(t))``, the last layer being the last block's output before a final normalisation. The mean over
    the sample of a subset is the metric "alignment" on that subset.

    Args:
        model: as for :func:`repdyn.capture.capture.capture`.
        probe: the tokens.
        subsets: whose samples to compare.
        layers: name pattern of the blocks; None finds them.
        progress: called with the share of the probe that has run.

    Returns:
        One for each stack of blocks.

    Raises:
        ValueError: a state that is zero or not finite, and so has no direction; and as for ``capture``.
        RuntimeError: as for ``capture``.
    """
    states = capture(model, probe, subsets, layers, progress=progress)
    sequences = np.repeat(np.arange(len(probe.lengths)), probe.lengths.numpy())
    stacks: dict[str | None, list[LayerStates]] = {}
    for layer in states.layers:
        stacks.setdefault(layer.stack, []).append(layer)
    return [TokenCosines(stack, _cosines(of_stack), states.rows, sequences) for stack, of_stack in stacks.items()]


def _cosines(layers: Sequence[LayerStates]) -> np.ndarray:
    """(n_layers, n_sampled) float64."""
    last = _cloud(layers[-1])
    return np.stack([_cosines_of(layer, _cloud(layer), last) for layer in layers])


def _cosines_of(layer: LayerStates, cloud: Cloud, last: Cloud) -> np.ndarray:
    try:
        with full_precision(layer.device):
            found = cosines(cloud, last).cpu().numpy()
    except Undefined as undefined:
        raise _without_direction(layer, undefined.reason) from undefined
    if not np.isfinite(found).all():
        raise _without_direction(layer, f"{np.isnan(found).sum()} of {len(found)} are NaN or infinite")
    return found


def _without_direction(layer: LayerStates, reason: str) -> ValueError:
    return ValueError(
        f"expected states with a direction at layer {layer.index} ({layer.module}) and at the last layer, got some "
        f"without: {reason}"
    )


def _cloud(layer: LayerStates) -> Cloud:
    return Cloud(layer.states.to(layer.device))
