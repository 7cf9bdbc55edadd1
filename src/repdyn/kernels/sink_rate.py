"""Attention sinks: which heads spend their attention on the first token."""

from __future__ import annotations

from torch import Tensor

from repdyn.kernels.cloud import full_precision
from repdyn.kernels.undefined import Undefined, nan_if_undefined


@nan_if_undefined
def sink_rate(weights: Tensor, *, threshold: float = 0.3) -> Tensor:
    """Compute whether each head's mean attention to the first token exceeds a threshold: 1 where it does, 0 elsewhere.

    ``1[mean(a_i0 : i >= 1) > threshold]``, i attending to position 0. The first position itself, which in a causal
    model sees nothing else, is left out. The mean over heads, layers and sequences is the sink rate of the model.

    Args:
        weights: of one sequence, shape (heads, n, n), from each position to each, any floating dtype, any device; rows
            sum to 1.
        threshold: of the mean weight, in (0, 1).

    Returns:
        (heads,) float64 on the device of ``weights``, 0 or 1; NaN when undefined.

    Raises:
        ValueError: for another shape or dtype, or a threshold out of range.

    Invariant to the order of the positions after the first. Undefined for fewer than 2 positions, and for NaN and inf.

    Source: Gu, Pang, Du, Liu, Zhang, Du, Wang, Lin, When Attention Sink Emerges in Language Models: An Empirical View,
    ICLR 2025 (arXiv 2410.10781), section 3, with the threshold 0.3.

    Example:
        >>> import torch
        >>> weights = torch.tensor([[[1.0, 0.0], [0.9, 0.1]], [[1.0, 0.0], [0.2, 0.8]]])
        >>> sink_rate(weights).tolist()
        [1.0, 0.0]
    """
    require_attention(weights)
    if not 0 < threshold < 1:
        raise ValueError(f"expected a threshold in (0, 1), got {threshold}; the source takes 0.3")
    if weights.shape[1] < 2:
        raise Undefined(f"a sequence of {weights.shape[1]} positions, at least 2 needed")
    with full_precision(weights.device):
        if not weights.isfinite().all():
            raise Undefined("the attention weights contain NaN or inf")
        return (weights[:, 1:, 0].double().mean(1) > threshold).double()


def require_attention(weights: Tensor) -> None:
    """Raise ValueError unless these are the attention weights of one sequence."""
    if weights.ndim != 3 or weights.shape[1] != weights.shape[2] or not weights.is_floating_point():
        raise ValueError(
            f"expected attention weights of shape (heads, n, n), got {tuple(weights.shape)} of {weights.dtype}; give "
            "one sequence at a time"
        )
