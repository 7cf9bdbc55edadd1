"""How long the vectors of a layer are, and how far and whereto one block moves them."""

from __future__ import annotations

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, full_precision, row_chunks
from repdyn.kernels.matched import cosines, lengths, require_matched, require_numbers, row_pairs
from repdyn.kernels.undefined import mean_over_vectors


@mean_over_vectors
def norm(x: Tensor | Cloud) -> Tensor:
    """Compute the mean Euclidean length of a layer's vectors: ``mean_t |h_l(t)|``.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.

    Returns:
        0-d float64 tensor on the device of ``x``, >= 0, in the units of the states; NaN when undefined. Accurate to a
        relative 1e-14: all sums are in float64.

    Raises:
        ValueError: for another shape or dtype.

    Invariant to rotation, to the order of the points and to columns of zeros; a factor of all points is one of the
    result.
    Undefined when a point contains NaN or inf, or when there are none.

    Example:
        >>> norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).item()
        3.0
    """
    cloud = as_cloud(x)
    require_numbers(cloud)
    with full_precision(cloud.x.device):
        return torch.cat([lengths(rows) for rows in row_chunks(cloud.x)])


@mean_over_vectors
def step_length(x: Tensor | Cloud, following: Tensor | Cloud) -> Tensor:
    """Compute the mean Euclidean distance that one block moves the vectors: ``mean_t |h_{l+1}(t) - h_l(t)|``.

    Args:
        x: points of layer l, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        following: points of layer l + 1, the same tokens in the same order, the same shape.

    Returns:
        0-d float64 tensor on the device of ``x``, >= 0, in the units of the states; NaN when undefined. Accurate to a
        relative 1e-14 of what the two layers, as they were captured, differ by.

    Raises:
        ValueError: for another shape or dtype, or shapes that differ.

    Invariant to a rotation or a translation of both, and to the order of the tokens; a factor of both is one of the
    result.
    Undefined when a point contains NaN or inf, or when there are none.

    Example:
        >>> step_length(torch.zeros(2, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]])).item()
        3.0
    """
    cloud, following = as_cloud(x), as_cloud(following)
    require_matched(require_numbers, cloud, following, one_space=True)
    with full_precision(cloud.x.device):
        moved = (lengths(after.double() - before) for before, after in row_pairs(cloud, following))
        return torch.cat(list(moved))


@mean_over_vectors
def step_cosine(x: Tensor | Cloud, following: Tensor | Cloud) -> Tensor:
    """Compute the mean cosine of a layer's vectors with the next layer's: ``mean_t cos(h_l(t), h_{l+1}(t))``.

    Args:
        x: points of layer l, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        following: points of layer l + 1, the same tokens in the same order, the same shape.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [-1, 1], 1 where the block changes no direction; NaN
        when undefined. Accurate to 1e-15: all sums are in float64.

    Raises:
        ValueError: for another shape or dtype, or shapes that differ.

    Invariant to a rotation that turns both, to a positive factor of either, also one for each token, and to the order
    of the tokens; not to translation.
    Undefined when a point contains NaN or inf, when one is zero, or when there are none.

    Example:
        >>> step_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 5.0], [0.0, 1.0]])).item()
        0.5
    """
    cloud, following = as_cloud(x), as_cloud(following)
    require_matched(require_numbers, cloud, following, one_space=True)
    with full_precision(cloud.x.device):
        return cosines(cloud, following)
