"""Exact search for the rows of an embedding table with the largest cosines to a vector.

The table is processed in tiles. A float32 product of unit vectors gives a tile's cosines with a bound on their error;
only pairs within the bound are computed in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repdyn.kernels.cloud import full_precision, product
from repdyn.kernels.vocabulary import Vocabulary, unit_rows

# vectors compared with the table at a time
_VECTOR_CHUNK = 2048
# rows of the table at a time: their cosines with all vectors fit the cache of a CPU, or keep an accelerator busy
_ROWS = {"cpu": 512, "cuda": 2048}
# terms summed in float32 before the sum is added to others: the error grows with their number, not with dim
_SUMMED = 128
# cost of a single pair in float64, relative to a pair in a float64 product
_PAIR_COST = 24
# candidates for the k nearest beyond k
_N_EXTRA = 8
# coordinates of candidates in float64 at a time
_CHUNK = 1 << 22


def closer_rows(x: Tensor, cosines: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Count the rows of a vocabulary that have a larger cosine to each vector than the given one.

    Args:
        x: (n, dim) finite, none zero.
        cosines: (n,) float64.

    Returns:
        (n,) int64. Cosines that differ by less than 4 (dim + 8) 2^-53, the accuracy of float64, count as equal:
        copies of a row tie, whatever their length. Rows of zeros are never closer.
    """
    with full_precision(x.device):
        limits = cosines + 4 * (x.shape[1] + 8) * 2.0**-53
        parts = zip(x.split(_VECTOR_CHUNK), limits.split(_VECTOR_CHUNK), strict=True)
        return torch.cat([_Cosines(vectors).count_above(limit, vocabulary) for vectors, limit in parts])


def nearest_rows(x: Tensor, vocabulary: Vocabulary, k: int) -> tuple[Tensor, Tensor]:
    """Return the rows of a vocabulary with the largest cosines to each vector.

    Args:
        x: (n, dim) finite, none zero, any floating dtype.
        k: number of rows, at most that of the rows that are not zero.

    Returns:
        Cosines (n, k) float64, descending, and the indices of the rows (n, k) int64; equal cosines by index.
        Of several that tie with the last one, any may be left out.

    Raises:
        ValueError: k is out of range.

    Example:
        >>> nearest_rows(torch.tensor([[3.0, 4.0]]), Vocabulary(torch.eye(2)), k=1)
        (tensor([[0.8000]], dtype=torch.float64), tensor([[1]]))
    """
    n_rows = int(vocabulary.norms.gt(0).sum())
    if not 1 <= k <= n_rows:
        raise ValueError(f"expected k from 1 to the {n_rows} rows that are not zero, got {k}")
    with full_precision(x.device):
        found = [_Cosines(vectors).top_k(vocabulary, k) for vectors in x.split(_VECTOR_CHUNK)]
    cosines, rows = (torch.cat(parts) for parts in zip(*found, strict=True))
    return cosines, rows


