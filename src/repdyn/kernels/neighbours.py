"""Exact nearest-neighbour search by matrix products."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from repdyn.kernels.candidates import find_candidates
from repdyn.kernels.cloud import Cloud, Frame, Undefined, full_precision, resolution, row_chunks, unit_scale

# candidates per row beyond k, tried in turn; the last try computes all distances and needs no proof
_N_EXTRA = (30, 1022, None)
_ROUNDOFF = 2.0**-53
# rows of the distance matrix held at a time in float64
_TILE = 512
# No bound distinguishes a point tied with the last neighbour from a nearer one. Differences below this are accepted,
# so nothing is nearer than (1 - 5e-11) r_k.
_TIE = 1e-10
# below this, squares of distances lose digits
_MIN_DISTANCE = 1e-145
# coordinates gathered at a time for direct distances: they stay in the cache of a CPU, or keep an accelerator busy
_CPU_CHUNK, _DEVICE_CHUNK = 1 << 15, 1 << 22
# groups of at most this many points are compared pair by pair; larger ones are searched
_MAX_PAIRWISE = 64
# iterations in which the centre of a cloud moves to where most of its points are
_N_ITERATIONS = 3
# a search of single points costs this many times its share of a search of all
_MANY = 8
# strided groups of columns; the minima of the groups narrow the selection
_GROUPS = 512


class Neighbours(NamedTuple):
    """The nearest neighbours of some points, by ascending distance."""

    distances: Tensor
    """float64, shape (n, k)."""
    indices: Tensor
    """int64, shape (n, k)"""


def cloud_neighbours(cloud: Cloud, k: int) -> Neighbours:
    """Return the k nearest neighbours of each distinct point of a cloud among these, (n_unique, k), cached.

    Points of one group are not each other's neighbours.

    Raises:
        Undefined: a point has fewer than k distinct others outside its group.
    """
    n_available = require_candidates(cloud, k)
    if k <= min(cloud.n_neighbours, n_available):
        found = cloud.once(_shared_neighbours)
        return Neighbours(found.distances[:, :k], found.indices[:, :k])
    return nearest_neighbours(cloud.distinct, k, groups=cloud.distinct_groups)


def require_candidates(cloud: Cloud, k: int) -> int:
    """Return :func:`fewest_candidates`; raise Undefined if the groups leave a point fewer than k."""
    n_available = cloud.once(fewest_candidates)
    if k > n_available and cloud.groups is not None:
        raise Undefined(
            f"{n_available} of {cloud.n_unique} distinct points lie outside the largest of the groups, "
            f"at least {k} needed"
        )
    return n_available


def fewest_candidates(cloud: Cloud) -> int:
    """Return the number of possible neighbours of the distinct point that has the fewest."""
    groups = cloud.distinct_groups
    if groups is None:
        return cloud.n_unique - 1
    ordered = groups.sort().values
    own = torch.searchsorted(ordered, ordered, right=True) - torch.searchsorted(ordered, ordered)
    return cloud.n_unique - int(own.max())


def _shared_neighbours(cloud: Cloud) -> Neighbours:
    k = min(cloud.n_neighbours, cloud.once(fewest_candidates))
    return nearest_neighbours(cloud.distinct, k, groups=cloud.distinct_groups)


class Resolved(NamedTuple):
    """The points of a cloud whose distances are known, in the precision of its coordinates."""

    cloud: Cloud
    kept: Tensor
    """int64, which of the distinct points are in it."""


def resolved(cloud: Cloud) -> Cloud:
    """Return the cloud with one of each set of near duplicates, for use by all estimators of neighbours.

    Two points closer than the precision of their coordinates, :func:`repdyn.kernels.cloud.resolution` of the cloud's
    radius, have no distance that means anything. A pair of them gives two ratios without bound, and a ratio of 1 to
    every point that has both as its nearest. They may be of one group. Points that are joined in several steps count as
    one.

    Raises:
        Undefined: no metric is defined on the cloud, or fewer than 3 points are left.
    """
    found = cloud.once(find_resolved)
    return cloud if found is None else found.cloud


def find_resolved(cloud: Cloud) -> Resolved | None:
    """Return :func:`resolved` and the points that are kept, None if these are all; use with ``cloud.once``."""
    cloud.require_defined()
    with full_precision(cloud.x.device):
        limit = resolution(cloud.x.dtype) * cloud.once(radius)
        nearest = cloud.once(nearest_outside).minimum(cloud.once(nearest_in_group))
        if not bool((nearest < limit).any()):
            return None  # not the cloud, which would keep itself in memory
        part, kept = cloud, torch.arange(cloud.n_unique, device=cloud.x.device)
        while len(kept) >= 3 and len(later := _later_of_close(part, limit)):
            stays = torch.ones_like(kept, dtype=torch.bool)
            stays[later] = False
            part, kept = _part(part, stays), kept[stays]
    if len(kept) < 3:
        raise Undefined(
            f"{len(kept)} of {cloud.n_vectors} points differ by more than the precision of {cloud.x.dtype}, at least 3 "
            "needed"
        )
    return Resolved(part, kept)


def _part(cloud: Cloud, stays: Tensor) -> Cloud:
    """Return a cloud of some of the distinct points, with their neighbours searched anew for those that lost one."""
    groups = None if cloud.distinct_groups is None else cloud.distinct_groups[stays]
    part = Cloud(
        cloud.distinct[stays], groups=groups, n_neighbours=cloud.n_neighbours, whole_spectrum=cloud.whole_spectrum
    )
    number = stays.cumsum(0) - 1
    if len(pairs := cloud.once(_pairs_in_groups)) == 1:
        left = (stays[pairs[0][0]] & stays[pairs[0][1]]).nonzero().flatten()
        first, second, distances = (each[left] for each in pairs[0])
        part.keep(_pairs_in_groups, [(number[first], number[second], distances)])
    k = min(part.n_neighbours, part.once(fewest_candidates))
    if k < 1:
        return part
    before = cloud.once(_shared_neighbours)
    distances, indices = before.distances[stays, :k], before.indices[stays, :k]
    incomplete = (~stays[indices]).any(1).nonzero().flatten()
    if _MANY * len(incomplete) < len(indices):
        found = Neighbours(distances, number[indices])
        again = neighbours_of(incomplete, part.x, k, groups=groups)
        found.distances[incomplete], found.indices[incomplete] = again
        part.keep(_shared_neighbours, found)
    return part


def _later_of_close(cloud: Cloud, limit: float) -> Tensor:
    """Return the later point of each pair closer than a limit, among nearest neighbours and within groups."""
    later = []
    if cloud.once(fewest_candidates) > 0:
        distances, indices = cloud.once(_shared_neighbours)
        first = torch.arange(len(indices), device=indices.device)
        later.append(first.maximum(indices[:, 0])[distances[:, 0] < limit])
    for first, second, distances in cloud.once(_pairs_in_groups):
        later.append(first.maximum(second)[distances < limit])
    return torch.cat(later).unique() if later else torch.empty(0, dtype=torch.int64, device=cloud.x.device)


def nearest_outside(cloud: Cloud) -> Tensor:
    """Return the distance of each distinct point to the nearest one outside its group, (n_unique,) float64, infinite
    where all points are of one group."""
    if cloud.once(fewest_candidates) == 0:
        return torch.full((cloud.n_unique,), torch.inf, dtype=torch.float64, device=cloud.x.device)
    with full_precision(cloud.x.device):
        return cloud_neighbours(cloud, 1).distances[:, 0]


def nearest_in_group(cloud: Cloud) -> Tensor:
    """Return the distance of each distinct point to the nearest one of its group, (n_unique,) float64, infinite where
    it is alone."""
    found = torch.full((cloud.n_unique,), torch.inf, dtype=torch.float64, device=cloud.x.device)
    with full_precision(cloud.x.device):
        for first, second, distances in cloud.once(_pairs_in_groups):
            found.scatter_reduce_(0, first, distances, "amin").scatter_reduce_(0, second, distances, "amin")
    return found


def _pairs_in_groups(cloud: Cloud) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return pairs of distinct points of one group, with their distances: all of a small group, of a larger one each
    point with its nearest."""
    points, groups = cloud.distinct, cloud.distinct_groups
    if groups is None:
        return []
    pairs = []
    groups, order = groups.sort(stable=True)
    _, group_index, sizes = groups.unique_consecutive(return_inverse=True, return_counts=True)
    n, largest = len(points), int(sizes.max())
    if largest > _MAX_PAIRWISE:
        for group in (sizes > _MAX_PAIRWISE).nonzero().flatten():
            members = order[group_index == group]
            distances, indices = nearest_neighbours(points[members], 1)
            pairs.append((members, members[indices[:, 0]], distances[:, 0]))
    # all pairs at once, since a device is waited for at every nonzero
    left = torch.arange(n, device=points.device)
    right = left + torch.arange(1, min(_MAX_PAIRWISE, largest), device=points.device)[:, None]
    together = (
        (group_index[right.clamp(max=n - 1)] == group_index) & (right < n) & (sizes[group_index] <= _MAX_PAIRWISE)
    )
    apart, left = together.nonzero(as_tuple=True)
    first, second = order[left], order[left + apart + 1]
    return [*pairs, (first, second, pair_distances(points, first, second))]


