"""Candidates for the nearest neighbours of each point, from one approximate product with a rigorous
error bound.

The search for exact neighbours takes two steps, of which this module is the first: a cheap product
in low precision leaves a few pairs for each point, and :mod:`repdyn.kernels.search` computes
their distances exactly. The result is exact because the first step proves that it has left no
neighbour out:

- :class:`RoundedPoints`: every point is rounded to bfloat16 where the device multiplies it faster,
  else to float32, with its squared norm in extra columns, so that the product of two tiles of
  points is a tile of *scores*: approximate squared distances, whose error has a proven bound.
- :class:`_CandidateLists`: a point's k-th best score so far, plus that bound, is a *limit* that no
  nearer point's score can exceed. The pairs below it are the candidates.
- :func:`find_candidates`: goes through the tiles. Scores are symmetric, so that only tiles on or
  above the diagonal are computed: each is used for the points of its rows and for those of its
  columns.

Points of one group, such as the tokens of one window, are not neighbours: they are sorted next to
each other, so that what has to be masked lies along the diagonal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import isqrt
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import embedding

from repdyn.kernels.cloud import Frame, product, row_chunks, sample, unit_scale

# rows and columns of a tile: large enough to multiply at full speed, small enough to be read again
# from the cache
_ROWS, _COLUMNS = 1024, 4096
# strided groups of a tile's points; a group whose minimum exceeds the limit is skipped
_GROUPS = 128
# rows of a tile that are masked at once
_MASKED = 128
# groups below the limit, per neighbour, beyond which a point is abandoned: its margin is too wide
# for its distances
_MAX_CLOSE_GROUPS = 48
# pairs stored per point before those above the current limit are dropped
_MAX_PAIRS = 64
# the score of the padding points of the last group
_PADDING_SCORE = 1e30
# a coordinate with this many times the mean square is split in two: rounding it would widen the
# margin of all others
_DOMINANT = 16
# multiplications, for which a CPU takes some ten milliseconds, from which on it is worth trying
# which of two products is faster
_WORTH_TRYING = 1 << 31
# those of a product that is tried, half a millisecond, and how often each is
_TRIED = 1 << 25
_N_TRIALS = 3
# coordinates below which bfloat16 never left so many candidates that they cost more than it saves
_MANY_COORDINATES = 1024
# points of which it is tried how many it leaves, and the points of a cloud for each of them at
# which to measure them takes as long as the product saves (benchmarks/product_choice.py)
_N_SAMPLED = 32
_POINTS_PER_CANDIDATE = 200


@dataclass(frozen=True)
class Candidates:
    """Pairs of points that include the k nearest neighbours of each, sorted by first point and by
    score.
    """

    first: Tensor
    """int64, shape (n_pairs,): the point whose neighbour may be ``second``."""
    second: Tensor
    """int64, shape (n_pairs,)"""
    scores: Tensor
    """(n_pairs,): approximate squared distances, in the units of the frame."""
    complete: Tensor
    """bool, shape (n,): True where the pairs of a point are proven to include all its k nearest.
    For the other points, all distances have to be computed."""
    rounded: RoundedPoints
    """The points as they were compared, with the bounds on their errors."""


def find_candidates(points: Tensor, k: int, groups: Tensor | None = None) -> Candidates:
    """Find the points that could be among the k nearest neighbours of each point.

    1. The points are rounded, sorted by group and padded.
    2. Tile after tile, their scores enter the candidate lists of the points.
    3. The pairs that are still below the limits are returned: numbered as the points came, each
       point's pairs by ascending score, each pair twice if both points may want it.

    Args:
        points, k, groups: as for :func:`repdyn.kernels.search.nearest_neighbours`.
    """
    rounded = rounded_points(points, k, groups)
    n = len(points)
    lists = _CandidateLists(rounded, k)
    for rows, columns in _tiles(rounded.n_padded):
        scores = rounded.scores(rows, columns)
        lists.update(scores.T, points=rows, others=columns)
        # the same scores for the points of the columns; those that are in the rows as well, in the
        # tile on the diagonal, have got them with the line before
        after_rows = max(rows.stop, columns.start)
        lists.update(
            scores[:, after_rows - columns.start :],
            points=slice(after_rows, columns.stop),
            others=rows,
        )
        del scores  # freed before the next tile is made
    first, second, scores = lists.within()
    # a point that was abandoned has lost pairs, and fewer than k pairs prove nothing
    complete = (lists.n_close[:n] <= lists.max_close) & (first.bincount(minlength=n) >= k)
    if rounded.order is not None:
        # the points were sorted by group: everything goes back to the order in which they came
        first = rounded.order[first]
        second = rounded.order[second]
        complete = complete[rounded.restored_places(rounded.order)]
    # by score, then by point with a stable sort: each point's pairs come nearest first
    scores, order = scores.sort()
    first, by_first = first[order].sort(stable=True)
    return Candidates(
        first=first,
        second=second[order[by_first]],
        scores=scores[by_first].float(),
        complete=complete,
        rounded=rounded,
    )


def rounded_points(points: Tensor, k: int, groups: Tensor | None) -> RoundedPoints:
    """Return the points in the dtype by which their search takes least: of the faster product, but
    float32 where bfloat16 would leave so many candidates that measuring them takes longer.

    On a CPU a few points of a cloud of many coordinates tell, of which isotropic ones have many
    pairs of about the same distance.
    """
    n, dim = points.shape
    rounded = RoundedPoints(points, fastest_dtype(points), groups)
    is_float32 = rounded.right.dtype == torch.float32
    is_cheap = dim < _MANY_COORDINATES or n * n * dim < _WORTH_TRYING
    if is_float32 or is_cheap or points.device.type != "cpu":
        return rounded
    lists = _CandidateLists(rounded, k)
    sampled = slice(0, _N_SAMPLED)
    every = slice(0, rounded.n_padded)
    lists.update(rounded.scores(sampled, every).T, points=sampled, others=every)
    # groups with a candidate, which are also known of points that were abandoned
    n_left = float(lists.n_close[sampled].double().mean())
    if n_left * _POINTS_PER_CANDIDATE <= n:
        return rounded
    return RoundedPoints(points, torch.float32, groups)


def _tiles(n: int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and the columns of each tile of (n, n) symmetric scores, from the diagonal on:
    a tile on it is wider than high, so that parts of it are below.
    """
    for start in range(0, n, _ROWS):
        rows = slice(start, min(start + _ROWS, n))
        for begin in range(start, n, _COLUMNS):
            yield rows, slice(begin, min(begin + _COLUMNS, n))


