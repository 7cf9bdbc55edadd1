"""How much memory a measurement needs on the model's device beside the model and its forward passes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from repdyn.capture.states import STATES_BYTES
from repdyn.metrics import MetricLike, resolve
from repdyn.probe import Probe
from repdyn.probe.design import view_of

TILES_BYTES = 96 << 20
"""What kernels need for tiles of products and for chunks in float64, whatever the sizes of model and probe."""
_WIDE_COPIES = 4
"""Copies of one batch in float64 that kernels hold at once."""


def working_bytes(
    vectors: Sequence[Tensor], probe: Probe, metrics: str | Sequence[MetricLike], states_bytes: int = STATES_BYTES
) -> int:
    """Estimate an upper bound of the memory that states and metrics take on the model's device, in bytes.

    Args:
        vectors: (dim,) one vector of each layer, in the precision of its states.
        probe, metrics, states_bytes: as for :func:`repdyn.measure`.
    """
    pairs = resolve(metrics, probe)
    captures = frozenset().union(*(metric.captures for metric, _ in pairs))
    subsets = {view_of(subset).sampled for _, subset in pairs}
    sampled = {int(token) for subset in subsets for token in probe.tokens_of(subset)}
    states_per_layer = 2 if "after_attention" in captures else 1
    states = len(sampled) * states_per_layer * sum(vector.nbytes for vector in vectors)
    widest = max(vectors, key=Tensor.numel)
    # of the layer, and of those that it is compared with: its vectors, the distinct ones and the centred ones
    n_clouds = states_per_layer + len(captures & {"following", "last", "previous_checkpoint"})
    of_clouds = n_clouds * len({subset for _, subset in pairs}) * (2 * widest.itemsize + 4)
    n_vectors = probe.n_batches * probe.batch_vectors
    clouds = n_vectors * widest.numel() * of_clouds
    wide = _WIDE_COPIES * probe.batch_vectors * widest.numel() * 8
    return min(states, states_bytes) + clouds + wide + TILES_BYTES