def radius(cloud: Cloud) -> float:
    """Return the median distance of the distinct points from their centre: from the mean of all of them, then three
    times from the mean of the nearer half."""
    points = cloud.centred if cloud.repeats is None else cloud.centred[cloud.repeats.first]
    distances = _distances(points, points.mean(0))
    for _ in range(_N_ITERATIONS):
        nearer = (distances <= distances.median()).to(points.dtype)
        distances = _distances(points, (nearer @ points) / nearer.sum())
    return distances.median().item() / unit_scale(cloud.x)


def _distances(points: Tensor, centre: Tensor) -> Tensor:
    return torch.cat([torch.linalg.vector_norm(rows - centre, dim=1) for rows in row_chunks(points)])


def nearest_neighbours(points: Tensor, k: int, *, groups: Tensor | None = None) -> Neighbours:
    """Find the k nearest neighbours of each point; ties are broken arbitrarily.

    Args:
        points: *distinct* finite points, shape (n, dim) with n > k, any floating dtype, any origin.
        k: number of neighbours, 1 to 64.
        groups: integers, shape (n,): points of one group are not each other's neighbours. Each point needs k others
            outside its own group.

    Returns:
        Distances ascending along each row, in the unit of ``points``; the relative error is below 1e-10, and a point's
        values do not depend on ``k``. Distances below 1e-145 of the largest coordinate become 0.
    """
    if groups is not None and len(groups.unique()) == len(groups):
        groups = None
    pairs = find_candidates(points, k, groups)
    n, first, second = len(points), pairs.first, pairs.second
    rank = torch.arange(len(first), device=points.device) - torch.searchsorted(first, first)
    distances = torch.full(first.shape, torch.inf, dtype=torch.float64, device=points.device)
    # distances of the k best scores come first: they rule out most of the other pairs
    # positions, not masks: a device is waited for at every use of a mask
    best = (rank < k).nonzero().flatten()
    distances[best] = pair_distances(points, first[best], second[best])
    reach = distances.new_zeros(n).scatter_reduce(0, first[best], distances[best], "amax")
    limit = pairs.rounded.max_score(reach * pairs.rounded.scale, slice(n))
    rest = (pairs.scores <= limit[first]).index_fill_(0, best, False).nonzero().flatten()
    distances[rest] = pair_distances(points, first[rest], second[rest])
    distances, order = distances.sort()
    first, by_first = first[order].sort(stable=True)
    found = Neighbours(distances.new_full((n, k), torch.nan), first.new_zeros(n, k))
    found.distances[first[best], rank[best]] = distances[by_first][best]
    found.indices[first[best], rank[best]] = second[order[by_first[best]]]
    rows = (~pairs.complete).nonzero().flatten()
    if len(rows):
        found.distances[rows], found.indices[rows] = neighbours_of(rows, points, k, groups=groups)
    return found


