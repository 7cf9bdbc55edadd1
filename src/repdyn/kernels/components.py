"""The number of principal directions that hold a share of a cloud's variance."""

from __future__ import annotations

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud
from repdyn.kernels.spectrum import spectrum_of
from repdyn.kernels.undefined import nan_if_undefined

# tolerance on the share: sums of equal eigenvalues are rounded
_ROUNDING = 1e-10


@nan_if_undefined
def components(x: Tensor | Cloud, *, share: float = 0.5) -> Tensor:
    """Compute the smallest number of principal directions that together hold a share of the variance of a point cloud.

    The smallest m with ``l_1 + ... + l_m >= share * sum(l_i)``, over the eigenvalues of the covariance in descending
    order. A whole number: its mean over batches need not be one.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        share: of the variance, in (0, 1).

    Returns:
        0-d float64 tensor on the device of ``x``, a number of directions in [1, min(n_vectors - 1, dim)]; NaN when
        undefined.

    Raises:
        ValueError: for another shape or dtype, or for ``share`` out of range.

    Invariant to translation, rotation, uniform scaling, order of the points and columns of zeros. Repeated points
    count as often as they occur.
    Undefined when the points contain NaN or inf, or fewer than 3 of them differ.

    Source: Jolliffe, Principal Component Analysis, 2nd edition, 2002, section 6.1.1.

    Example:
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> components(square, share=0.5).item(), components(square, share=0.9).item()
        (1.0, 2.0)
    """
    cloud = as_cloud(x)
    if not 0 < share < 1:
        raise ValueError(f"expected a share 0 < share < 1, got {share}; 90 % of the variance is share=0.9")
    cumulative = cloud.once(spectrum_of).cumsum(0)
    n_short = (cumulative[:-1] < (share - _ROUNDING) * cumulative[-1]).sum()
    return (n_short + 1).to(torch.float64)
