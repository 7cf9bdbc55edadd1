"""Intrinsic dimension inside small neighbourhoods, averaged over a cloud."""

from __future__ import annotations

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, full_precision, unit_scale
from repdyn.kernels.neighbours import neighbours_of, require_candidates, resolved
from repdyn.kernels.two_nn import TIE, n_kept_of
from repdyn.kernels.undefined import Undefined, nan_if_undefined

_FEWEST, _MOST = 3, 1024
# share of the largest ratios that TwoNN leaves out, as by default over the whole cloud
_DISCARD = 0.1
# coordinates of the neighbourhoods whose distances are computed at once
_CHUNK = 1 << 22


@nan_if_undefined
def local_dimension(x: Tensor | Cloud, groups: Tensor | None = None, *, k: int = 64, points: int = 256) -> Tensor:
    """Estimate the mean intrinsic dimension of the neighbourhoods of points, each by TwoNN among its k nearest
    neighbours.

    For each of the chosen points the k nearest neighbours, without the point itself, are a cloud of their own; its
    dimension is that of :func:`two_nn` by regression with ``discard=0.1``, the two nearest neighbours of each being
    sought among the k. The value is the mean of these estimates. It lies below :func:`two_nn` of the whole cloud where
    that has many dimensions, because an estimate from k points is biased lower than one from n.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        groups: integers, shape (n_vectors,): points of one group are not each other's neighbours, nor inside a
            neighbourhood of another point (see ``Cloud``, which takes them itself).
        k: number of points of a neighbourhood, 3 to 1024.
        points: number of neighbourhoods, >= 1: those of this many distinct points, at equal distances in their order,
            or of all of them if there are fewer.

    Returns:
        0-d float64 tensor on the device of ``x``, a number of dimensions > 0; NaN when undefined. Of points equally far
        from a chosen one, to 1e-10, either may be the last of its neighbourhood.

    Raises:
        ValueError: for another shape or dtype, or for ``k`` or ``points`` out of range.

    Invariant to translation, rotation, uniform scaling, repetition of the points, columns of zeros and names of the
    groups; to the order of the points where ``points`` is not smaller than their number.
    Undefined when the points contain NaN or inf, when no more than k of them differ, when one has fewer than k others
    outside its group, when one of a neighbourhood has fewer than 2 others outside its group there, when the two nearest
    distances of a neighbourhood are tied throughout, or when distances leave the range of float64.

    Source: Ruppik, Heck, van Niekerk, Vukovic, Lin, Feng, Zibrowius, Gasic, Less is More: Local Intrinsic Dimensions of
    Contextual Language Models, arXiv 2506.01034, 2025; the estimator is that of Facco et al., Scientific Reports
    7:12140, 2017.

    Example:
        >>> line = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(1, 8)
        >>> round(local_dimension(line).item())
        1
    """
    cloud = as_cloud(x, groups)
    if not isinstance(k, int) or not _FEWEST <= k <= _MOST:
        raise ValueError(f"expected k from {_FEWEST} to {_MOST}, got {k}; it counts the points of a neighbourhood")
    if not isinstance(points, int) or points < 1:
        raise ValueError(f"expected points >= 1, got {points}; it counts the neighbourhoods")
    cloud = resolved(cloud)
    if cloud.n_unique <= k:
        raise Undefined(f"{cloud.n_unique} distinct of {cloud.n_vectors} points, at least {k + 1} needed")
    require_candidates(cloud, k)
    with full_precision(cloud.x.device):
        n_chosen = min(points, cloud.n_unique)
        chosen = torch.arange(n_chosen, device=cloud.x.device) * cloud.n_unique // n_chosen
        members = neighbours_of(chosen, cloud.distinct, k, groups=cloud.distinct_groups).indices
        return _slopes(_sorted_log_ratios(cloud, members)).mean()


def _sorted_log_ratios(cloud: Cloud, members: Tensor) -> Tensor:
    """Return log(r2 / r1) of each point among those of its row, (n, k) float64, ascending along each row."""
    n, k = members.shape
    scale, ratios, n_lonely = unit_scale(cloud.x), [], 0
    for rows in members.split(max(1, _CHUNK // (k * cloud.x.shape[1]))):
        near = cloud.distinct[rows].double().mul(scale)
        # from differences of coordinates: products would cancel
        distances = torch.cdist(near, near, compute_mode="donot_use_mm_for_euclid_dist")
        distances.diagonal(dim1=1, dim2=2).fill_(torch.inf)
        if cloud.distinct_groups is not None:
            groups = cloud.distinct_groups[rows]
            distances.masked_fill_(groups[:, :, None] == groups[:, None], torch.inf)
        first, second = distances.topk(2, largest=False).values.unbind(2)
        n_lonely += second.isinf().any(1).sum()
        ratios.append((second / first).log())
    if n_lonely:
        raise Undefined(f"in {n_lonely} of {n} neighbourhoods a point has fewer than 2 others outside its group")
    found = torch.cat(ratios)
    if not found.isfinite().all():
        raise Undefined("nearest-neighbour distances leave the range of float64; rescale the points")
    return found.sort(1).values


def _slopes(log_ratios: Tensor) -> Tensor:
    """Return the dimension of each neighbourhood, (n,): the slope of -log(1 - i / k) on its i-th smallest ratio."""
    n, k = log_ratios.shape
    x = log_ratios[:, : n_kept_of(k, _DISCARD)]
    if n_tied := int((x[:, -1] <= TIE).sum()):
        raise Undefined(f"in {n_tied} of {n} neighbourhoods the two nearest distances are equal for each point used")
    y = -torch.log1p(-torch.arange(1, x.shape[1] + 1, dtype=torch.float64, device=x.device) / k)
    return (x @ y) / x.square().sum(1)
