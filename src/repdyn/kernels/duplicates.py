"""Ratios of the two nearest distances in which exact duplicates count as points, as in published figures."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, Frame, Repeats, row_chunks
from repdyn.kernels.neighbours import Neighbours, cloud_neighbours
from repdyn.kernels.undefined import Undefined

# nearest distance, relative to the mean length of the centred points, that counts as zero; also a ratio's excess over 1
_EPSILON = 1e-8


class RatiosWithDuplicates(NamedTuple):
    """The input of the regression if duplicates count."""

    log_ratios: Tensor
    """float64, ascending, of the points used in the fit."""
    n_removed: int
    """Number of points that are not fitted but counted in the cumulative distribution."""


class _ValueNeighbours(NamedTuple):
    """Neighbours of the distinct values; equal points share one value."""

    nearest: Neighbours
    """The two nearest other values of each value."""
    has_copy: Tensor
    """(n_unique,) bool: whether points of this value have an equal point as a neighbour."""
    n_points: Tensor
    """(n_unique,) int64: number of points of this value."""
    n_nearest: Tensor
    """(n_unique,) int64: number of points of the nearest value that are neighbours."""


def ratios_with_duplicates(cloud: Cloud) -> RatiosWithDuplicates:
    """Return the log-ratios of the distances to the two nearest points, duplicates included; use with ``cloud.once``.

    Raises:
        Undefined: if no metric is defined on the cloud, or distances leave the range of float64.
    """
    cloud.require_defined()
    if cloud.groups is None or cloud.repeats is None:
        values = _value_neighbours(cloud)
    else:
        values = _value_neighbours_in_groups(cloud, cloud.groups, cloud.repeats)
    first, second = values.nearest.distances.unbind(1)
    frame = Frame.fit(cloud.x)
    lengths = torch.cat([torch.linalg.vector_norm(frame.transform(rows), dim=1) for rows in row_chunks(cloud.x)])
    coincides = values.has_copy | (first * frame.scale < _EPSILON * lengths.mean())
    ratios = torch.where(values.n_nearest > 1, 1.0, second / first)
    if not (ratios.isfinite() | coincides).all():
        raise Undefined("nearest-neighbour distances leave the range of float64; rescale the points")
    used = ~coincides & (ratios > 1 + _EPSILON)
    log_ratios = ratios[used].log().repeat_interleave(values.n_points[used]).sort().values
    return RatiosWithDuplicates(log_ratios, cloud.n_vectors - len(log_ratios))


def _value_neighbours(cloud: Cloud) -> _ValueNeighbours:
    found = cloud_neighbours(cloud, 2)
    one_each = found.indices.new_ones(cloud.n_unique)
    n_points = one_each if cloud.repeats is None else cloud.repeats.inverse.bincount()
    return _ValueNeighbours(found, n_points > 1, n_points, n_points[found.indices[:, 0]])


def _value_neighbours_in_groups(cloud: Cloud, groups: Tensor, repeats: Repeats) -> _ValueNeighbours:
    """Return the neighbours if points of one group are not each other's neighbours.

    A value that occurs in several groups is a possible neighbour of every point, and each of its points has a copy in
    another group. For the search such a value is a group of its own.
    """
    groups = groups.unique(return_inverse=True)[1]
    n_groups, own = int(groups.max()) + 1, groups[repeats.first]
    # value and group in one number, and how many points have it
    kinds, n_of_kind = (repeats.inverse * n_groups + groups).unique(return_counts=True)
    has_copy = (kinds // n_groups).bincount() > 1
    n_points = repeats.inverse.bincount()
    alone = n_groups + torch.arange(cloud.n_unique, device=own.device)
    found = cloud_neighbours(Cloud(cloud.distinct, groups=own.where(~has_copy, alone)), 2)
    nearest = found.indices[:, 0]
    wanted = nearest * n_groups + own
    place = torch.searchsorted(kinds, wanted).clamp_max(len(kinds) - 1)
    hidden = n_of_kind[place].where(kinds[place] == wanted, 0)
    return _ValueNeighbours(found, has_copy, n_points, n_points[nearest] - hidden)
