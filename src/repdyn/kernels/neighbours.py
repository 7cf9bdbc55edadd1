"""Distances to the nearest neighbours, from matrix products that never have to be trusted.

An approximate product gives each point a shortlist that provably holds its nearest (see ``shortlist``); the pairs on it
are measured directly. Points whose distances are too small for that product's rounding, or tied, climb a ladder of
float64 products: the best few are measured, and a bound on the rounding proves that no other point is nearer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from repdyn.kernels.cloud import Cloud, Frame, row_chunks, unit_scale
from repdyn.kernels.shortlist import shortlist
from repdyn.kernels.undefined import Undefined

# candidates per row beyond k; the last rung measures every point and needs no proof
_LADDER = (30, 1022, None)
_ROUNDOFF = 2.0**-53
# No bound tells a point tied with the last neighbour from a nearer one. What float64 cannot tell apart is accepted:
# then nothing is nearer than (1 - 5e-11) r_k.
_TIE = 1e-10
# distances of which the squares still have all their digits
_LEAST = 1e-145
# coordinates gathered at a time to measure distances directly: they stay in the cache
_GATHERED = 1 << 15
# strided groups of columns; the minima of the groups narrow the selection
_GROUPS = 512


class Nearest(NamedTuple):
    """The nearest others of some points, ascending by distance."""

    distances: Tensor
    """float64, shape (n, k)."""
    others: Tensor
    """int64, shape (n, k): which points they are."""


def nearest_of(cloud: Cloud, k: int) -> Tensor:
    """Return the distances from each distinct point of a cloud to its k nearest others, (n_unique, k); searched once.

    Points of one group are not each other's neighbours.

    Raises:
        Undefined: a point has fewer than k distinct others outside its group.
    """
    return search_of(cloud, k).distances


def search_of(cloud: Cloud, k: int) -> Nearest:
    """Return the same with the positions of the neighbours among the distinct points."""
    most = cloud.once(n_outside)
    if k > most and cloud.groups is not None:
        raise Undefined(
            f"{most} of {cloud.n_unique} distinct points lie outside the largest of the groups, at least {k} needed"
        )
    if k <= min(cloud.n_neighbours, most):
        found = cloud.once(_most_nearest)
        return Nearest(found.distances[:, :k], found.others[:, :k])
    return search(cloud.distinct, k, groups=cloud.distinct_groups)


def n_outside(cloud: Cloud) -> int:
    """Return the number of possible neighbours of the distinct point that has the fewest."""
    groups = cloud.distinct_groups
    own = 1 if groups is None else int(groups.unique(return_counts=True)[1].max())
    return cloud.n_unique - own


def _most_nearest(cloud: Cloud) -> Nearest:
    k = min(cloud.n_neighbours, cloud.once(n_outside))
    return search(cloud.distinct, k, groups=cloud.distinct_groups)


def nearest(points: Tensor, k: int = 2, *, groups: Tensor | None = None, tile: int = 512) -> Tensor:
    """Euclidean distances from each point to its k nearest others.

    Args:
        points: *distinct* finite points, shape (n, dim) with n > k, any floating dtype, any origin.
        k: number of neighbours, 1 to 64.
        groups: integers, shape (n,): points of one group are not each other's neighbours. Each point needs k others
            outside its own.
        tile: rows of the distance matrix held at a time on the ladder; it bounds memory and leaves the result alone.

    Returns:
        float64, shape (n, k), ascending along each row, in the unit of ``points``; the relative error is below 1e-10,
        and a point's values do not depend on ``k``. Distances below 1e-145 of the largest coordinate become 0.
    """
    return search(points, k, groups=groups, tile=tile).distances


def search(points: Tensor, k: int, *, groups: Tensor | None = None, tile: int = 512) -> Nearest:
    """Return the same with the positions of the neighbours; among tied ones any."""
    if groups is not None and len(groups.unique()) == len(groups):
        groups = None
    found, complete = _from_shortlist(points, k, groups)
    pending = (~complete).nonzero().flatten()
    for more in _LADDER:
        if not len(pending):
            break
        n_candidates = len(points) - 1 if more is None else min(k + more, len(points) - 1)
        rung = _Float64Search(points, k, n_candidates, groups)
        proven = []
        for rows in pending.split(min(tile, rung.most_rows)):
            of_rows, proof = rung.nearest(rows)
            found.distances[rows], found.others[rows] = of_rows
            proven.append(proof)
        pending = pending[~torch.cat(proven)]
    return found


def _from_shortlist(points: Tensor, k: int, groups: Tensor | None = None) -> tuple[Nearest, Tensor]:
    """Return the k nearest, and which rows have them."""
    pairs = shortlist(points, k, groups)
    n, first, second = len(points), pairs.first, pairs.second
    place = torch.arange(len(first), device=points.device) - torch.searchsorted(first, first)
    measured = torch.full(first.shape, torch.inf, dtype=torch.float64, device=points.device)
    # the k best scores are measured first: with distances that are known, fewer pairs stay in question
    best = place < k
    measured[best] = measure(points, first[best], second[best])
    reach = measured.new_zeros(n).scatter_reduce(0, first[best], measured[best], "amax")
    rest = ~best & pairs.within(reach)
    measured[rest] = measure(points, first[rest], second[rest])
    measured, order = measured.sort()
    first, by_first = first[order].sort(stable=True)
    found = Nearest(measured.new_full((n, k), torch.nan), first.new_zeros(n, k))
    found.distances[first[best], place[best]] = measured[by_first][best]
    found.others[first[best], place[best]] = second[order[by_first[best]]]
    return found, pairs.complete


def measure(points: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return distances computed from the original coordinates: nothing is lost by centring, nothing cancels.

    Zero where they are so small beside the coordinates that their squares lose digits.
    """
    at_a_time = max(1, _GATHERED // points.shape[1])
    # only in float64 can a unit be such that squares leave its range
    scale = unit_scale(points) if points.dtype == torch.float64 else 1.0
    distances = [
        torch.linalg.vector_norm(_difference(points, a, b, scale), dim=1)
        for a, b in zip(first.split(at_a_time), second.split(at_a_time), strict=True)
    ]
    measured = torch.cat(distances)
    return measured.where(measured > _LEAST, 0).div_(scale)


def _difference(points: Tensor, first: Tensor, second: Tensor, scale: float) -> Tensor:
    difference = embedding(first, points).double().sub_(embedding(second, points))
    return difference if scale == 1 else difference.mul_(scale)


class _Float64Search:
    """Rows of a float64 product, the candidates it proposes, and the proof."""

    def __init__(self, points: Tensor, k: int, n_candidates: int, groups: Tensor | None = None) -> None:
        self.points, self.k, self.n_candidates, self.groups = points, k, n_candidates, groups
        self.most_rows = max(1, (1 << 20) // n_candidates)
        self.frame = Frame.of(points)

    def nearest(self, rows: Tensor) -> tuple[Nearest, Tensor]:
        """The k nearest of some rows, and which of these they are proven for."""
        left = self.frame.place(self.points[rows])
        # widened as they are needed: all points in float64 would take twice the memory of the points themselves
        scores = torch.cat([_scores(left, self.frame.place(right)) for right in row_chunks(self.points)], 1)
        scores[torch.arange(len(rows), device=rows.device), rows] = torch.inf
        if self.groups is not None:
            scores.masked_fill_(self.groups[rows, None] == self.groups, torch.inf)
        # columns at infinity fill up the last row of groups; at least one stands for "nothing was left out"
        scores = pad(scores, (0, _GROUPS - scores.shape[1] % _GROUPS), value=torch.inf)
        values, candidates = _smallest(scores, self.n_candidates + 1)
        candidates.clamp_(max=len(self.points) - 1)
        first = rows.repeat_interleave(self.n_candidates)
        distances = measure(self.points, first, candidates[:, :-1].flatten()).view(len(rows), -1)
        # a group may leave fewer candidates than are measured, the rest of which stand for nothing
        distances.masked_fill_(values[:, :-1].isinf(), torch.inf)
        found, best = distances.topk(self.k, largest=False)
        proven = self._prove(_squares(left), found[:, -1] * self.frame.scale, values[:, -1])
        return Nearest(found, candidates.gather(1, best)), proven

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
    """Return the k smallest of each row and their columns, as topk does, reading the row once.

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
