"""The share of a cloud's first principal direction that is due to its longest vectors."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, Frame, as_cloud, full_precision, row_chunks
from repdyn.kernels.matched import lengths
from repdyn.kernels.spectrum import gram_matrix
from repdyn.kernels.undefined import Undefined, nan_if_undefined

# difference of the two largest eigenvalues, as a share of the largest, up to which they count as equal
_EQUAL = 1e-6


@nan_if_undefined
def top_norm_variance_share(x: Tensor | Cloud, *, share: float = 0.01) -> Tensor:
    """Compute the share of the variance along the first principal direction that the points of the largest norms carry.

    ``sum((v_1 . (x_i - mean))**2 : i among the longest) / sum((v_1 . (x_i - mean))**2)``, the latter over all points.
    v_1 is the first eigenvector of the covariance, and the longest are the ``ceil(share * n_vectors)`` points of the
    largest Euclidean length, before centring; of points of equal length at the limit each counts in part. Near 1, the
    anisotropy of the cloud is that of a few vectors, as attention sinks are; without any it is a few times ``share``.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        share: of the points, in (0, 1).

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [0, 1]; NaN when undefined.

    Raises:
        ValueError: for another shape or dtype, or for ``share`` out of range.

    Invariant to rotation, uniform scaling, order of the points and columns of zeros; not to translation, which changes
    the lengths. Repeated points count as often as they occur.
    Undefined when the points contain NaN or inf, when fewer than 3 of them differ, or when the two largest eigenvalues
    are equal to a millionth: there is no first direction then.

    Source: the definition is ours. The few vectors it is made for are those of Sun, Chen, Kolter, Liu, Massive
    Activations in Large Language Models, COLM 2024.

    Example:
        >>> x = torch.tensor([[9.0, 0.0], [-1.0, 1.0], [-1.0, -1.0], [-1.0, 0.0]])
        >>> round(top_norm_variance_share(x, share=0.25).item(), 6)
        0.75
    """
    cloud = as_cloud(x)
    if not 0 < share < 1:
        raise ValueError(f"expected a share 0 < share < 1, got {share}; the longest 1 % of the points are share=0.01")
    squares = cloud.once(_squares_along_first)
    with full_precision(cloud.x.device):
        norms = torch.cat([lengths(rows) for rows in row_chunks(cloud.x)])
        n_longest = math.ceil(cloud.n_vectors * Fraction(str(float(share))))
        limit = norms.topk(n_longest).values[-1]
        longer, at_limit = norms > limit, norms == limit
        weights = longer.double().add_(at_limit, alpha=((n_longest - longer.sum()) / at_limit.sum()).item())
        return (weights @ squares / squares.sum()).clamp_max(1)


def _squares_along_first(cloud: Cloud) -> Tensor:
    """Return the squared coordinate of each point along the first principal direction, (n,) float64, in any unit."""
    cloud.require_defined()
    with full_precision(cloud.x.device):
        values, vectors = torch.linalg.eigh(gram_matrix(cloud.x))
        if len(values) > 1 and values[-1] - values[-2] <= _EQUAL * values[-1]:
            raise Undefined("the two largest eigenvalues are equal to a millionth: no direction is the first")
        first = vectors[:, -1]
        if cloud.x.shape[0] < cloud.x.shape[1]:
            return first.square()  # that of the points' inner products holds their coordinates
        frame = Frame.fit(cloud.x)
        return torch.cat([frame.transform(rows) @ first for rows in row_chunks(cloud.x)]).square()
