"""How evenly a cloud uses all the directions of its space."""

from __future__ import annotations

from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud
from repdyn.kernels.spectrum import participation_ratio
from repdyn.kernels.undefined import Undefined, nan_if_undefined


@nan_if_undefined
def isoscore(x: Tensor | Cloud) -> Tensor:
    """Compute the evenness of the variance over all directions of the space: 0 on a line, 1 where no direction is
    preferred.

    ``((dim - |u - 1|**2 / 2)**2 - dim) / (dim**2 - dim)``, where u are the dim eigenvalues of the covariance (zeros
    included) divided by their root mean square. That equals ``(p - 1) / (dim - 1)``, p being the participation ratio,
    since ``|u - 1|**2 = 2 * dim - 2 * sqrt(dim * p)``; so it is computed. It orders clouds of one width as p does.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [0, 1], and no larger than
        (n_vectors - 2) / (dim - 1); NaN when undefined.

    Raises:
        ValueError: for another shape or dtype.

    Invariant to translation, rotation, uniform scaling and order of the points; columns of zeros lower it, for they
    are directions that are not used. Repeated points count as often as they occur.
    Undefined when the points contain NaN or inf, when fewer than 3 of them differ, or when dim is 1.

    Source: Rudman, Gillman, Rayne, Eickhoff, IsoScore: Measuring the Uniformity of Embedding Space Utilization,
    Findings of ACL 2022, algorithm 1.

    Example:
        >>> import torch
        >>> square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> isoscore(square).item()
        1.0
        >>> isoscore(torch.nn.functional.pad(square, (0, 1))).item()
        0.5
    """
    cloud = as_cloud(x)
    ratio, dim = participation_ratio.or_raise(cloud), cloud.x.shape[1]
    if dim == 1:
        raise Undefined("the points have 1 dimension, at least 2 needed to compare directions")
    return (ratio - 1) / (dim - 1)
