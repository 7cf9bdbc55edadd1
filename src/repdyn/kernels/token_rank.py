"""Which rows of an embedding table lie nearest to a vector, by cosine: in float32 where its error leaves no doubt.

The table passes by in tiles. A float32 product of unit vectors gives a tile's cosines with a bound on their error. What
it decides is counted; only pairs within the bound are measured in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repdyn.kernels.cloud import full_precision, product
from repdyn.kernels.vocabulary import Vocabulary, unit_rows

# vectors compared with the table at a time
_VECTORS = 2048
# rows of the table at a time: with the cosines of all vectors they stay in the cache, or keep an accelerator busy
_ROWS = {"cpu": 512, "cuda": 2048}
# terms summed in float32 before the sum is added to others: the error grows with their number, not with dim
_SUMMED = 128
# a pair measured by itself costs as much as so many in a float64 product
_DEAR = 24
# candidates for the k nearest beyond k
_SPARE = 8
# coordinates of candidates in float64 at a time
_GATHERED = 1 << 22


def closer_rows(x: Tensor, cosines: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Count the rows of a vocabulary that have a larger cosine to each vector than the given one.

    Args:
        x: (n, dim) finite, none zero.
        cosines: (n,) float64.

    Returns:
        (n,) int64. Cosines that differ by less than 4 (dim + 8) 2^-53, which float64 cannot tell apart, count as
        equal: copies of a row tie, whatever their length. Rows of zeros are never closer.
    """
    with full_precision(x.device):
        limits = cosines + 4 * (x.shape[1] + 8) * 2.0**-53
        parts = zip(x.split(_VECTORS), limits.split(_VECTORS), strict=True)
        return torch.cat([_Cosines(vectors).count_above(limit, vocabulary) for vectors, limit in parts])


def nearest_rows(x: Tensor, vocabulary: Vocabulary, k: int) -> tuple[Tensor, Tensor]:
    """Return the rows of a vocabulary with the largest cosines to each vector.

    Args:
        x: (n, dim) finite, none zero, any floating dtype.
        k: how many, at most the rows that are not zero.

    Returns:
        Cosines (n, k) float64, descending, and the numbers of the rows (n, k) int64; equal cosines by number. Of
        several that tie with the last one, any may be left out.

    Raises:
        ValueError: more rows are asked for than there are.

    Example:
        >>> nearest_rows(torch.tensor([[3.0, 4.0]]), Vocabulary(torch.eye(2)), k=1)
        (tensor([[0.8000]], dtype=torch.float64), tensor([[1]]))
    """
    n_rows = int(vocabulary.norms.gt(0).sum())
    if not 1 <= k <= n_rows:
        raise ValueError(f"expected k from 1 to the {n_rows} rows that are not zero, got {k}")
    with full_precision(x.device):
        found = [_Cosines(vectors).largest(vocabulary, k) for vectors in x.split(_VECTORS)]
    cosines, rows = (torch.cat(parts) for parts in zip(*found, strict=True))
    return cosines, rows