def neighbours_of(rows: Tensor, points: Tensor, k: int, *, groups: Tensor | None = None) -> Neighbours:
    """Return the k nearest neighbours of some points only, int64 (m,), as :func:`nearest_neighbours`, by float64
    products; k is at least 1."""
    found = Neighbours(
        torch.full((len(rows), k), torch.nan, dtype=torch.float64, device=points.device),
        torch.zeros(len(rows), k, dtype=torch.int64, device=points.device),
    )
    pending = torch.arange(len(rows), device=points.device)
    for n_extra in _N_EXTRA:
        if not len(pending):
            break
        n_candidates = len(points) - 1 if n_extra is None else min(k + n_extra, len(points) - 1)
        search = _Float64Search(points, k, n_candidates, groups)
        proven = []
        for part in pending.split(min(_TILE, search.max_rows)):
            neighbours, is_proven = search.search(rows[part])
            found.distances[part], found.indices[part] = neighbours
            proven.append(is_proven)
        pending = pending[~torch.cat(proven)]
    return found


def pair_distances(points: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Compute distances between pairs of points from the original coordinates, without cancellation.

    A distance so small relative to the coordinates that its square loses digits becomes 0.
    """
    at_a_time = max(1, (_CPU_CHUNK if points.device.type == "cpu" else _DEVICE_CHUNK) // points.shape[1])
    # only in float64 can squares leave the range
    scale = unit_scale(points) if points.dtype == torch.float64 else 1.0
    distances = []
    for a, b in zip(first.split(at_a_time), second.split(at_a_time), strict=True):
        difference = embedding(a, points).double().sub_(embedding(b, points))
        difference = difference if scale == 1 else difference.mul_(scale)
        distances.append(torch.linalg.vector_norm(difference, dim=1))
    result = torch.cat(distances)
    return result.where(result > _MIN_DISTANCE, 0).div_(scale)


class _Float64Search:
    """A search by rows of a float64 product, with a proof that the neighbours found are the nearest."""

    def __init__(self, points: Tensor, k: int, n_candidates: int, groups: Tensor | None = None) -> None:
        self.points, self.k, self.n_candidates, self.groups = points, k, n_candidates, groups
        self.max_rows = max(1, (1 << 20) // n_candidates)
        self.frame = Frame.fit(points)

    def search(self, rows: Tensor) -> tuple[Neighbours, Tensor]:
        """Return the k nearest neighbours of some rows, and for which rows they are proven."""
        left = self.frame.transform(self.points[rows])
        # converted in chunks: all points in float64 would take twice the memory of the points themselves
        scores = torch.cat([_scores(left, self.frame.transform(right)) for right in row_chunks(self.points)], 1)
        scores[torch.arange(len(rows), device=rows.device), rows] = torch.inf
        if self.groups is not None:
            scores.masked_fill_(self.groups[rows, None] == self.groups, torch.inf)
        # infinite columns complete the last group; at least one means that nothing was left out
        scores = pad(scores, (0, _GROUPS - scores.shape[1] % _GROUPS), value=torch.inf)
        values, candidates = _smallest(scores, self.n_candidates + 1)
        candidates.clamp_(max=len(self.points) - 1)
        first = rows.repeat_interleave(self.n_candidates)
        distances = pair_distances(self.points, first, candidates[:, :-1].flatten()).view(len(rows), -1)
        # a group may leave fewer real candidates than columns
        distances.masked_fill_(values[:, :-1].isinf(), torch.inf)
        found, best = distances.topk(self.k, largest=False)
        proven = self._prove(_squares(left), found[:, -1] * self.frame.scale, values[:, -1])
        return Neighbours(found, candidates.gather(1, best)), proven

    def _prove(self, square: Tensor, reach: Tensor, best_left_out: Tensor) -> Tensor:
        """Return True where no point that was left out can be nearer than ``reach`` (in units of the frame).

        Such a point y would have |y| <= Y = |x| + r, and its computed score would stay below r^2 - |x|^2 plus

        - the rounding of both points, which moves their distance by u (|x| + |y|);
        - the rounding of a sum of d + 1 terms in any order, gamma_(d+1) (2 |x| |y| + |y|^2), gamma_k = k u / (1 - k u)
          (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1), that of the squared norms, and
          underflow.
        """
        dim, u = self.points.shape[1], _ROUNDOFF
        norm = square.sqrt()
        span = (2 * norm + reach) * (1 + 4 * u)
        terms = (dim + 8) * u
        gamma = terms / (1 - terms) + 2 * dim * u
        rounding = gamma * span.square() + 16 * (dim + 8) * torch.finfo(torch.float64).tiny
        return best_left_out + square - rounding >= (reach + 2 * u * span).square() * (1 - _TIE)


def _scores(left: Tensor, right: Tensor) -> Tensor:
    """Return |y|^2 - 2 x.y, which orders the points y as their distances from x do."""
    return torch.addmm(_squares(right), left, right.T, alpha=-2)


def _squares(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1).square()


def _smallest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k smallest of each row and their columns, as ``topk`` does, in a single pass over the row.

    The k smallest lie in the k strided groups with the smallest minima.
    """
    n_rows, n_columns = scores.shape
    if k * 8 > _GROUPS:
        return scores.topk(k, largest=False)
    minima = scores.view(n_rows, -1, _GROUPS).amin(1)
    groups = minima.topk(k, largest=False, sorted=False).indices
    members = torch.arange(0, n_columns, _GROUPS, device=scores.device)
    columns = (groups.unsqueeze(2) + members).view(n_rows, -1)
    values, positions = scores.gather(1, columns).topk(k, largest=False)
    return values, columns.gather(1, positions)


# Share of the radius of a cloud below which two points count as nearly the same. At initialisation the blocks of a
# byte-level encoder add so little that its 4096 vectors lie in 87 clusters, one for each token: 99 % of them are closer
# than this to another one, at step 64 still 95 %; in a trained decoder's first block, of dimension 2, 14 % are. A cloud
# of dimension 1 counts as nearly the same throughout: so close do 4096 points lie on a line.
NEAR_DUPLICATE = 1e-2


def same_group_share(cloud: Cloud) -> float:
    """Compute the share of the distinct points whose nearest other distinct point is of their own group.

    These are the neighbours that a dimension with groups leaves out; if the share is near 1, the dimension without
    groups would be that of the groups, not of the cloud. A tie counts for the other groups.

    Returns:
        In [0, 1]; 0 for groups of one, 1 for a single group. NaN when the cloud has no groups, contains NaN or inf, or
        fewer than 3 distinct points.

    Invariant to translation, rotation, uniform scaling, order of the points, columns of zeros and names of the groups.
    """
    try:
        cloud.require_defined()
    except Undefined:
        return math.nan
    if cloud.groups is None:
        return math.nan
    own, other = cloud.once(nearest_in_group), cloud.once(nearest_outside)
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
    try:
        cloud.require_defined()
    except Undefined:
        return math.nan
    with full_precision(cloud.x.device):
        nearest_any = cloud.once(nearest_outside)
        if cloud.groups is not None:
            nearest_any = nearest_any.minimum(cloud.once(nearest_in_group))
        is_near = nearest_any < NEAR_DUPLICATE * cloud.once(radius)
        if cloud.repeats is not None:
            is_near = (is_near | (cloud.repeats.inverse.bincount() > 1))[cloud.repeats.inverse]
        return is_near.double().mean().item()
