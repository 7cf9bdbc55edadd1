"""Ratios of the two nearest distances where exact duplicates count as points, a convention of published figures."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, Frame, Repeats, row_chunks
from repdyn.kernels.neighbours import Nearest, search_of
from repdyn.kernels.undefined import Undefined

# of the mean length of the centred points, a nearest distance that counts as zero; and as a ratio's excess over 1
_EPSILON = 1e-8


class Counted(NamedTuple):
    """The input of the regression where duplicates count."""

    log_ratios: Tensor
    """float64, ascending, of the points that are kept."""
    n_removed: int
    """Points that are removed from the fit, and yet shift the others' places in it."""


class _Seen(NamedTuple):
    """What the points see of each other; one value stands for all points that are equal."""

    nearest: Nearest
    """The two nearest other values of each."""
    has_copy: Tensor
    """(n_unique,) bool: points of this value see another of it."""
    n_points: Tensor
    """(n_unique,) int64: of this value."""
    n_nearest: Tensor
    """(n_unique,) int64: points of the nearest value that are seen."""


def counted_ratios(cloud: Cloud) -> Counted:
    """Return the log-ratios of the distances to the two nearest points, duplicates included; use with ``cloud.once``.

    Raises:
        Undefined: for a cloud that no metric is defined on, or when distances leave the range of float64.
    """
    cloud.require_defined()
    if cloud.groups is None or cloud.repeats is None:
        seen = _seen(cloud)
    else:
        seen = _seen_in_groups(cloud, cloud.groups, cloud.repeats)
    first, second = seen.nearest.distances.unbind(1)
    frame = Frame.of(cloud.x)
    lengths = torch.cat([torch.linalg.vector_norm(frame.place(rows), dim=1) for rows in row_chunks(cloud.x)])
    coincides = seen.has_copy | (first * frame.scale < _EPSILON * lengths.mean())
    ratios = torch.where(seen.n_nearest > 1, 1.0, second / first)
    if not (ratios.isfinite() | coincides).all():
        raise Undefined("nearest-neighbour distances leave the range of float64; rescale the points")
    kept = ~coincides & (ratios > 1 + _EPSILON)
    log_ratios = ratios[kept].log().repeat_interleave(seen.n_points[kept]).sort().values
    return Counted(log_ratios, cloud.n_vectors - len(log_ratios))


def _seen(cloud: Cloud) -> _Seen:
    found = search_of(cloud, 2)
    one_each = found.others.new_ones(cloud.n_unique)
    n_points = one_each if cloud.repeats is None else cloud.repeats.of.bincount()
    return _Seen(found, n_points > 1, n_points, n_points[found.others[:, 0]])


def _seen_in_groups(cloud: Cloud, groups: Tensor, repeats: Repeats) -> _Seen:
    """Points see those of other groups. So any point sees a value that occurs in several groups, and all points of such
    a value see a copy: for the search it is a group of its own."""
    groups = groups.unique(return_inverse=True)[1]
    n_groups, own = int(groups.max()) + 1, groups[repeats.first]
    # value and group in one number, and how many points have it
    kinds, n_of_kind = (repeats.of * n_groups + groups).unique(return_counts=True)
    has_copy = (kinds // n_groups).bincount() > 1
    n_points = repeats.of.bincount()
    alone = n_groups + torch.arange(cloud.n_unique, device=own.device)
    found = search_of(Cloud(cloud.distinct, groups=own.where(~has_copy, alone)), 2)
    nearest = found.others[:, 0]
    wanted = nearest * n_groups + own
    place = torch.searchsorted(kinds, wanted).clamp_max(len(kinds) - 1)
    hidden = n_of_kind[place].where(kinds[place] == wanted, 0)
    return _Seen(found, has_copy, n_points, n_points[nearest] - hidden)
