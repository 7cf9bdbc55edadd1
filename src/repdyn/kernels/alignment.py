"""Alignment: how far a layer's vectors point to where the last layer's will."""

from __future__ import annotations

from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, full_precision
from repdyn.kernels.matched import cosines, require_matched, require_numbers
from repdyn.kernels.undefined import mean_over_vectors


@mean_over_vectors
def alignment(x: Tensor | Cloud, last: Tensor | Cloud) -> Tensor:
    """Compute the mean cosine of a layer's vectors with the last layer's: ``A_l = mean_t cos(h_l(t), h_L(t))``.

    Args:
        x: points of the layer, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        last: points of the last layer of its stack, the same tokens in the same order, the same shape.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [-1, 1], 1 for the last layer itself; NaN when
        undefined. Accurate to 1e-15: all sums are in float64.

    Raises:
        ValueError: for another shape or dtype, or shapes that differ.

    Invariant to a rotation that turns both, to a positive factor of either, also one for each token, and to the order
    of the tokens. Not to translation: the cosine is taken from the origin, and a mean that all vectors of both layers
    share raises it.
    Undefined when a point contains NaN or inf, when one is zero, or when there are none.

    Example:
        >>> import torch
        >>> last = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> alignment(torch.tensor([[3.0, 0.0], [5.0, 0.0]]), last).item()
        0.5
    """
    cloud, last = as_cloud(x), as_cloud(last)
    require_matched(require_numbers, cloud, last, one_space=True)
    with full_precision(cloud.x.device):
        return cosines(cloud, last)


@mean_over_vectors
def alignment_gradient(x: Tensor | Cloud, following: Tensor | Cloud, last: Tensor | Cloud) -> Tensor:
    """Compute what one block adds to the alignment with the last layer: ``G_l = A_{l+1} - A_l``.

    Args:
        x: points of layer l, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        following: points of layer l + 1, the same tokens in the same order, the same shape.
        last: points of the last layer of its stack, likewise.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [-2, 2], positive where the block turns the vectors
        towards the last layer; NaN when undefined. Accurate to 1e-15. All of a stack's add up to ``1 - A_0``.

    Raises:
        ValueError: for another shape or dtype, or shapes that differ.

    Invariant as :func:`alignment` is. Undefined when a point contains NaN or inf, when one is zero, or when there are
    none.

    Example:
        >>> import torch
        >>> first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> alignment_gradient(first, second, last=second).item()
        1.0
    """
    cloud, following, last = as_cloud(x), as_cloud(following), as_cloud(last)
    require_matched(require_numbers, cloud, following, last, one_space=True)
    with full_precision(cloud.x.device):
        return cosines(following, last) - cosines(cloud, last)
