"""Exact nearest-neighbour search by matrix products.

A matrix product gives all squared distances as |x|^2 + |y|^2 - 2 x.y, as fast as the device can
multiply, but with rounding errors that grow with the norms: of two near points nothing is left.
So products only *choose* candidates; distances are computed from the coordinates of the candidates
(:func:`pair_distances`), and a bound on the product's rounding *proves* for each point that no
other point can be nearer (a certificate). Points without a proof are searched again with more
candidates, at last with all. There are three searches of this kind:

- :func:`nearest_neighbours`, of all points: candidates by a product in low precision
  (:mod:`repdyn.kernels.candidates`);
- :func:`neighbours_of`, of some points, and of those that the first has left open: by a float64
  product, proven by :func:`_is_proven`;
- :mod:`repdyn.kernels.few_launches`, on an accelerator, by few operations.

What a cloud's neighbours are, searched once, is in :mod:`repdyn.kernels.neighbours`.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from repdyn.kernels import few_launches
from repdyn.kernels.candidates import find_candidates
from repdyn.kernels.cloud import Frame, row_chunks, unit_scale

# candidates per row beyond k, tried in turn; the last try computes all distances and needs no proof
_N_EXTRA = (30, 1022, None)
_ROUNDOFF = 2.0**-53
# rows of the distance matrix held at a time in float64
_TILE = 512
TIE = 1e-10
"""Relative difference up to which two distances count as equal. No bound distinguishes a point tied
with the last neighbour from a nearer one: nothing is nearer than (1 - 5e-11) r_k."""
_MIN_DISTANCE = few_launches.SMALLEST_DISTANCE
# coordinates gathered at a time for direct distances: they stay in the cache of a CPU, or keep an
# accelerator busy
_CPU_CHUNK = 1 << 15
_DEVICE_CHUNK = 1 << 25
MOST_BY_CANDIDATES = 64
"""Neighbours beyond which most pairs would be candidates of an approximate search."""


class Neighbours(NamedTuple):
    """The nearest neighbours of some points, by ascending distance."""

    distances: Tensor
    """float64, shape (n, k)."""
    indices: Tensor
    """int64, shape (n, k)"""


def nearest_neighbours(points: Tensor, k: int, *, groups: Tensor | None = None) -> Neighbours:
    """Find the k >= 1 nearest neighbours of each point; ties are broken arbitrarily.

    Args:
        points: *distinct* finite points, shape (n, dim) with n > k, any floating dtype, any origin.
        groups: integers, shape (n,), of which each point needs k others outside its own: points of
            one group are not each other's neighbours.

    Returns:
        Distances ascending along each row, in the unit of ``points``; the relative error is below
        1e-10, and a point's values do not depend on ``k``. Distances below 1e-145 of the largest
        coordinate become 0.
    """
    # groups of one exclude no pair
    if groups is not None and len(groups.unique()) == len(groups):
        groups = None
    if k > MOST_BY_CANDIDATES:
        return neighbours_of(
            torch.arange(len(points), device=points.device), points, k, groups=groups
        )
    pairs = find_candidates(points, k, groups)
    n, first, second = len(points), pairs.first, pairs.second
    # the place of each pair among those of its point, which are sorted by score
    rank = torch.arange(len(first), device=points.device) - torch.searchsorted(first, first)
    distances = torch.full(first.shape, torch.inf, dtype=torch.float64, device=points.device)
    # The distances of the k best scores come first: they rule out most of the other pairs. All
    # selections are by numbers, because a device is waited for at every use of a mask.
    best = (rank < k).nonzero().flatten()
    distances[best] = pair_distances(points, first[best], second[best])
    reach = distances.new_zeros(n).scatter_reduce(0, first[best], distances[best], "amax")
    limit = pairs.rounded.max_score(reach * pairs.rounded.scale, slice(n))
    rest = (pairs.scores <= limit[first]).index_fill_(0, best, False).nonzero().flatten()
    distances[rest] = pair_distances(points, first[rest], second[rest])
    # a point has the same stretch of pairs before and after the sort, and so its k nearest are at
    # the places of its k best scores
    order = _nearest_first(first, second, distances)
    result = Neighbours(distances.new_full((n, k), torch.nan), first.new_zeros(n, k))
    result.distances[first[best], rank[best]] = distances[order[best]]
    result.indices[first[best], rank[best]] = second[order[best]]
    rows = (~pairs.complete).nonzero().flatten()
    if len(rows):
        result.distances[rows], result.indices[rows] = neighbours_of(rows, points, k, groups=groups)
    return result


def _nearest_first(first: Tensor, second: Tensor, distances: Tensor) -> Tensor:
    """Return the order of pairs, sorted by their first point, that sorts them by distance too, and
    pairs of one distance by their second point: by nothing that depends on a product's rounding.
    """
    order = distances.argsort()
    order = order[first[order].argsort(stable=True)]
    # ties are rare: a CPU is asked for them and spared the sorts; for a device's answer the host
    # would wait
    if distances.device.type == "cpu":
        ascending = distances[order]
        is_tied = (ascending[1:] == ascending[:-1]) & (first[1:] == first[:-1])
        if not bool((is_tied & ascending[1:].isfinite()).any()):
            return order
    order = second.argsort()
    order = order[distances[order].argsort(stable=True)]
    return order[first[order].argsort(stable=True)]


def neighbours_of(
    rows: Tensor, points: Tensor, k: int, *, groups: Tensor | None = None
) -> Neighbours:
    """Return the k nearest neighbours of some points, int64 (m,): :func:`nearest_neighbours` by
    float64 products.
    """
    result = Neighbours(
        torch.full((len(rows), k), torch.nan, dtype=torch.float64, device=points.device),
        torch.zeros(len(rows), k, dtype=torch.int64, device=points.device),
    )
    pending = torch.arange(len(rows), device=points.device)
    frame = Frame.fit(points, unit_scale(points))
    for n_extra in _N_EXTRA:
        if not len(pending):
            break
        n_candidates = len(points) - 1 if n_extra is None else min(k + n_extra, len(points) - 1)
        proven = []
        # fewer rows where each has many candidates, whose distances are held at a time
        for rows_at_once in pending.split(max(1, min(_TILE, (1 << 16) // n_candidates))):
            neighbours, is_proven = _search(
                rows[rows_at_once], points, k, n_candidates, frame, groups
            )
            result.distances[rows_at_once], result.indices[rows_at_once] = neighbours
            proven.append(is_proven)
        pending = pending[~torch.cat(proven)]
    return result


def pair_distances(points: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Compute distances between pairs of points from the original coordinates, without
    cancellation.

    A distance so small relative to the coordinates that its square loses digits becomes 0.
    """
    at_a_time = max(
        1, (_CPU_CHUNK if points.device.type == "cpu" else _DEVICE_CHUNK) // points.shape[1]
    )
    # only in float64 can squares leave the range
    scale = unit_scale(points) if points.dtype == torch.float64 else 1.0
    # written in place: results kept between the rows that are gathered would scatter the freed
    # memory of these
    result = torch.empty(first.shape, dtype=torch.float64, device=points.device)
    for a, b, target in zip(
        first.split(at_a_time), second.split(at_a_time), result.split(at_a_time), strict=True
    ):
        difference = embedding(a, points).double().sub_(embedding(b, points))
        difference = difference if scale == 1 else difference.mul_(scale)
        torch.linalg.vector_norm(difference, dim=1, out=target)
    return result.where(result > _MIN_DISTANCE, 0).div_(scale)


