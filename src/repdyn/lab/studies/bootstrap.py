"""Means over the tokens of a text with 95% intervals of a bootstrap over its sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class SequenceSums:
    """Values of tokens, such as their cosines at each layer, summed over the tokens of each
    sequence.
    """

    sums: np.ndarray
    """(n_sequences, m)."""
    counts: np.ndarray
    """(n_sequences,) tokens in each sum; 0 for a sequence without any."""

    @classmethod
    def of(cls, values: np.ndarray, sequences: np.ndarray, n_sequences: int) -> SequenceSums:
        """Sum values of tokens, (m, n), over their sequences, (n,) numbers from 0."""
        sums = [np.bincount(sequences, of_tokens, n_sequences) for of_tokens in values]
        return cls(np.stack(sums, axis=1), np.bincount(sequences, minlength=n_sequences))

    @property
    def n_tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def over_tokens(self) -> np.ndarray:
        """Return (m,): mean over all tokens, so that long sequences weigh more; NaN without a
        token.
        """
        # a mean over nothing is no number, not an error: classes of tokens may be empty in a text
        return self.sums.sum(0) / (self.n_tokens or np.nan)

    @property
    def means(self) -> np.ndarray:
        """Return (n_sequences, m): mean over the tokens of each sequence; NaN for a sequence
        without any.
        """
        with np.errstate(invalid="ignore"):
            return self.sums / self.counts[:, None]


class Estimate(NamedTuple):
    """Means over tokens, and the same in each resample of the sequences."""

    values: np.ndarray
    """(m,)"""
    draws: np.ndarray
    """(n_resamples, m)"""

    def map(self, function: Callable[..., np.ndarray], *others: Estimate) -> Estimate:
        """Apply a function of the last axis to the values and to each resample, with those of
        others that share it.
        """
        return Estimate(*(function(*parts) for parts in zip(self, *others, strict=True)))

    @property
    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the bounds of the middle 95% of the resamples, (m,) each; NaN are ignored."""
        low, high = np.nanquantile(self.draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        return low, high

    def columns(self, name: str, prefix: str | None = None) -> dict[str, np.ndarray]:
        """Return values and interval as columns NAME, NAME_low and NAME_high, or low and high with
        another prefix.
        """
        low, high = self.interval
        prefix = f"{name}_" if prefix is None else prefix
        return {name: self.values, f"{prefix}low": low, f"{prefix}high": high}


def bootstrap(samples: Sequence[SequenceSums], n_resamples: int, seed: int = 0) -> list[Estimate]:
    """Estimate means over tokens by a bootstrap over sequences.

    Each resample draws as many sequences as there are, with replacement, and takes the ratio of the
    sums to the number of tokens. Samples of the same sequences (two checkpoints, two classes of
    tokens) share the draws, so that their differences are paired.

    Returns:
        One for each sample; NaN in a resample without a single token.

    Source: Efron 1979 (Ann. Statist. 7:1); percentile intervals, clustered by sequence.
    """
    n = len(samples[0].counts)
    if n < 2 or n_resamples < 1:
        raise ValueError(
            f"expected at least 2 sequences and 1 resample, got {n} and {n_resamples}; take more "
            "text"
        )
    # how often each sequence is drawn: one product gives the sums of all resamples
    weights = (
        np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), n_resamples).astype(float)
    )
    # 0 / 0 of a resample without a token of the class is NaN, which intervals leave out
    with np.errstate(invalid="ignore"):
        draws = [weights @ sample.sums / (weights @ sample.counts)[:, None] for sample in samples]
    return [
        Estimate(sample.over_tokens, drawn) for sample, drawn in zip(samples, draws, strict=True)
    ]
