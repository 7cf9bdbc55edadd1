"""Intrinsic dimension from the distances to the k nearest neighbours, by maximum likelihood."""

from __future__ import annotations

from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, full_precision
from repdyn.kernels.neighbours import cloud_distances, resolved
from repdyn.kernels.two_nn import TIE
from repdyn.kernels.undefined import Undefined, nan_if_undefined

_MOST = 64


@nan_if_undefined
def levina_bickel(x: Tensor | Cloud, groups: Tensor | None = None, *, k: int = 20) -> Tensor:
    """Estimate the intrinsic dimension of a point cloud from each point's distances r_1 to r_k to its k nearest
    neighbours.

    In d dimensions ``log(r_k / r_j)`` averages 1 / d over the neighbours j < k. Over the n distinct points
    ``n * (k - 1) / sum_i(sum_j(log(r_k(i) / r_j(i))))``: the inverse of the mean of the points' inverse estimates,
    which is the likeliest d for all of them together (MacKay and Ghahramani). Levina and Bickel took the mean of the
    estimates instead, which is biased upwards for small k.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        groups: integers, shape (n_vectors,): points of one group are not each other's neighbours (see ``Cloud``, which
            takes them itself).
        k: number of neighbours, 2 to 64.

    Returns:
        0-d float64 tensor on the device of ``x``, a number of dimensions > 0; NaN when undefined.

    Raises:
        ValueError: for another shape or dtype, or for another ``k``.

    Invariant to translation, rotation, uniform scaling, order and repetition of the points, columns of zeros and names
    of the groups.
    Undefined when the points contain NaN or inf, when no more than k of them differ, when one has fewer than k others
    outside its group, when every distance is tied, or when distances leave the range of float64.

    Source: Levina, Bickel, Maximum Likelihood Estimation of Intrinsic Dimension, NeurIPS 17, 2004, equation 8; combined
    over the points as in MacKay, Ghahramani, Comments on "Maximum Likelihood Estimation of Intrinsic Dimension", 2005.
    Estimates of high dimensions are biased low, the more so the larger k.

    Example:
        >>> import torch
        >>> line = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(1, 8)
        >>> round(levina_bickel(line).item(), 1)
        1.0
    """
    cloud = as_cloud(x, groups)
    if not isinstance(k, int) or not 2 <= k <= _MOST:
        raise ValueError(f"expected k from 2 to {_MOST}, got {k}; it counts the neighbours of each point")
    cloud = resolved(cloud)
    if cloud.n_unique <= k:
        raise Undefined(f"{cloud.n_unique} distinct of {cloud.n_vectors} points, at least {k + 1} needed")
    with full_precision(cloud.x.device):
        distances = cloud_distances(cloud, k)
        log_ratios = (distances[:, -1:] / distances[:, :-1]).log()
        if not log_ratios.isfinite().all():
            raise Undefined("nearest-neighbour distances leave the range of float64; rescale the points")
        if log_ratios.max() <= TIE:
            raise Undefined(f"the distances r_1 to r_{k} are equal for each of the {cloud.n_unique} points")
        return 1 / log_ratios.mean()