class _Cosines:
    """Cosines between some vectors and the rows of a vocabulary, a tile at a time."""

    def __init__(self, x: Tensor) -> None:
        self.unit = unit_rows(x)
        self.parts = [part.contiguous() for part in self.unit.float().split(_SUMMED, 1)]
        self.n_rows = _ROWS["cpu" if x.device.type == "cpu" else "cuda"]
        # Both factors are rounded, products summed in any order, the sums added: Higham, Accuracy and Stability of
        # Numerical Algorithms, 2002, section 3.1. Accelerators may cut off where others round.
        roundoff = 2.0**-24 if x.device.type == "cpu" else 2.0**-23
        self.error = 1.02 * roundoff * (min(_SUMMED, x.shape[1]) + len(self.parts) + 4)

    def rounded(self, rows: Tensor) -> Tensor:
        """Return cosines with a tile of unit rows (m, dim) float64: (n, m) float32, off by ``error`` at most; NaN
        for a row of NaN."""
        columns = [part.contiguous() for part in rows.float().split(_SUMMED, 1)]
        scores = product(self.parts[0], columns[0])
        for left, right in zip(self.parts[1:], columns[1:], strict=True):
            scores += product(left, right)
        return scores

    def count_above(self, limits: Tensor, vocabulary: Vocabulary) -> Tensor:
        n_above = torch.zeros(len(self.unit), dtype=torch.int64, device=self.unit.device)
        surely, perhaps = ((limits + sign * self.error).float().unsqueeze(1) for sign in (1, -1))
        for _, rows in vocabulary.unit_tiles(self.n_rows, self.unit.device):
            scores = self.rounded(rows)
            # compared into floats, which are summed several times faster than bools
            flags = torch.empty_like(scores)
            above = torch.gt(scores, surely, out=flags).sum(1)
            n_above += above.long()
            open_to_doubt = torch.gt(scores, perhaps, out=flags).sum(1) > above
            if open_to_doubt.any():
                at = open_to_doubt.nonzero().flatten()
                n_above[at] += self._recounted(at, scores[at], rows, limits[at], surely[at], perhaps[at])
        return n_above

    def _recounted(
        self, at: Tensor, scores: Tensor, rows: Tensor, limits: Tensor, surely: Tensor, perhaps: Tensor
    ) -> Tensor:
        """Return how many more rows of a tile are above the limits of the vectors ``at`` than certainly are."""
        above = scores > surely
        vectors, columns = ((scores > perhaps) & ~above).nonzero().unbind(1)
        if len(vectors) * _DEAR > scores.numel():
            return (self.unit[at] @ rows.T > limits.unsqueeze(1)).sum(1) - above.sum(1)
        exact = torch.cat(
            [
                torch.linalg.vecdot(self.unit[at[some]], rows[others])
                for some, others in zip(vectors.split(self.n_rows), columns.split(self.n_rows), strict=True)
            ]
        )
        return vectors[exact > limits[vectors]].bincount(minlength=len(at))

    def largest(self, vocabulary: Vocabulary, k: int) -> tuple[Tensor, Tensor]:
        """Return the k largest and their rows, both (n, k): float32 proposes a few more, which are measured, and
        proven or redone."""
        n_kept = min(k + _SPARE, vocabulary.n_rows)
        scores, rows = self._candidates(vocabulary, n_kept)
        cosines = self._measured(vocabulary, rows)
        # by number first: the second sort is stable
        rows, by_number = rows.sort()
        cosines, order = cosines.gather(1, by_number).sort(descending=True, stable=True)
        cosines, rows = cosines[:, :k].clone(), rows.gather(1, order)[:, :k].clone()
        if n_kept < vocabulary.n_rows:
            doubtful = (cosines[:, -1] < scores[:, -1] + self.error).nonzero().flatten()
            for at in doubtful.split(32):
                tiles = vocabulary.unit_tiles(self.n_rows, self.unit.device)
                exact = torch.cat([self.unit[at] @ tile.T for _, tile in tiles], 1).nan_to_num_(-torch.inf)
                found, numbers = exact.sort(descending=True, stable=True)
                cosines[at], rows[at] = found[:, :k], numbers[:, :k]
        return cosines, rows

    def _candidates(self, vocabulary: Vocabulary, n_kept: int) -> tuple[Tensor, Tensor]:
        """Return the rows with the largest rounded cosines, (n, n_kept), descending."""
        best = self.parts[0].new_full((len(self.unit), n_kept), -torch.inf)
        rows = torch.zeros(best.shape, dtype=torch.int64, device=best.device)
        for start, tile in vocabulary.unit_tiles(self.n_rows, best.device):
            scores = self.rounded(tile).nan_to_num_(-torch.inf)
            at = (scores.amax(1) > best[:, -1]).nonzero().flatten()
            numbers = torch.arange(start, start + len(tile), device=best.device).expand(len(at), -1)
            best[at], places = torch.cat([best[at], scores[at]], 1).topk(n_kept)
            rows[at] = torch.cat([rows[at], numbers], 1).gather(1, places)
        return best, rows

    def _measured(self, vocabulary: Vocabulary, rows: Tensor) -> Tensor:
        at_a_time = max(1, _GATHERED // (rows.shape[1] * self.unit.shape[1]))
        parts = zip(self.unit.split(at_a_time), rows.split(at_a_time), strict=True)
        exact = [torch.linalg.vecdot(unit.unsqueeze(1), vocabulary.units(some).to(unit.device)) for unit, some in parts]
        return torch.cat(exact).nan_to_num_(-torch.inf)
