"""Diagnostics of dependence between the points of a cloud, which biases nearest-neighbour dimensions.

Both are functions of a cloud, for use with ``cloud.once``; they share their neighbour search with the dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, Frame, full_precision, row_chunks
from repdyn.kernels.neighbours import cloud_distances, fewest_candidates, nearest_distances, pair_distances
from repdyn.kernels.undefined import Undefined

# Share of the radius of a cloud below which two points count as nearly the same. At initialisation the blocks of a
# byte-level encoder add so little that its 4096 vectors lie in 87 clusters, one for each token: 99 % of them are closer
# than this to another one, at step 64 still 95 %; in a trained decoder's first block, of dimension 2, 14 % are. A cloud
# of dimension 1 counts as nearly the same throughout: so close do 4096 points lie on a line.
NEAR_DUPLICATE = 1e-2
# groups of at most this many points are compared pair by pair; larger ones are searched
_MAX_PAIRWISE = 64
# iterations in which the centre moves to where most of the points are
_N_ITERATIONS = 3


def same_group_share(cloud: Cloud) -> float:
    """Compute the share of the distinct points whose nearest other distinct point is of their own group.

    These are the neighbours that a dimension with groups leaves out; if the share is near 1, the dimension without
    groups would be that of the groups, not of the cloud. A tie counts for the other groups.

    Returns:
        In [0, 1]; 0 for groups of one, 1 for a single group. NaN when the cloud has no groups, contains NaN or inf, or
        fewer than 3 distinct points.

    Invariant to translation, rotation, uniform scaling, order of the points, columns of zeros and names of the groups.
    """
    if cloud.groups is None or not _is_defined(cloud):
        return math.nan
    own, other = cloud.once(_nearest_in_group), cloud.once(_nearest_outside)
    return (own < other).double().mean().item()


def near_duplicate_share(cloud: Cloud) -> float:
    """Compute the share of all points whose nearest other point, of any group, is an exact or a near duplicate.

    Near means closer than ``NEAR_DUPLICATE`` times the radius, the median distance of the distinct points from their
    centre: from the mean of all of them, then three times from the mean of the nearer half. This is robust to a few
    huge points, such as attention sinks, which would dominate the mean and any mean square.

    Returns:
        In [0, 1]; NaN when the cloud contains NaN or inf, or fewer than 3 distinct points.

    Invariant to translation, rotation, uniform scaling, order of the points, columns of zeros and to groups.
    """
    if not _is_defined(cloud):
        return math.nan
    with full_precision(cloud.x.device):
        nearest_any = cloud.once(_nearest_outside)
        if cloud.groups is not None:
            nearest_any = nearest_any.minimum(cloud.once(_nearest_in_group))
        is_near = nearest_any < NEAR_DUPLICATE * _radius(cloud.distinct)
        if cloud.repeats is not None:
            is_near = (is_near | (cloud.repeats.inverse.bincount() > 1))[cloud.repeats.inverse]
        return is_near.double().mean().item()


def _is_defined(cloud: Cloud) -> bool:
    try:
        cloud.require_defined()
    except Undefined:
        return False
    return True


def _nearest_outside(cloud: Cloud) -> Tensor:
    """Return distances, (n_unique,) float64, infinite where all points are of one group."""
    if cloud.once(fewest_candidates) == 0:
        return torch.full((cloud.n_unique,), torch.inf, dtype=torch.float64, device=cloud.x.device)
    with full_precision(cloud.x.device):
        return cloud_distances(cloud, 1)[:, 0]


def _nearest_in_group(cloud: Cloud) -> Tensor:
    """Return distances, (n_unique,) float64, infinite where a distinct point is alone in its group."""
    points, groups = cloud.distinct, cloud.distinct_groups
    found = torch.full((cloud.n_unique,), torch.inf, dtype=torch.float64, device=points.device)
    if groups is None:
        return found
    groups, order = groups.sort(stable=True)
    _, group_index, sizes = groups.unique_consecutive(return_inverse=True, return_counts=True)
    with full_precision(points.device):
        for group in (sizes > _MAX_PAIRWISE).nonzero().flatten():
            members = order[group_index == group]
            found[members] = nearest_distances(points[members], 1)[:, 0]
        small = sizes[group_index] <= _MAX_PAIRWISE
        for apart in range(1, min(_MAX_PAIRWISE, int(sizes.max()))):
            pairs = ((group_index[apart:] == group_index[:-apart]) & small[apart:]).nonzero().flatten()
            first, second = order[pairs], order[pairs + apart]
            distances = pair_distances(points, first, second)
            found.scatter_reduce_(0, first, distances, "amin").scatter_reduce_(0, second, distances, "amin")
    return found


def _radius(points: Tensor) -> float:
    frame = Frame.fit(points)
    distances = _distances(points, frame)
    for _ in range(_N_ITERATIONS):
        nearer = distances <= distances.median()
        total = torch.zeros_like(frame.mean)
        for rows, is_near in zip(row_chunks(points), nearer.split(len(row_chunks(points)[0])), strict=True):
            total += frame.transform(rows[is_near]).sum(0)
        frame = Frame(frame.scale, frame.mean + total / nearer.sum())
        distances = _distances(points, frame)
    return distances.median().item() / frame.scale


def _distances(points: Tensor, frame: Frame) -> Tensor:
    return torch.cat([torch.linalg.vector_norm(frame.transform(rows), dim=1) for rows in row_chunks(points)])
