"""Find the closest pairs of rows within a table or across two: exact, in bounded memory, however large the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from repdyn.capture.capture import no_progress
from repdyn.kernels.cloud import full_precision, product, row_chunks
from repdyn.studies.anatomy.geometry import RowPairs, pair_values

# rows of one tile of cosines: 64 MB in float32
_TILE = 4096
_ANY = -2.0  # below every cosine
# candidates within rounding of the k-th pair
_MAX_CANDIDATES = 1 << 17


class ClosestPairs(NamedTuple):
    """The result of a search through all pairs."""

    pairs: pd.DataFrame
    """Those with the largest cosines, largest first: first and second (row numbers), cosine, dot, distance."""
    nearest: Tensor
    """(n,) float32, on the CPU: each row's largest cosine with another; -1 if it has none."""


def closest_pairs(
    rows: Tensor, other: Tensor | None = None, *, k: int = 20, progress: Callable[[float], None] = no_progress
) -> ClosestPairs:
    """Find the ``k`` pairs of rows with the largest cosine (all if there are fewer), and each row's largest cosine.

    The search computes every pair, a tile of cosines at a time. Tiles are float32; pairs within twice their rounding
    error of the k-th one are measured again in float64, so the order is that of float64.

    Args:
        rows: (n, dim), any floating dtype, any device; rows that are zero have no cosine and are in no pair.
        other: (m, dim) for pairs across two tables; None for pairs of different rows within one.
        k: number of pairs.
        progress: called with the share that is done.

    Returns:
        Pairs of equal cosines in the order of the row numbers; if more than 131,072 pairs are equal up to rounding, as
        duplicates are, others would be as good as those returned.
    """
    with full_precision(rows.device):
        one, numbers = _directions(rows)
        two, others = (one, numbers) if other is None else _directions(other)
        candidates, nearest = _candidates(one, two, k, within=other is None, progress=progress)
    pairs = RowPairs(numbers[candidates[:, 0]], others[candidates[:, 1]], False)
    found = pd.DataFrame({"first": pairs.first.tolist(), "second": pairs.second.tolist()})
    values = pair_values(rows, pairs, other)
    found = found.assign(**{name: values[name] for name in ("cosine", "dot", "distance")})
    found = found.sort_values(["cosine", "first", "second"], ascending=[False, True, True], ignore_index=True)
    of_all = torch.full((len(rows),), -1.0)
    of_all[numbers.cpu()] = nearest.cpu()
    return ClosestPairs(found.head(k), of_all)


def _directions(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return nonzero rows scaled to length 1 in float32, and their row numbers."""
    parts, nonzero = [], []
    for chunk in row_chunks(rows):
        wide = chunk.double()
        # scaled first, so that squares neither overflow nor underflow
        wide = wide / wide.abs().amax(1, keepdim=True)
        lengths = wide.norm(dim=1, keepdim=True)
        nonzero.append(lengths[:, 0].isfinite())
        parts.append((wide / lengths)[nonzero[-1]].float())
    return torch.cat(parts), torch.cat(nonzero).nonzero()[:, 0]


def _candidates(
    one: Tensor, two: Tensor, k: int, *, within: bool, progress: Callable[[float], None]
) -> tuple[Tensor, Tensor]:
    """Return row numbers (n, 2) of all pairs that can be among the k closest, and each row's largest cosine."""
    # error bound of two dot products of unit vectors, including their rounding to float32
    slack = 2 * (one.shape[1] + 4) * 2.0**-24
    cosines, pairs = one.new_empty(0), torch.empty(0, 2, dtype=torch.long, device=one.device)
    nearest, lowest = torch.full_like(one[:, 0], -1.0), _ANY
    tiles = list(_tiles(len(one), len(two), within))
    for done, (row, column) in enumerate(tiles, start=1):
        tile = product(one[row : row + _TILE], two[column : column + _TILE])
        if within and row == column:
            tile.masked_fill_(torch.ones_like(tile, dtype=torch.bool).tril(), -torch.inf)
        highest = tile.amax(1)
        _raise_to(nearest[row : row + _TILE], highest)
        if within:
            _raise_to(nearest[column : column + _TILE], tile.amax(0))
        if lowest == _ANY:  # in the first tile, every pair would be a candidate
            lowest = _floor(tile.flatten(), k, slack)
        best = _at_least(lowest, tile, highest)
        cosines = torch.cat([cosines, tile[best[:, 0], best[:, 1]]])
        pairs = torch.cat([pairs, best + best.new_tensor([row, column])])
        lowest = _floor(cosines, k, slack)
        kept = cosines.topk(min(_MAX_CANDIDATES, int((cosines >= lowest).sum()))).indices
        cosines, pairs = cosines[kept], pairs[kept]
        progress(done / len(tiles))
    return pairs, nearest


def _raise_to(nearest: Tensor, found: Tensor) -> None:
    torch.maximum(nearest, found, out=nearest)


def _floor(cosines: Tensor, k: int, slack: float) -> float:
    """Return a bound below which no cosine can be among the k largest."""
    return max(_ANY, float(cosines.topk(k).values[-1]) - slack) if len(cosines) >= k else _ANY


def _at_least(lowest: float, tile: Tensor, highest: Tensor) -> Tensor:
    """Return places (n, 2) of values of at least ``lowest``; the ``highest`` of each row rules out most rows."""
    rows = (highest >= lowest).nonzero()[:, 0]
    row, column = (tile[rows] >= lowest).nonzero(as_tuple=True)
    return torch.stack([rows[row], column], dim=1)


def _tiles(n_rows: int, n_columns: int, within: bool) -> Iterator[tuple[int, int]]:
    for row in range(0, n_rows, _TILE):
        for column in range(row if within else 0, n_columns, _TILE):
            yield row, column
