"""The nearest neighbours of all points in few operations, for devices that wait for their host.

On a GPU a product of 4,096 points takes a quarter of a millisecond, and so does the host for each
dozen of operations that it launches. So there is one product in full float32, a selection of some
candidates for each point, their distances in float64 from the coordinates, and one bound on all
rounding errors for all points at once. Nothing here makes the host wait for the device.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from repdyn.kernels.cloud import sample

# candidates of each point beyond its k nearest: the farthest of them bounds what was left out
_N_EXTRA = 14
# scores held at a time, and coordinates in float64: 256 and 512 MB
_SCORES = 1 << 26
_GATHERED = 1 << 26
LARGEST = 1 << 27
"""Coordinates of a cloud beyond which this path would hold more than 1 GB of them in float64."""
# a CPU rounds sums to nearest, an accelerator may truncate them
_ROUNDOFF = 2.0**-24
_TRUNCATION = 2.0**-23


SMALLEST_DISTANCE = 1e-145
"""Distance below which squares lose digits, in units in which the largest coordinate is about 1."""


class Search(NamedTuple):
    """The nearest neighbours of all points, and for which of them they are proven."""

    distances: Tensor
    """float64, shape (n, k), ascending."""
    indices: Tensor
    """int64, shape (n, k)."""
    proven: Tensor
    """bool, shape (n,): whether no point that is not among the candidates can be nearer."""


class SearchedPoints:
    """Points, as their product needs them and as their distances do.

    Args:
        points, groups: as for :func:`repdyn.kernels.search.nearest_neighbours`.
        scale: that of the cloud.
    """

    def __init__(self, points: Tensor, groups: Tensor | None, scale: float) -> None:
        self.groups = groups
        self.scale = scale
        # a power of two: distances between these are exact where those between the points are
        self.wide = points.double() * scale
        # the origin matters to rounding alone: errors grow with the norms, which the median makes
        # small for all but a few huge points, such as attention sinks, that would drag the mean
        centre = sample(self.wide).median(0).values
        self.rounded = (self.wide - centre).float()
        """float32, scaled and centred."""
        self.squares = self.rounded.double().square().sum(1)

    def nearest(self, k: int, *, tie: float) -> Search:
        """Search the k nearest neighbours of each point; a row that is not proven may be wrong.

        ``tie`` is the relative difference of two distances that is accepted.
        """
        n = len(self.wide)
        at_a_time = max(1, _SCORES // n)
        parts = [self.of_rows(start, start + at_a_time, k, tie) for start in range(0, n, at_a_time)]
        if len(parts) == 1:
            return parts[0]
        return Search(*(torch.cat(of_parts) for of_parts in zip(*parts, strict=True)))

    def of_rows(self, start: int, stop: int, k: int, tie: float) -> Search:
        """Search the neighbours of successive points."""
        rows = slice(start, min(stop, len(self.wide)))
        # |y|^2 - 2 x.y, which orders the points y as their distances from x do
        scores = torch.addmm(self.squares.float(), self.rounded[rows], self.rounded.T, alpha=-2)
        if self.groups is None:
            scores.diagonal(start).fill_(torch.inf)
        else:
            scores.masked_fill_(self.groups[rows, None] == self.groups, torch.inf)
        n_candidates = min(k + _N_EXTRA, len(self.wide) - 1)
        values, candidates = scores.topk(n_candidates + 1, largest=False)
        distances = self._distances(rows, candidates[:, :-1])
        # a group may leave fewer real candidates than columns
        distances.masked_fill_(values[:, :-1].isinf(), torch.inf)
        nearest, best = distances.topk(k, largest=False)
        proven = self._is_proven(rows, nearest[:, -1], values[:, -1].double(), tie)
        return Search(nearest / self.scale, candidates.gather(1, best), proven)

    def _distances(self, rows: slice, candidates: Tensor) -> Tensor:
        """Return the distances, in units of ``wide``, of rows to their candidates: those so small
        that their squares lose digits are 0.
        """
        at_a_time = max(1, _GATHERED // (candidates.shape[1] * self.wide.shape[1]))
        pieces = zip(self.wide[rows].split(at_a_time), candidates.split(at_a_time), strict=True)
        distances = _joined(
            [
                torch.linalg.vector_norm(self.wide[others].sub_(own[:, None]), dim=2)
                for own, others in pieces
            ]
        )
        return torch.threshold_(distances, SMALLEST_DISTANCE, 0.0)

    def _is_proven(self, rows: slice, reach: Tensor, best_left_out: Tensor, tie: float) -> Tensor:
        """Return True where no point that was left out can be nearer than ``reach``.

        With x' and y' the points rounded to float32, u its roundoff and r the reach, a point y with
        |x - y| < r has |x| + |y| <= 2 |x| + r = s. Its score, plus |x'|^2, lies below |x' - y'|^2 +
        g s^2, where g bounds the rounding of a sum of d products in any order (Higham, Accuracy and
        Stability of Numerical Algorithms, 2002, section 3.1) and that of |y'|^2, and |x' - y'| <= r
        + u s.
        """
        dim = self.wide.shape[1]
        is_cpu = self.wide.device.type == "cpu"
        terms = (dim + 8) * (_ROUNDOFF if is_cpu else _TRUNCATION)
        gamma = terms / (1 - terms)
        square = self.squares[rows]
        span = (2 * square.sqrt() + reach) * (1 + 8 * _ROUNDOFF)
        rounding = gamma * span.square() + 16 * (dim + 8) * torch.finfo(torch.float32).tiny
        farthest = (reach + 2 * _ROUNDOFF * span).square() * (1 - tie)
        return best_left_out + square - rounding >= farthest

    def pairs_in_groups(self, largest: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the first and the second point of each pair of one group, and their distance:
        int64, int64 and float64, shape (n * (largest - 1),).

        ``largest`` is the size of the largest group, at least 2. How many pairs there are is known
        to the device alone: the others stay, with an infinite distance.
        """
        groups, order = torch.sort(cast(Tensor, self.groups), stable=True)
        n = len(groups)
        n_others = largest - 1
        # each point with those that come next by group; the last ones are too few
        following = torch.arange(n, device=groups.device)[:, None] + torch.arange(
            1, largest, device=groups.device
        )
        is_inside = following < n
        following.clamp_(max=n - 1)
        together = (groups[following] == groups[:, None]).logical_and_(is_inside)
        ordered = self.wide[order]
        padded = torch.cat([ordered, ordered[-1:].expand(n_others, -1)])
        neighbourhoods = padded.unfold(0, largest, 1)
        at_a_time = max(1, _GATHERED // (n_others * padded.shape[1]))
        distances = _joined(
            [
                torch.linalg.vector_norm(some[:, :, 1:] - some[:, :, :1], dim=1)
                for some in neighbourhoods.split(at_a_time)
            ]
        )
        torch.threshold_(distances, SMALLEST_DISTANCE, 0.0).div_(self.scale)
        distances.masked_fill_(~together, torch.inf)
        first = order[:, None].expand(n, n_others)
        return first.flatten(), order[following].flatten(), distances.flatten()


def _joined(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
