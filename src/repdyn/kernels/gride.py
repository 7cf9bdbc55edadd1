"""Intrinsic dimension scale by scale, from the distances to farther and farther neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, full_precision
from repdyn.kernels.neighbours import cloud_distances, resolved
from repdyn.kernels.two_nn import TIE
from repdyn.kernels.undefined import Undefined, nan_if_undefined

"""Ranks k of the farther neighbour that metrics are offered for."""
_MOST = 64
_HALVINGS = 60


@nan_if_undefined
def gride(x: Tensor | Cloud, groups: Tensor | None = None, *, k: int = 4) -> Tensor:
    """Estimate the intrinsic dimension of a point cloud at one scale, from the ratio ``mu = r_k / r_(k/2)`` of each
    point's distances to its k-th and its (k/2)-th neighbour.

    The d that makes the ratios of the n distinct points likeliest, which solves
    ``n / d + (k/2 - 1) sum(log(mu_i) / (1 - mu_i**-d)) = (k - 1) sum(log(mu_i))``. With k = 2 this is TwoNN by maximum
    likelihood, but for its factor (n - 1) / n. Doubling k about doubles the volume that is looked at: an estimate that
    falls as k grows speaks of noise at small scales, one that rises of a curved or folded cloud.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        groups: integers, shape (n_vectors,): points of one group are not each other's neighbours (see ``Cloud``, which
            takes them itself).
        k: rank of the farther neighbour, an even number from 2 to 64.

    Returns:
        0-d float64 tensor on the device of ``x``, a number of dimensions > 0; NaN when undefined.

    Raises:
        ValueError: for another shape or dtype, or for another ``k``.

    Invariant to translation, rotation, uniform scaling, order and repetition of the points, columns of zeros and names
    of the groups.
    Undefined when the points contain NaN or inf, when no more than k of them differ, when one has fewer than k others
    outside its group, when every ratio is 1, or when distances leave the range of float64.

    Source: Denti, Doimo, Laio, Mira, The generalized ratios intrinsic dimension estimator, Scientific Reports 12:20005,
    2022, equations 5 and 8.

    Example:
        >>> line = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(1, 8)
        >>> round(gride(line, k=8).item(), 1)
        1.0
    """
    cloud = as_cloud(x, groups)
    if not isinstance(k, int) or k not in range(2, _MOST + 1, 2):
        raise ValueError(f"expected an even k from 2 to {_MOST}, got {k}; the ratio is that of r_k and r_(k/2)")
    cloud = resolved(cloud)
    if cloud.n_unique <= k:
        raise Undefined(f"{cloud.n_unique} distinct of {cloud.n_vectors} points, at least {k + 1} needed")
    with full_precision(cloud.x.device):
        distances = cloud_distances(cloud, k)
        log_ratios = (distances[:, k - 1] / distances[:, k // 2 - 1]).log()
        if not log_ratios.isfinite().all():
            raise Undefined("nearest-neighbour distances leave the range of float64; rescale the points")
        if log_ratios.max() <= TIE:
            raise Undefined(f"the distances r_{k} and r_{k // 2} are equal for each of the {len(log_ratios)} points")
        return _likeliest(log_ratios, k)


def _likeliest(log_ratios: Tensor, k: int) -> Tensor:
    total, n = log_ratios.sum(), len(log_ratios)
    # the left side less the right one falls from one end of this range to the other
    low, high = n / ((k - 1) * total), n / total
    for _ in range(_HALVINGS):
        middle = (low * high).sqrt()
        # log(mu) / (1 - mu**-d), which tends to 1 / d as the ratio tends to 1
        within = (-torch.expm1(-middle * log_ratios)).clamp_min(torch.finfo(torch.float64).tiny)
        share = torch.where(log_ratios > 0, log_ratios / within, 1 / middle).sum()
        too_small = n / middle + (k / 2 - 1) * share > (k - 1) * total
        low, high = torch.where(too_small, middle, low), torch.where(too_small, high, middle)
    return high
