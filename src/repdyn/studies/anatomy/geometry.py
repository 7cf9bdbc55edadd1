"""How the rows of a table lie: lengths, pairs, their mean, their spectrum. Arithmetic alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, full_precision, row_chunks
from repdyn.kernels.spectrum import spectrum_of

MAX_PAIRS = 1_000_000
"""Pairs that are looked at: all of them where there are no more."""

SHARES = (0.5, 0.9, 0.95, 0.99)

_QUANTILES = {
    **{"min": 0.0, "q01": 0.01, "q05": 0.05, "q25": 0.25, "median": 0.5},
    **{"q75": 0.75, "q95": 0.95, "q99": 0.99, "max": 1.0},
}
_PAIRS_AT_ONCE = 1 << 22


class Pairs(NamedTuple):
    """Pairs of different rows."""

    first: Tensor
    """(n_pairs,) int64"""
    second: Tensor
    all_of_them: bool
    """Each unordered pair once, or a sample."""


def choose_pairs(n_rows: int, most: int = MAX_PAIRS, seed: int = 0) -> Pairs:
    """All unordered pairs of rows where there are at most ``most``, else ``most`` of them drawn with replacement.

    Raises:
        ValueError: fewer than two rows.
    """
    if n_rows < 2:
        raise ValueError(f"expected at least two rows to pair, got {n_rows}")
    if n_rows * (n_rows - 1) // 2 <= most:
        first, second = torch.triu_indices(n_rows, n_rows, offset=1)
        return Pairs(first, second, True)
    # RandomState's stream is frozen by numpy's policy: the same seed draws the same pairs anywhere
    random = np.random.RandomState(seed)
    one, other = random.randint(n_rows, size=most), random.randint(n_rows - 1, size=most)
    return Pairs(torch.from_numpy(one), torch.from_numpy(other + (other >= one)), False)


def norms(rows: Tensor) -> np.ndarray:
    """Euclidean lengths of the rows (n, dim), (n,) float64."""
    with full_precision(rows.device):
        return torch.cat([chunk.double().norm(dim=1) for chunk in row_chunks(rows)]).cpu().numpy()


def pair_values(rows: Tensor, pairs: Pairs, other: Tensor | None = None) -> dict[str, np.ndarray]:
    """``distance`` |x - y|, ``dot`` x . y and ``cosine`` x . y / (|x| |y|) of the given pairs, each (n_pairs,) float64.

    Args:
        rows: (n, dim), any floating dtype, any device.
        pairs: numbers of rows.
        other: (m, dim) that the second ones are rows of; None for ``rows``.

    Returns:
        A cosine is NaN where a row is zero.
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


def summary(values: np.ndarray) -> dict[str, float]:
    """Number, mean, standard deviation (n - 1) and quantiles of what is not NaN."""
    there = values[~np.isnan(values)]
    if not len(there):
        return {"n": 0, "mean": math.nan, "std": math.nan, **dict.fromkeys(_QUANTILES, math.nan)}
    quantiles = np.quantile(there, list(_QUANTILES.values()))
    std = float(there.std(ddof=1)) if len(there) > 1 else math.nan
    return {
        "n": len(there),
        "mean": float(there.mean()),
        "std": std,
        **dict(zip(_QUANTILES, map(float, quantiles), strict=True)),
    }


@dataclass(frozen=True, eq=False)
class MeanRelation:
    """How the rows x of a table stand to their mean m."""

    norm: float
    """|m|"""
    share: float
    """|m|^2 over the mean of |x|^2, in [0, 1]: how much of the rows' squared length they have in common."""
    cosines: np.ndarray
    """(n,) of each row with m; NaN where either is zero."""


def mean_relation(rows: Tensor) -> MeanRelation:
    """The mean of the rows (n, dim), and each row's cosine with it."""
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


def explained(rows: Tensor) -> np.ndarray:
    """Cumulative share of variance that the first principal components explain, from the first to all; ends with 1.

    Args:
        rows: (n, dim), at least 3 different ones.

    Raises:
        repdyn.kernels.Undefined: fewer than 3 different rows, NaN or inf.
    """
    variances = Cloud(rows).once(spectrum_of).cpu().numpy()
    return np.cumsum(variances) / variances.sum()


def components_for(cumulative: np.ndarray, shares: Iterable[float] = SHARES) -> dict[float, int]:
    """How many components it takes to reach each share of the variance.

    >>> components_for(np.array([0.5, 0.8, 0.96, 1.0]))
    {0.5: 1, 0.9: 3, 0.95: 3, 0.99: 4}
    """
    # what sums to a share but for rounding reaches it
    return {share: int(np.searchsorted(cumulative, share - 1e-12) + 1) for share in shares}
