"""Measure the rows of a table: norms, pairs, relation to their mean, spectrum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, full_precision, row_chunks
from repdyn.kernels.spectrum import spectrum_of

MAX_PAIRS = 1_000_000
"""Pairs of rows that are sampled; if a table has no more, all of them are measured."""

SHARES = (0.5, 0.9, 0.95, 0.99)

_QUANTILES = {
    **{"min": 0.0, "q01": 0.01, "q05": 0.05, "q25": 0.25, "median": 0.5},
    **{"q75": 0.75, "q95": 0.95, "q99": 0.99, "max": 1.0},
}
_PAIRS_AT_ONCE = 1 << 22


class RowPairs(NamedTuple):
    """Pairs of different rows."""

    first: Tensor
    """(n_pairs,) int64"""
    second: Tensor
    is_complete: bool
    """Whether these are all unordered pairs, rather than a sample."""


def sample_pairs(n_rows: int, max_pairs: int = MAX_PAIRS, seed: int = 0) -> RowPairs:
    """Return all unordered pairs of rows, or ``max_pairs`` of them drawn with replacement if there are more.

    Raises:
        ValueError: fewer than two rows.
    """
    if n_rows < 2:
        raise ValueError(f"expected at least two rows to pair, got {n_rows}")
    if n_rows * (n_rows - 1) // 2 <= max_pairs:
        first, second = torch.triu_indices(n_rows, n_rows, offset=1)
        return RowPairs(first, second, True)
    # numpy keeps RandomState's stream fixed: a seed draws the same pairs in every version
    random = np.random.RandomState(seed)
    one, other = random.randint(n_rows, size=max_pairs), random.randint(n_rows - 1, size=max_pairs)
    return RowPairs(torch.from_numpy(one), torch.from_numpy(other + (other >= one)), False)


def norms(rows: Tensor) -> np.ndarray:
    """Return Euclidean norms of the rows (n, dim), (n,) float64."""
    with full_precision(rows.device):
        return torch.cat([chunk.double().norm(dim=1) for chunk in row_chunks(rows)]).cpu().numpy()


def pair_values(rows: Tensor, pairs: RowPairs, other: Tensor | None = None) -> dict[str, np.ndarray]:
    """Return ``distance`` |x - y|, ``dot`` x . y and ``cosine`` x . y / (|x| |y|) of pairs, each (n_pairs,) float64.

    Args:
        rows: (n, dim), any floating dtype, any device.
        pairs: numbers of rows.
        other: (m, dim) table of the second rows; None for ``rows``.

    Returns:
        The cosine is NaN if a row is zero.
    """
    other = rows if other is None else other
    found: dict[str, list[Tensor]] = {"distance": [], "dot": [], "cosine": []}
    at_once = max(1, _PAIRS_AT_ONCE // rows.shape[1])
    with full_precision(rows.device):
        for first, second in zip(pairs.first.split(at_once), pairs.second.split(at_once), strict=True):
            x, y = rows[first.to(rows.device)].double(), other[second.to(rows.device)].double()
            dot = (x * y).sum(1)
            found["distance"].append((x - y).norm(dim=1))
            found["dot"].append(dot)
            found["cosine"].append((dot / (x.norm(dim=1) * y.norm(dim=1))).clamp(-1, 1))
    return {name: torch.cat(parts).cpu().numpy() for name, parts in found.items()}


def cosine_matrix(rows: Tensor | np.ndarray) -> np.ndarray:
    """Return cosines of all pairs of rows (n, dim), (n, n) float64; NaN for a row that is zero."""
    x = torch.as_tensor(rows).detach().cpu().double().numpy()
    with np.errstate(invalid="ignore"):
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return (unit @ unit.T).clip(-1, 1)


def describe(values: np.ndarray) -> dict[str, float]:
    """Return number, mean, standard deviation (n - 1) and quantiles of the values that are not NaN."""
    values = values[~np.isnan(values)]
    if not len(values):
        return {"n": 0, "mean": math.nan, "std": math.nan, **dict.fromkeys(_QUANTILES, math.nan)}
    quantiles = np.quantile(values, list(_QUANTILES.values()))
    std = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    of_quantiles = dict(zip(_QUANTILES, map(float, quantiles), strict=True))
    return {"n": len(values), "mean": float(values.mean()), "std": std, **of_quantiles}


class MeanRelation(NamedTuple):
    """The rows x of a table in relation to their mean m."""

    norm: float
    """|m|"""
    share: float
    """|m|^2 over the mean of |x|^2, in [0, 1]: the part of the rows' squared norm that they have in common."""
    cosines: np.ndarray
    """(n,) of each row with m; NaN if either is zero."""


def mean_relation(rows: Tensor) -> MeanRelation:
    """Compute the mean of the rows (n, dim), and each row's cosine with it."""
    with full_precision(rows.device):
        total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
        for chunk in row_chunks(rows):
            total += chunk.double().sum(0)
        mean, lengths = total / len(rows), norms(rows)
        length = float(mean.norm())
        dots = torch.cat([chunk.double() @ mean for chunk in row_chunks(rows)]).cpu().numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = np.where(lengths * length > 0, dots / (lengths * length), math.nan)
    squares = float(np.square(lengths).mean())
    return MeanRelation(length, length**2 / squares if squares else math.nan, cosines.clip(-1, 1))


def explained_variance(rows: Tensor) -> np.ndarray:
    """Return the cumulative share of variance that the first principal components explain; ends with 1.

    Args:
        rows: (n, dim), at least 3 different ones.

    Raises:
        repdyn.kernels.Undefined: fewer than 3 different rows, NaN or inf.
    """
    variances = Cloud(rows).once(spectrum_of).cpu().numpy()
    return np.cumsum(variances) / variances.sum()


def components_for(cumulative: np.ndarray, shares: Iterable[float] = SHARES) -> dict[float, int]:
    """Return how many components reach each share of the variance.

    >>> components_for(np.array([0.5, 0.8, 0.96, 1.0]))
    {0.5: 1, 0.9: 3, 0.95: 3, 0.99: 4}
    """
    # equal up to rounding counts as reached
    return {share: int(np.searchsorted(cumulative, share - 1e-12) + 1) for share in shares}