class _Cosines:
    """Cosines between some vectors and the rows of a vocabulary, a tile at a time."""

    def __init__(self, x: Tensor) -> None:
        self.unit = unit_rows(x)
        self.parts = [part.contiguous() for part in self.unit.float().split(_SUMMED, 1)]
        self.n_rows = _ROWS["cpu" if x.device.type == "cpu" else "cuda"]
        # Both factors are rounded, products summed in any order, the sums added: Higham, Accuracy and Stability of
        # Numerical Algorithms, 2002, section 3.1. Accelerators may truncate instead of rounding.
        roundoff = 2.0**-24 if x.device.type == "cpu" else 2.0**-23
        self.error = 1.02 * roundoff * (min(_SUMMED, x.shape[1]) + len(self.parts) + 4)

    def rounded(self, rows: Tensor) -> Tensor:
        """Compute the cosines with a tile of unit rows (m, dim) float64.

        Returns:
            (n, m) float32, with an error of at most ``error``; NaN for a row of NaN.
        """
        columns = [part.contiguous() for part in rows.float().split(_SUMMED, 1)]
        scores = product(self.parts[0], columns[0])
        for left, right in zip(self.parts[1:], columns[1:], strict=True):
            scores += product(left, right)
        return scores

    def count_above(self, limits: Tensor, vocabulary: Vocabulary) -> Tensor:
        """Count the rows of a vocabulary whose cosine to each vector exceeds its limit, (n,) int64."""
        n_above = torch.zeros(len(self.unit), dtype=torch.int64, device=self.unit.device)
        upper, lower = ((limits + sign * self.error).float().unsqueeze(1) for sign in (1, -1))
        for _, rows in vocabulary.unit_tiles(self.n_rows, self.unit.device):
            scores = self.rounded(rows)
            # compared into floats, which are summed several times faster than bools
            flags = torch.empty_like(scores)
            above = torch.gt(scores, upper, out=flags).sum(1)
            n_above += above.long()
            is_uncertain = torch.gt(scores, lower, out=flags).sum(1) > above
            if is_uncertain.any():
                index = is_uncertain.nonzero().flatten()
                n_above[index] += self._count_uncertain(
                    index, scores[index], rows, limits[index], upper[index], lower[index]
                )
        return n_above

    def _count_uncertain(
        self, index: Tensor, scores: Tensor, rows: Tensor, limits: Tensor, upper: Tensor, lower: Tensor
    ) -> Tensor:
        """Count the rows of a tile between the bounds whose exact cosine exceeds the limit, for some vectors."""
        above = scores > upper
        vectors, columns = ((scores > lower) & ~above).nonzero().unbind(1)
        if len(vectors) * _PAIR_COST > scores.numel():
            return (self.unit[index] @ rows.T > limits.unsqueeze(1)).sum(1) - above.sum(1)
        exact = torch.cat(
            [
                torch.linalg.vecdot(self.unit[index[some]], rows[others])
                for some, others in zip(vectors.split(self.n_rows), columns.split(self.n_rows), strict=True)
            ]
        )
        return vectors[exact > limits[vectors]].bincount(minlength=len(index))

    def top_k(self, vocabulary: Vocabulary, k: int) -> tuple[Tensor, Tensor]:
        """Return the k largest cosines and their rows, both (n, k).

        The candidates are found in float32 and computed in float64; vectors for which they are not proven to be
        complete are searched in float64.
        """
        n_candidates = min(k + _N_EXTRA, vocabulary.n_rows)
        scores, rows = self._candidates(vocabulary, n_candidates)
        cosines = self._exact(vocabulary, rows)
        # by index first: the second sort is stable
        rows, by_index = rows.sort()
        cosines, order = cosines.gather(1, by_index).sort(descending=True, stable=True)
        cosines, rows = cosines[:, :k].clone(), rows.gather(1, order)[:, :k].clone()
        if n_candidates < vocabulary.n_rows:
            uncertain = (cosines[:, -1] < scores[:, -1] + self.error).nonzero().flatten()
            for index in uncertain.split(32):
                tiles = vocabulary.unit_tiles(self.n_rows, self.unit.device)
                exact = torch.cat([self.unit[index] @ tile.T for _, tile in tiles], 1).nan_to_num_(-torch.inf)
                values, columns = exact.sort(descending=True, stable=True)
                cosines[index], rows[index] = values[:, :k], columns[:, :k]
        return cosines, rows

    def _candidates(self, vocabulary: Vocabulary, n_candidates: int) -> tuple[Tensor, Tensor]:
        """Return the rows with the largest rounded cosines, (n, n_candidates), descending."""
        best = self.parts[0].new_full((len(self.unit), n_candidates), -torch.inf)
        rows = torch.zeros(best.shape, dtype=torch.int64, device=best.device)
        for start, tile in vocabulary.unit_tiles(self.n_rows, best.device):
            scores = self.rounded(tile).nan_to_num_(-torch.inf)
            index = (scores.amax(1) > best[:, -1]).nonzero().flatten()
            numbers = torch.arange(start, start + len(tile), device=best.device).expand(len(index), -1)
            best[index], order = torch.cat([best[index], scores[index]], 1).topk(n_candidates)
            rows[index] = torch.cat([rows[index], numbers], 1).gather(1, order)
        return best, rows

    def _exact(self, vocabulary: Vocabulary, rows: Tensor) -> Tensor:
        """Return the cosines with the given rows (n, m) in float64, minus infinity for rows of zeros."""
        at_a_time = max(1, _CHUNK // (rows.shape[1] * self.unit.shape[1]))
        parts = zip(self.unit.split(at_a_time), rows.split(at_a_time), strict=True)
        exact = [torch.linalg.vecdot(unit.unsqueeze(1), vocabulary.units(some).to(unit.device)) for unit, some in parts]
        return torch.cat(exact).nan_to_num_(-torch.inf)