def fastest_dtype(points: Tensor) -> torch.dtype:
    """Return the floating dtype, bfloat16 or float32, in which the device of points (n, dim)
    multiplies such points fastest.

    A CPU that lists instructions for bfloat16 may still be slower with them, so that both products
    are tried there, once a process for each number of threads and class of dim, in some ten
    milliseconds; a cloud too small to be worth that takes bfloat16. No distance depends on the
    choice: those of the candidates are computed from the points.
    """
    n, dim = points.shape
    if points.is_cuda:
        is_native = torch.cuda.get_device_capability(points.device) >= (8, 0)
        return torch.bfloat16 if is_native else torch.float32
    # older versions of torch do not report capabilities
    is_reported = points.device.type == "cpu" and hasattr(torch.cpu, "get_capabilities")
    capabilities = torch.cpu.get_capabilities() if is_reported else {}
    if not any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16")):
        return torch.float32
    if n * n * dim < _WORTH_TRYING:
        return torch.bfloat16
    # powers of two: a product of 700 coordinates is as that of 512
    return _faster_on_cpu(1 << (dim.bit_length() - 1), torch.get_num_threads())


@cache
def _faster_on_cpu(dim: int, n_threads: int) -> torch.dtype:
    """Return the dtype of the faster product of points of ``dim`` coordinates on this CPU, by
    trying both, with the number of threads that torch uses now.
    """
    n_rows = max(isqrt(_TRIED // dim), 16)
    # the time does not depend on the numbers
    factors = {
        dtype: torch.ones(n_rows, dim, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)
    }
    seconds: dict[torch.dtype, list[float]] = {dtype: [] for dtype in factors}
    # the first product compiles; by turns, so that what slows the process down slows both
    for _ in range(1 + _N_TRIALS):
        for dtype, factor in factors.items():
            start = perf_counter()
            product(factor, factor)
            seconds[dtype].append(perf_counter() - start)
    fastest = min(seconds, key=lambda dtype: min(seconds[dtype][1:]))
    _CHOSEN[f"{dim} to {2 * dim - 1} coordinates, threads: {n_threads}"] = fastest
    return fastest


_CHOSEN: dict[str, torch.dtype] = {}


def chosen_products() -> str:
    """Return in words which products were found to be the fastest by trying in this process; ""
    where none were tried.

    Example:
        >>> isinstance(chosen_products(), str)
        True
    """
    chosen = sorted(_CHOSEN.items())
    return "; ".join(f"{str(dtype).removeprefix('torch.')} ({what})" for what, dtype in chosen)


class RoundedPoints:
    """Points in the precision of the product, with bounds on the error of its scores.

    A row of the right factor is (x, high, low, |x|^2 in parts, ones), of the left one (-2 x,
    -2 low, -2 high, ones, |x|^2 in parts): their product is |x|^2 + |y|^2 - 2 x.y. So a whole
    squared distance is one product, without a pass over the tile that adds the norms. The squared
    norm is stored in parts, the second of which has what rounding has taken from the first.

    ``high`` and ``low`` are the two parts of the dominant coordinates: x.y of a coordinate x = high
    + low is high.high (already in x.y) + high.low + low.high, and low.low is left out. Transformers
    have a few coordinates that are larger than all others by far; rounded to bfloat16 like the
    rest, they alone would make the error bound useless.

    The rows are the points in their order, or group after group.
    """

    def __init__(self, points: Tensor, dtype: torch.dtype, groups: Tensor | None = None) -> None:
        n, dim = points.shape
        is_bfloat16 = dtype == torch.bfloat16
        self.scale = unit_scale(points)
        # The origin matters to rounding, not to distances: errors grow with the norms, and these
        # are smallest about the centre. It is the median, of each coordinate, because a few huge
        # points, such as attention sinks, would drag the mean away from all others.
        frame = Frame(self.scale, sample(points).double().mul(self.scale).median(0).values)
        dominant = _dominant_coordinates(frame.transform(sample(points))) if is_bfloat16 else []
        parts = 3 if is_bfloat16 else 1  # of 8 binary digits each, where float32 has 24
        self.widths = [dim, len(dominant), len(dominant), parts, parts]
        # filled up to a multiple of 16 columns, in which matrix units work
        self.widths.append(-sum(self.widths) % 16)
        self.order: Tensor | None = None
        if groups is not None:
            self.groups, self.order = groups.sort(stable=True)
            bounds = [
                torch.searchsorted(self.groups, self.groups, right=right) for right in (False, True)
            ]
            self.begins, self.ends = torch.stack(bounds).tolist()
        self.n = n
        self.n_padded = n + -n % _GROUPS
        self.right = torch.zeros(self.n_padded, sum(self.widths), dtype=dtype, device=points.device)
        self.norms = torch.zeros(self.n_padded, dtype=torch.float64, device=points.device)
        self.errors = torch.zeros_like(self.norms)
        for rows in torch.arange(n).split(len(row_chunks(points)[0])):
            self._write(slice(int(rows[0]), int(rows[-1]) + 1), points, frame, dominant)
        _, _, _, squares, ones, _ = self.right[n:].split(self.widths, 1)
        squares[:, :1].fill_(_PADDING_SCORE)
        ones.fill_(1)
        self._bound_errors(is_bfloat16=is_bfloat16)

    def _bound_errors(self, *, is_bfloat16: bool) -> None:
        """Set the bounds on the error of any score, once all points are rounded.

        - ``ratio``, the largest |y - y'| / |y'|: it bounds the error of any other point by its
          norm.
        - ``gamma``, a bound on the error of a score, relative to (|x'| + |y'|)^2. A sum of n terms
          in any order has a relative error of at most n u / (1 - n u) in the sum of their absolute
          values, u being the unit roundoff: Higham, Accuracy and Stability of Numerical Algorithms,
          2002, section 3.1; 1.02 covers the denominator. Two such sums are in it, the product and
          the squared norms; 2**-21 covers what the parts of these lack. Accelerators may truncate
          instead of rounding, which doubles u. The product of two low parts, which is left out, is
          at most 2 (2**-8)^2 |x'| |y'|, the 2**-17.
        - ``output``, a factor for the rounding of the score itself.
        - ``margin``, the part of a score's error that depends on one point alone.
        """
        self.ratio = (self.errors / self.norms).nan_to_num(0).max()
        terms = sum(self.widths)
        roundoff = 2**-23 if self.right.is_cuda else 2**-24
        self.gamma = 1.02 * terms * (roundoff + 2**-24) + 2**-21 + (2**-17 if is_bfloat16 else 0)
        # a score in bfloat16 is off by half of its last digit, the eighth
        self.output = 1 + (1.01 * 2**-8 if is_bfloat16 else 2**-22)
        # the second term is for products that are subnormal, whose error is absolute
        self.margin = (
            8 * self.gamma * self.norms.square() + 16 * terms * torch.finfo(torch.float32).tiny
        )

    def _write(self, rows: slice, points: Tensor, frame: Frame, dominant: list[int]) -> None:
        x, high, low, squares, ones, _ = self.right[rows].split(self.widths, 1)
        exact = frame.transform(
            points[rows] if self.order is None else embedding(self.order[rows], points)
        ).float()
        x.copy_(exact)
        lost = exact - x
        high.copy_(x[:, dominant])
        low.copy_(lost[:, dominant])
        lost[:, dominant] -= low
        norm = torch.linalg.vector_norm(exact - lost, dim=1)
        self.norms[rows] = norm
        # a thousandth covers the rounding of this norm, the last term that of the points to float32
        self.errors[rows] = torch.linalg.vector_norm(lost, dim=1) * (1 + 1e-3) + norm * 2**-23
        # each part has what the parts before it lack of the squared norm
        remainder = self.norms[rows].square()
        for part_of_square in squares.unbind(1):
            part_of_square.copy_(remainder)
            remainder = remainder - part_of_square
        ones.fill_(1)

    def restored_places(self, order: Tensor) -> Tensor:
        """Bring the bounds of all points back into the order in which these came, once no tile is
        computed any more; return for each point, (n,), where it was among the sorted ones.

        ``order`` is the one that sorted them, (n,).
        """
        # the inverse permutation; padding points stay behind the others
        inverse = torch.arange(self.n_padded, device=self.norms.device)
        inverse[order] = inverse[: self.n].clone()
        self.norms = self.norms[inverse]
        self.errors = self.errors[inverse]
        self.margin = self.margin[inverse]
        return inverse[: self.n]

    def scores(self, rows: slice, columns: slice) -> Tensor:
        """Return the approximate squared distances of a tile: infinity for a point and itself, and
        for points of one group.
        """
        # the left factor is made of the right one for each tile: kept, it would double the memory
        x, high, low, squares, ones, filler = self.right[rows].split(self.widths, 1)
        scores = product(
            torch.cat([-2 * x, -2 * low, -2 * high, ones, squares, filler], 1), self.right[columns]
        )
        # a point is not its own neighbour; only a tile on the diagonal has such pairs
        if columns.start == rows.start:
            scores.fill_diagonal_(torch.inf)
        # no rows are masked where there are no groups, and none of the padding
        last = rows.start if self.order is None else min(rows.stop, self.n)
        for start in range(rows.start, last, _MASKED):
            stop = min(start + _MASKED, last)
            begin = max(self.begins[start], columns.start)
            end = min(self.ends[stop - 1], columns.stop)
            if begin < end:
                block = scores[
                    start - rows.start : stop - rows.start,
                    begin - columns.start : end - columns.start,
                ]
                block.masked_fill_(
                    self.groups[start:stop, None] == self.groups[begin:end], torch.inf
                )
        return scores

    def max_score(self, distance: Tensor, rows: slice) -> Tensor:
        """Return the largest score, float32, that a pair with at most the given distance
        can have.
        """
        # the distance of the rounded points is at most d + e_x + r |y'|, with |y'| <= |x'| + that
        # distance, solved for it; a ratio r of 1 or more (subnormal points) gives no bound, so that
        # every pair is a candidate
        between = (distance + self.errors[rows] + self.ratio * self.norms[rows]) / (
            1 - self.ratio
        ).clamp_min(1e-300)
        score = (between.square() * (1 + 2 * self.gamma) + self.margin[rows]) * self.output
        return score.float() * (1 + 2**-22)


def _dominant_coordinates(centred: Tensor) -> list[int]:
    """Return the coordinates that hold :data:`_DOMINANT` times the mean share of the squared
    lengths of some points, (n, dim) float64.
    """
    shares = centred.square()
    totals = shares.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    mean_shares = (shares / totals).mean(0)
    is_dominant = mean_shares > _DOMINANT * mean_shares.mean()
    return is_dominant.nonzero().flatten().tolist()


class _CandidateLists:
    """The candidates of each point so far, and the k best scores that limit them.

    Looking at each score would cost more than the product. So the scores of a point are taken in
    groups of a tile, and only groups whose smallest score is below the limit are looked into.
    """

    def __init__(self, rounded: RoundedPoints, k: int) -> None:
        self.rounded = rounded
        self.k = k
        self.max_close = _MAX_CLOSE_GROUPS * max(2, k)
        device = rounded.right.device
        self.best = torch.full((k, rounded.n_padded), torch.inf, device=device)
        """Upper bounds of each point's k smallest scores, ascending."""
        self.n_close = torch.zeros(rounded.n_padded, dtype=torch.int64, device=device)
        """The number of groups below each point's limit; a point with more than ``max_close`` is
        abandoned."""
        self.parts = min(_GROUPS, 1 << (4 * k - 1).bit_length())
        """The number of parts of a tile's groups whose minima bound the k best: a power of two of
        at least 4 k, so that the k smallest are rarely in one part."""
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        """The candidates: point, other point and score, each (n_pairs,)."""

    def update(self, scores: Tensor, *, points: slice, others: slice) -> None:
        """Add the candidates among the scores of two slices of points, (others, points)."""
        if points.start >= points.stop:
            return
        if scores.stride(0) == 1:
            # the tile of the rows, transposed: reduced as it lies in memory, since torch takes some
            # two hundred times as long for the transposed view on a CPU
            minima = scores.T.unflatten(1, (-1, _GROUPS)).amin(1).T.contiguous()
        else:
            minima = scores.unflatten(0, (-1, _GROUPS)).amin(0)
        # the k smallest minima over parts of the groups are scores of k different pairs, and so
        # bound the k best from above
        part_minima = minima.unflatten(0, (-1, self.parts)).amin(0).float()
        best = (
            torch.cat([self.best[:, points], part_minima]).topk(self.k, dim=0, largest=False).values
        )
        self.best[:, points] = best
        limit = self.limit(points)
        # padding points have no candidates: all of their scores are huge
        limit[max(0, self.rounded.n - points.start) :] = -1
        close = minima <= limit
        n_close = self.n_close[points].add_(close.sum(0))
        # abandoned points are left out, or the pairs of a hopeless cloud would fill the memory
        group, point = (close & (n_close <= self.max_close)).nonzero().unbind(1)
        # the members of a group in the last dimension: copied as one piece, in a tenth of the time
        inside = scores.unflatten(0, (-1, _GROUPS)).permute(1, 2, 0)[group, point].T
        member, hit = (inside <= limit[point]).nonzero().unbind(1)
        other = group[hit] + _GROUPS * member
        self.pairs.append((point[hit] + points.start, other + others.start, inside[member, hit]))
        n_pairs = sum(len(first) for first, _, _ in self.pairs)
        if n_pairs > max(_MAX_PAIRS, 4 * self.k) * self.rounded.n:
            # the limits have become smaller since: drop the pairs that are above them by now
            self.pairs = [self.within()]

    def limit(self, points: slice) -> Tensor:
        """Return the score up to which a pair may be one of a point and its k nearest: finite, so
        that masked pairs exceed it.

        It is that of the largest distance that a pair with the k-th best score can have. With
        rounded points x', y', e_x = |x - x'|, and e_y <= r |y'|:

        - a score s has |s - |x' - y'|^2| <= g (|x'| + |y'|)^2 <= g (8 |x'|^2 + 2 |x' - y'|^2), and
          is rounded itself;
        - the distance d of the points themselves has |d - |x' - y'|| <= e_x + e_y, and |y'| <= |x'|
          + |x' - y'|.
        """
        rounded = self.rounded
        best = self.best[-1, points].double().clamp_min(0)
        between = (
            (best * rounded.output + rounded.margin[points]) / (1 - 2 * rounded.gamma)
        ).sqrt()
        farthest = (
            between + rounded.errors[points] + rounded.ratio * (rounded.norms[points] + between)
        )
        limit = rounded.max_score(farthest, points)
        return limit.clamp_max(torch.finfo(limit.dtype).max)

    def within(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the pairs found so far that are still below the limit, except those of abandoned
        points.
        """
        first, second, scores = (torch.cat(columns) for columns in zip(*self.pairs, strict=True))
        is_candidate = (scores <= self.limit(slice(None))[first]) & (second < self.rounded.n)
        is_candidate &= self.n_close[first] <= self.max_close
        # by numbers: indexing by a mask would wait for the device once for each of the three
        chosen = is_candidate.nonzero().flatten()
        return first[chosen], second[chosen], scores[chosen]
