"""How alike the directions of a cloud's vectors are, seen from the origin."""

from __future__ import annotations

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, full_precision, row_chunks
from repdyn.kernels.undefined import Undefined, nan_if_undefined


@nan_if_undefined
def mean_cosine(x: Tensor | Cloud) -> Tensor:
    """Compute the mean cosine between the vectors of a point cloud, over all pairs of different rows.

    With u_i the rows divided by their lengths, ``(|sum(u_i)|**2 - n) / (n * (n - 1))``. The points are not centred: a
    common offset is what it measures most of all.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.

    Returns:
        0-d float64 tensor on the device of ``x``, a cosine in [-1 / (n_vectors - 1), 1]; NaN when undefined. Absolute
        error below 1e-14.

    Raises:
        ValueError: for another shape or dtype.

    Invariant to rotation about the origin, positive scaling of each vector, order of the points and columns of zeros;
    not to translation. Repeated points count as often as they occur.
    Undefined when the points contain NaN, inf or a vector of zeros, or fewer than 3 of them differ.

    Source: Ethayarajh, How Contextual are Contextualized Word Representations?, EMNLP 2019, its measure of anisotropy,
    there taken over random pairs.

    Example:
        >>> mean_cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])).item()
        0.3333333333333333
    """
    cloud = as_cloud(x)
    cloud.require_defined()
    n = cloud.n_vectors
    with full_precision(cloud.x.device):
        total = torch.zeros(cloud.x.shape[1], dtype=torch.float64, device=cloud.x.device)
        n_zero = torch.zeros((), dtype=torch.int64, device=cloud.x.device)
        for rows in row_chunks(cloud.x):
            wide = rows.double()
            largest = wide.abs().amax(1, keepdim=True)
            n_zero += (largest == 0).sum()
            # divided by its largest coordinate first, no vector has squares that leave the range of float64
            wide = wide / largest
            total += (wide / torch.linalg.vector_norm(wide, dim=1, keepdim=True)).sum(0)
        if n_zero:
            raise Undefined(f"{int(n_zero)} of {n} vectors are zero and have no direction")
        return ((total @ total - n) / (n * (n - 1))).clamp_max(1)