def _search(
    rows: Tensor,
    points: Tensor,
    k: int,
    n_candidates: int,
    frame: Frame,
    groups: Tensor | None = None,
) -> tuple[Neighbours, Tensor]:
    """Return the k nearest neighbours of some rows by a float64 product, and for which of them they
    are proven.
    """
    left = frame.transform(points[rows])
    # converted in chunks: all points in float64 would take twice the memory of the points
    # themselves
    scores = torch.cat([_scores(left, frame.transform(right)) for right in row_chunks(points)], 1)
    scores[torch.arange(len(rows), device=rows.device), rows] = torch.inf
    if groups is not None:
        scores.masked_fill_(groups[rows, None] == groups, torch.inf)
    # the column of the point itself, infinite, is the last one where nothing was left out
    values, candidates = scores.topk(n_candidates + 1, largest=False)
    first = rows.repeat_interleave(n_candidates)
    # in order of their numbers, which decides among points of one distance
    candidates, by_number = candidates[:, :-1].sort(1)
    distances = pair_distances(points, first, candidates.flatten()).view(len(rows), -1)
    # a group may leave fewer real candidates than columns
    distances.masked_fill_(values.gather(1, by_number).isinf(), torch.inf)
    ascending, order = distances.sort(dim=1, stable=True)
    nearest = ascending[:, :k]
    proven = _is_proven(
        points.shape[1], _squares(left), nearest[:, -1] * frame.scale, values[:, -1]
    )
    return Neighbours(nearest, candidates.gather(1, order[:, :k])), proven


def _is_proven(dim: int, square: Tensor, reach: Tensor, best_left_out: Tensor) -> Tensor:
    """Return True where no point that was left out can be nearer than ``reach`` (in units of the
    frame).

    Such a point y would have |y| <= Y = |x| + r, and its computed score would stay below r^2 -
    |x|^2 plus

    - the rounding of both points, which moves their distance by u (|x| + |y|);
    - the rounding of a sum of d + 1 terms in any order, gamma_(d+1) (2 |x| |y| + |y|^2), gamma_k =
      k u / (1 - k u) (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1),
      that of the squared norms, and underflow.
    """
    u = _ROUNDOFF
    norm = square.sqrt()
    span = (2 * norm + reach) * (1 + 4 * u)
    terms = (dim + 8) * u
    gamma = terms / (1 - terms) + 2 * dim * u
    rounding = gamma * span.square() + 16 * (dim + 8) * torch.finfo(torch.float64).tiny
    return best_left_out + square - rounding >= (reach + 2 * u * span).square() * (1 - TIE)


def _scores(left: Tensor, right: Tensor) -> Tensor:
    """Return |y|^2 - 2 x.y, which orders the points y as their distances from x do."""
    return torch.addmm(_squares(right), left, right.T, alpha=-2)


def _squares(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1).square()
