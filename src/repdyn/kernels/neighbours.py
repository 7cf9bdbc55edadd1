"""Distances to the two nearest neighbours, from matrix products that never have to be trusted.

A product ranks the points (|y_j|^2 - 2 x_i.y_j orders them as the distances do), the best few are measured directly,
and a bound on the product's rounding proves that no other point is nearer. Rows without proof climb a ladder: float64,
then more and more candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from repdyn.kernels.cloud import centre, unit_scale

# (precision of the product, candidates per row); the last rung measures every point and needs no proof
_LADDER = ((torch.float32, 4), (torch.float64, 32), (torch.float64, 1024), (torch.float64, None))
_ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
# No bound tells a point tied with the second neighbour from a nearer one. What float64 cannot tell apart is accepted:
# then nothing is nearer than (1 - 5e-11) r2.
_TIE = {torch.float32: 0.0, torch.float64: 1e-10}
# coordinates gathered at a time to measure distances directly
_GATHERED = 1 << 20
# strided groups of columns; the minima of the groups narrow the selection
_GROUPS = 512


def two_nearest(points: Tensor, *, tile: int = 512) -> tuple[Tensor, Tensor]:
    """Euclidean distances from each point to the two nearest others.

    Args:
        points: *distinct* finite points, shape (n, dim) with n >= 3, any floating dtype, any origin.
        tile: rows of the distance matrix held at a time; it bounds memory and leaves the result alone.

    Returns:
        r1 <= r2: float64, shape (n,), in the unit of ``points``; the relative error is below 1e-10.
    """
    nearest = torch.empty(len(points), 2, dtype=torch.float64, device=points.device)
    pending = torch.arange(len(points), device=points.device)
    for dtype, n_candidates in _LADDER:
        search = _Search(points, dtype, min(n_candidates or len(points), len(points) - 1))
        proven = []
        for rows in pending.split(min(tile, search.most_rows)):
            nearest[rows], proof = search.two_nearest(rows)
            proven.append(proof)
        pending = pending[~torch.cat(proven)]
        if not len(pending):
            break
    return nearest[:, 0], nearest[:, 1]


class _Search:
    """One rung: the ranking product in one precision, the candidates it proposes, and the proof."""

    def __init__(self, points: Tensor, dtype: torch.dtype, n_candidates: int) -> None:
        self.points, self.n_candidates = points, n_candidates
        self.most_rows = max(1, _GATHERED // (n_candidates * points.shape[1]))
        self.scale = unit_scale(points)
        self.ranked = centre(points, dtype)
        self.squares = torch.linalg.vector_norm(self.ranked, dim=1, dtype=torch.float64).square()
        # columns at infinity fill up the last row of groups
        filler = -len(points) % _GROUPS
        self.columns = pad(self.ranked, (0, 0, 0, filler)).mul_(-2).T
        self.offsets = pad(self.squares.to(dtype), (0, filler), value=torch.inf)

    def two_nearest(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Distances, shape (len(rows), 2), and which rows they are proven for."""
        scores = torch.addmm(self.offsets, self.ranked[rows], self.columns)
        scores[torch.arange(len(rows), device=rows.device), rows] = torch.inf
        values, candidates = _smallest(scores, self.n_candidates + 1)
        nearest = self._measure(rows, candidates[:, :-1]).topk(2, largest=False).values
        return nearest, self._prove(rows, nearest[:, 1] * self.scale, values[:, -1].double())

    def _measure(self, rows: Tensor, candidates: Tensor) -> Tensor:
        """Distances from the coordinates as they came: nothing is lost by centring, nothing cancels."""
        differences = self.points[candidates].double()
        differences -= self.points[rows].double().unsqueeze(1)
        return torch.linalg.vector_norm(differences, dim=2)

    def _prove(self, rows: Tensor, r2: Tensor, best_left_out: Tensor) -> Tensor:
        """True where no point that was left out can be nearer than ``r2`` (in units of ``ranked``).

        Such a point y would have |y| <= Y = |x| + r2, and its computed score would stay below r2^2 - |x|^2 plus

        - the rounding of both points, which moves their distance by u (|x| + |y|);
        - the rounding of a sum of d + 1 terms in any order, gamma_(d+1) (2 |x| |y| + |y|^2), gamma_k = k u / (1 - k u)
          (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1), that of the squared norms, and
          underflow.
        """
        dim, dtype = self.ranked.shape[1], self.ranked.dtype
        u = _ROUNDOFF[dtype]
        square = self.squares[rows]
        norm = square.sqrt()
        span = (2 * norm + r2) * (1 + 4 * u)
        terms = (dim + 8) * u
        gamma = terms / (1 - terms) + dim * _ROUNDOFF[torch.float64] * 2
        rounding = gamma * span.square() + 16 * (dim + 8) * torch.finfo(dtype).tiny
        reach = (r2 + 2 * u * span).square() * (1 - _TIE[dtype])
        return best_left_out + square - rounding >= reach


def _smallest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row and their columns, as topk but reading the row once.

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
