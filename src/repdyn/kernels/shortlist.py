"""Which points could be among the nearest of each: one approximate product, read once, with a rigorous margin.

Every point is rounded to bfloat16 where the device multiplies that fast, else to float32, with its squared norm in
extra columns, so that the product of two tiles of points is a tile of squared distances. Only tiles on or above the
diagonal are computed: each is read along its rows and along its columns. A point's k-th best score so far, widened by
a bound on every rounding on the way, is a limit that no nearer point's score can exceed. What stays below it is the
shortlist. Points of one group are not neighbours: multiplied next to each other, they are masked along the diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

from repdyn.kernels.cloud import Frame, product, row_chunks, sample, unit_scale

# rows and columns of a tile: large enough to multiply at full speed, small enough to be read again from the cache
_ROWS, _COLUMNS = 1024, 4096
# strided groups of a tile's points; a group whose minimum exceeds the limit is not looked into
_GROUPS = 128
# rows of a tile that are masked at once: few, so that the groups of one are not masked for all the others
_MASKED = 128
# groups below the limit, for each neighbour, beyond which a point is given up: its margin is too wide for its distances
_MAX_CLOSE_GROUPS = 48
# pairs kept for each point before those that have fallen behind the limit are dropped
_KEPT = 64
# the score of the points that fill up the last group
_FAR = 1e30
# a coordinate this many times the mean square is kept in two parts: rounding it would widen the margin of all the rest
_WIDE = 16


@dataclass(frozen=True)
class Shortlist:
    """Pairs of points among which are the k nearest neighbours of each, by first point and by score."""

    first: Tensor
    second: Tensor
    """int64, shape (n_pairs,)"""
    scores: Tensor
    """Squared distances as far as the product tells, in the units of the frame."""
    complete: Tensor
    """bool, shape (n,): the pairs of this point hold all its k nearest; others are left to more precise means."""
    rounded: Rounded

    def within(self, reach: Tensor) -> Tensor:
        """Return which pairs can be within ``reach``, shape (n,), of their point, in the unit of ``points``."""
        limit = self.rounded.largest_score(reach * self.rounded.scale, slice(len(reach)))
        return self.scores <= limit[self.first]


def shortlist(points: Tensor, k: int, groups: Tensor | None = None) -> Shortlist:
    """Find out which points could be among the k nearest of each.

    Args:
        points: finite points, shape (n, dim), any floating dtype, any origin.
        k: number of neighbours, 1 to 64.
        groups: group of each point, shape (n,), integers: pairs of points of one group are left out.
    """
    blocks = None if groups is None else _Blocks(groups)
    rounded = Rounded(points, multiplied_fast(points.device), None if blocks is None else blocks.order)
    lists = _Lists(rounded, k)
    for start in range(0, rounded.n_padded, _ROWS):
        rows = slice(start, min(start + _ROWS, rounded.n_padded))
        left = rounded.left(rows)
        for begin in range(start, rounded.n_padded, _COLUMNS):
            columns = slice(begin, min(begin + _COLUMNS, rounded.n_padded))
            scores = product(left, rounded.right[columns])
            if begin == start:  # no point is its own neighbour
                scores.fill_diagonal_(torch.inf)
            if blocks is not None:
                blocks.mask(scores, rows, columns)
            lists.read(scores, 1, rows, columns)
            beyond = max(rows.stop, begin)
            lists.read(scores[:, beyond - begin :], 0, slice(beyond, columns.stop), rows)
    return lists.finalize()


def multiplied_fast(device: torch.device) -> torch.dtype:
    """The floating dtype whose products are fastest there; bfloat16 is emulated, slowly, where there is no support."""
    if device.type == "cuda":
        fast = torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        # older versions of torch do not tell
        has = torch.cpu.get_capabilities() if device.type == "cpu" and hasattr(torch.cpu, "get_capabilities") else {}
        fast = any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
    return torch.bfloat16 if fast else torch.float32


class Rounded:
    """Points as the product takes them, and how far from the truth its scores can be.

    A row of ``right`` is (x, high, low, |x|^2 in parts, ones), of ``left`` (-2 x, -2 low, -2 high, ones, |x|^2 in
    parts): their product is |x|^2 + |y|^2 - 2 x.y. ``high`` and ``low`` are the two parts of the wide coordinates.
    The rows are the points in an order, by default their own.
    """

    def __init__(self, points: Tensor, dtype: torch.dtype, order: Tensor | None = None) -> None:
        n, dim = points.shape
        halved = dtype == torch.bfloat16
        frame = _frame_of_most(points)
        self.scale = frame.scale
        wide = _wide_coordinates(frame.place(sample(points))) if halved else []
        parts = 3 if halved else 1  # bfloat16 has 8 of float32's 24 digits
        self.widths = [dim, len(wide), len(wide), parts, parts]
        self.widths.append(-sum(self.widths) % 16)
        self.order = order
        self.n, self.n_padded = n, n + -n % _GROUPS
        self.right = torch.zeros(self.n_padded, sum(self.widths), dtype=dtype, device=points.device)
        self.norms = torch.zeros(self.n_padded, dtype=torch.float64, device=points.device)
        self.errors = torch.zeros_like(self.norms)
        for rows in torch.arange(n).split(len(row_chunks(points)[0])):
            self._write(slice(int(rows[0]), int(rows[-1]) + 1), points, frame, wide)
        _, _, _, squares, ones, _ = self.right[n:].split(self.widths, 1)
        squares[:, :1].fill_(_FAR)
        ones.fill_(1)
        self.ratio = (self.errors / self.norms).nan_to_num(0).max()
        self._bound_rounding(sum(self.widths), halved)

    def _write(self, rows: slice, points: Tensor, frame: Frame, wide: list[int]) -> None:
        x, high, low, squares, ones, _ = self.right[rows].split(self.widths, 1)
        exact = frame.place(points[rows] if self.order is None else embedding(self.order[rows], points)).float()
        x.copy_(exact)
        lost = exact - x
        high.copy_(x[:, wide])
        low.copy_(lost[:, wide])
        lost[:, wide] -= low
        norm = torch.linalg.vector_norm(exact - lost, dim=1)
        self.norms[rows] = norm
        # a thousandth covers the rounding of this norm, the last term that of the points to float32
        self.errors[rows] = torch.linalg.vector_norm(lost, dim=1) * (1 + 1e-3) + norm * 2**-23
        _in_parts(self.norms[rows].square(), squares)
        ones.fill_(1)

    def put_in_order(self) -> Tensor:
        """Have what is known of each row stand where its point does; returns where it stood."""
        back = torch.arange(self.n_padded, device=self.norms.device)
        back[self.order] = back[: self.n].clone()
        self.norms, self.errors = self.norms[back], self.errors[back]
        return back[: self.n]

    def left(self, rows: slice) -> Tensor:
        """Rows of the left factor, made when they are needed: a second copy of all would double the memory."""
        x, high, low, squares, ones, filler = self.right[rows].split(self.widths, 1)
        return torch.cat([-2 * x, -2 * low, -2 * high, ones, squares, filler], 1)

    def farthest(self, scores: Tensor, rows: slice) -> Tensor:
        """The largest distance, float64, that a pair with the given score can have.

        With points x', y' as they are multiplied, e_x = |x - x'|, and e_y <= r |y'|:

        - a score s has |s - |x' - y'|^2| <= g (|x'| + |y'|)^2 <= g (8 |x'|^2 + 2 |x' - y'|^2), and was rounded itself;
        - the distance d of the points themselves has |d - |x' - y'|| <= e_x + e_y, and |y'| <= |x'| + |x' - y'|.
        """
        between = ((scores.double().clamp_min(0) * self.output + self._margin(rows)) / (1 - 2 * self.gamma)).sqrt()
        return between + self.errors[rows] + self.ratio * (self.norms[rows] + between)

    def largest_score(self, distance: Tensor, rows: slice) -> Tensor:
        """The largest score, float32, that a pair with at most the given distance can have; the reverse reasoning."""
        # a ratio of 1 or more, as points below the smallest numbers have, bounds nothing: then every pair is within
        between = (distance + self.errors[rows] + self.ratio * self.norms[rows]) / (1 - self.ratio).clamp_min(1e-300)
        score = (between.square() * (1 + 2 * self.gamma) + self._margin(rows)) * self.output
        return score.float() * (1 + 2**-22)

    def _margin(self, rows: slice) -> Tensor:
        return 8 * self.gamma * self.norms[rows].square() + self.tiny

    def _bound_rounding(self, terms: int, halved: bool) -> None:
        # A sum of so many terms in any order: Higham, Accuracy and Stability of Numerical Algorithms, 2002, section
        # 3.1. Accelerators may cut off where others round. Squared norms are such sums too, and cut off themselves;
        # the product of two low parts is left out.
        roundoff = 2**-23 if self.right.is_cuda else 2**-24
        self.gamma = 1.02 * terms * (roundoff + 2**-24) + 2**-21 + (2**-17 if halved else 0)
        # a score in bfloat16 is off by half of its last digit, the eighth
        self.output = 1 + (1.01 * 2**-8 if halved else 2**-22)
        self.tiny = 16 * terms * torch.finfo(torch.float32).tiny


class _Blocks:
    """An order in which points stand next to others of their group."""

    def __init__(self, groups: Tensor) -> None:
        self.groups, self.order = groups.sort(stable=True)
        _, group, sizes = self.groups.unique_consecutive(return_inverse=True, return_counts=True)
        ends = sizes.cumsum(0)
        self.begins, self.ends = torch.stack([(ends - sizes)[group], ends[group]]).tolist()

    def mask(self, scores: Tensor, rows: slice, columns: slice) -> None:
        """Write infinity where a row and a column of a tile are of one group."""
        last = min(rows.stop, len(self.groups))
        for start in range(rows.start, last, _MASKED):
            stop = min(start + _MASKED, last)
            begin, end = max(self.begins[start], columns.start), min(self.ends[stop - 1], columns.stop)
            if begin < end:
                block = scores[start - rows.start : stop - rows.start, begin - columns.start : end - columns.start]
                block.masked_fill_(self.groups[start:stop, None] == self.groups[begin:end], torch.inf)


class _Lists:
    """The shortlist of each point, and the k best scores by which it is limited."""

    def __init__(self, rounded: Rounded, k: int) -> None:
        self.rounded, self.k, self.crowd = rounded, k, _MAX_CLOSE_GROUPS * max(2, k)
        device = rounded.right.device
        self.best = torch.full((k, rounded.n_padded), torch.inf, device=device)
        self.n_close = torch.zeros(rounded.n_padded, dtype=torch.int64, device=device)
        self.parts = min(_GROUPS, 1 << (4 * k - 1).bit_length())
        self.found: list[tuple[Tensor, Tensor, Tensor]] = []

    def read(self, scores: Tensor, along: int, points: slice, others: slice) -> None:
        """Take in the scores for ``points`` of ``others``, which stand along a dimension of ``scores``."""
        if points.start >= points.stop:
            return
        minima = scores.unflatten(along, (-1, _GROUPS)).amin(along)
        if along == 1:
            scores, minima = scores.T, minima.T
        # parts of the groups bound the k best from above: exact but for two of them in one part
        few = minima.unflatten(0, (-1, self.parts)).amin(0).float()
        best = torch.cat([self.best[:, points], few]).topk(self.k, dim=0, largest=False).values
        self.best[:, points] = best
        limit = self.limit(points)
        limit[max(0, self.rounded.n - points.start) :] = -1
        close = minima <= limit
        n_close = self.n_close[points].add_(close.sum(0))
        group, point = (close & (n_close <= self.crowd)).nonzero().unbind(1)
        other = group + torch.arange(0, len(scores), _GROUPS, device=scores.device).unsqueeze(1)
        inside = scores[other, point]
        member, hit = (inside <= limit[point]).nonzero().unbind(1)
        self.found.append((point[hit] + points.start, other[member, hit] + others.start, inside[member, hit]))
        if sum(len(first) for first, _, _ in self.found) > max(_KEPT, 4 * self.k) * self.rounded.n:
            self.found = [self._within()]

    def limit(self, points: slice) -> Tensor:
        """The score up to which a point may be among the k nearest: finite, so that masked pairs lie beyond it."""
        limit = self.rounded.largest_score(self.rounded.farthest(self.best[-1, points], points), points)
        return limit.clamp_max(torch.finfo(limit.dtype).max)

    def finalize(self) -> Shortlist:
        n = self.rounded.n
        first, second, scores = self._within()
        complete = (self.n_close[:n] <= self.crowd) & (first.bincount(minlength=n) >= self.k)
        if self.rounded.order is not None:
            first, second = self.rounded.order[first], self.rounded.order[second]
            complete = complete[self.rounded.put_in_order()]
        scores, order = scores.sort()
        first, by_first = first[order].sort(stable=True)
        order = order[by_first]
        return Shortlist(first, second[order], scores[by_first].float(), complete, self.rounded)

    def _within(self) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs found so far that are still below the limit, of points not given up."""
        first, second, scores = (torch.cat(parts) for parts in zip(*self.found, strict=True))
        kept = (scores <= self.limit(slice(None))[first]) & (second < self.rounded.n)
        kept &= self.n_close[first] <= self.crowd
        return first[kept], second[kept], scores[kept]


def _frame_of_most(points: Tensor) -> Frame:
    """Around the median: a few huge points, as attention sinks are, would carry the mean away from all the others."""
    scale = unit_scale(points)
    return Frame(scale, sample(points).double().mul(scale).median(0).values)


def _wide_coordinates(sample: Tensor) -> list[int]:
    shares = sample.square()
    shares /= shares.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    shares = shares.mean(0)
    return (shares > _WIDE * shares.mean()).nonzero().flatten().tolist()


def _in_parts(values: Tensor, parts: Tensor) -> None:
    """Write each value as the sum of a row of ``parts``, as near as their dtype allows."""
    for part in parts.unbind(1):
        part.copy_(values)
        values = values - part
