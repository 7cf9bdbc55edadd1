"""The shape of a cloud near single points: :func:`local_anisotropy`."""

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud
from repdyn.kernels.dimension import neighbourhoods
from repdyn.kernels.kernel import nan_if_undefined

# numbers of coordinates that are centred and multiplied at once
_CHUNK = 1 << 22


@nan_if_undefined
def local_anisotropy(x: Tensor | Cloud, *, k: int = 64, points: int = 256) -> Tensor:
    """Compute the mean anisotropy of neighbourhoods: the share of variance along the first
    principal direction among the k nearest neighbours of a point.

    A cloud of several clusters, or of one long direction, is anisotropic as a whole while its
    neighbourhoods need not be. For each of the chosen points the k nearest neighbours, without the
    point itself, are a cloud of their own, centred at their own mean, and its share is that of
    :func:`repdyn.kernels.anisotropy`. The value is the mean of these shares.

    Args:
        x: as for :func:`repdyn.kernels.local_dimension`.
        k: number of points of a neighbourhood, 3 to 1024.
        points: number of neighbourhoods, >= 1: those of this many distinct points, at equal
            distances in their order, or of all of them if there are fewer.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [1 / min(k - 1, dim), 1]; NaN
        when undefined. The error is below 1e-9. A neighbourhood without any direction of its own,
        of k independent normal vectors, has about ``(1 / sqrt(k) + 1 / sqrt(dim))**2``: compare
        with the value of a normal cloud of the same covariance (the view ``gaussian`` of a layer).
        Of points equally far from a chosen one, to 1e-10, either may be the last of its
        neighbourhood.

    Invariant to translation, rotation, uniform scaling, repetition of the points and columns of
    zeros, and to their order only where ``points`` is not smaller than their number. Undefined when
    the points contain NaN or inf, when no more than k of them differ, or when one has fewer than k
    others outside its group.

    Source: after Cai, Huang, Bian, Church, Isotropy in the Contextual Embedding Space: Clusters and
    Manifolds, ICLR 2021, who find isotropy inside of clusters of an anisotropic cloud. Their
    measure, the mean cosine of two vectors of a cluster whose mean has been subtracted, is about
    -1 / (k - 1) whatever the shape of the cluster; the share of variance is not.

    Example:
        >>> line = torch.arange(400.0)[:, None] * torch.tensor([[1.0, 2.0]])
        >>> round(local_anisotropy(line, k=8).item(), 9)
        1.0
    """
    cloud, members = neighbourhoods(x, k, points)
    n = len(members)
    dim = cloud.x.shape[1]
    shares = []
    for rows in members.split(max(1, _CHUNK // (k * dim))):
        near = cloud.distinct.points[rows].double().mul(cloud.scale)
        near -= near.mean(1, keepdim=True)
        # in a unit of its own: the squares of a small neighbourhood need not be representable
        near /= near.abs().amax((1, 2), keepdim=True)
        products = near @ near.mT if k <= dim else near.mT @ near
        values = torch.linalg.eigvalsh(products)
        shares.append(values[:, -1] / products.diagonal(dim1=1, dim2=2).sum(1))
    return torch.cat(shares).sum().clamp_max(n) / n
