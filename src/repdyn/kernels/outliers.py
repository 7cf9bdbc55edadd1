"""Outlier coordinates of a point cloud."""

from __future__ import annotations

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, full_precision, row_chunks, unit_scale
from repdyn.kernels.undefined import nan_if_undefined


@nan_if_undefined
def outlier_kurtosis(x: Tensor | Cloud) -> Tensor:
    """Compute the kurtosis of the coordinates' root mean squares: how far a few coordinates are larger than the rest.

    ``mean_j(s_j**4) / mean_j(s_j**2)**2`` with ``s_j = sqrt(mean_i(x_ij**2))``, without centring.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [1, dim]: 1 where all coordinates have the same root
        mean square, dim where a single one is not zero; NaN when undefined.

    Raises:
        ValueError: for another shape or dtype.

    Invariant to uniform scaling, signs, order of the points and of their coordinates, and repetition of the cloud as a
    whole; not to rotation or translation.
    Undefined when the points contain NaN or inf, or fewer than 3 of them differ.

    Source: He, Noci, Paliotta, Schlag, Hofmann, Understanding and Minimising Outlier Features in Neural Network
    Training, arXiv 2405.19279, 2024.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> outlier_kurtosis(square).item()
        1.0
        >>> outlier_kurtosis(torch.nn.functional.pad(square, (0, 6))).item()
        4.0
    """
    cloud = as_cloud(x)
    cloud.require_defined()
    with full_precision(cloud.x.device):
        scale = unit_scale(cloud.x)
        squares = torch.zeros(cloud.x.shape[1], dtype=torch.float64, device=cloud.x.device)
        for rows in row_chunks(cloud.x):
            squares += rows.double().mul(scale).square_().sum(0)
        # divided by the largest first: squares of sums need not be representable
        squares /= squares.max()
        return squares.square().mean() / squares.mean().square()
