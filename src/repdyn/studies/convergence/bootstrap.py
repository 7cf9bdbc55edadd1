"""Estimate uncertainty by resampling sequences: tokens of one sequence are not independent, sequences are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95

# bounds the memory of one chunk of resamples
_MAX_CELLS = 1 << 22


@dataclass(frozen=True, eq=False)
class SequenceSums:
    """Cosines of each layer to the last one, summed over the tokens of each sequence."""

    sums: np.ndarray
    """(n_sequences, L + 1)."""
    counts: np.ndarray
    """(n_sequences,) tokens in each sum; 0 for a sequence without any."""

    @property
    def n_tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def alignment(self) -> np.ndarray:
        """A_0 ... A_L, (L + 1,): the mean over all tokens, so that long sequences weigh more; NaN without a token."""
        if not self.n_tokens:
            return np.full(self.sums.shape[1], np.nan)
        return self.sums.sum(0) / self.n_tokens

    @property
    def means(self) -> np.ndarray:
        """(n_sequences, L + 1) mean over the tokens of each sequence; NaN for a sequence without any."""
        with np.errstate(invalid="ignore"):
            return self.sums / self.counts[:, None]


def resample_profiles(samples: Sequence[SequenceSums], n_resamples: int, seed: int = 0) -> list[np.ndarray]:
    """Draw alignment profiles by a bootstrap over sequences.

    Each resample draws as many sequences as there are, with replacement, and takes the ratio of the sum of cosines to
    the number of tokens. Samples of the same sequences (two checkpoints, two classes of tokens) share the draws, so
    that their differences are paired.

    Args:
        samples: of the same sequences in the same order.
        n_resamples: number of draws; 1000 give the 2.5 % percentile to about a tenth of the interval's width.
        seed: of the draws.

    Returns:
        For each sample (n_resamples, L + 1); NaN in a draw without a single token.

    Raises:
        ValueError: fewer than two sequences, samples of different numbers of them, or no resample.

    Source: Efron 1979 (Ann. Statist. 7:1); percentile intervals, clustered by sequence.
    """
    numbers = {len(sample.counts) for sample in samples}
    if len(numbers) != 1:
        raise ValueError(f"expected samples of the same sequences, got {sorted(numbers)} sequences; use one probe")
    n_sequences = numbers.pop()
    if n_sequences < 2 or n_resamples < 1:
        raise ValueError(
            f"expected at least 2 sequences and 1 resample, got {n_sequences} and {n_resamples}; take more text"
        )
    generator = np.random.default_rng(seed)
    chunk = max(1, _MAX_CELLS // n_sequences)
    resampled: list[list[np.ndarray]] = [[] for _ in samples]
    for start in range(0, n_resamples, chunk):
        size = min(chunk, n_resamples - start)
        weights = generator.multinomial(n_sequences, np.full(n_sequences, 1 / n_sequences), size).astype(float)
        for sample, profiles in zip(samples, resampled, strict=True):
            with np.errstate(invalid="ignore"):
                profiles.append(weights @ sample.sums / (weights @ sample.counts)[:, None])
    return [np.concatenate(profiles) for profiles in resampled]


def percentile_interval(values: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the middle ``level`` of resampled values, (n_resamples, ...); NaN are ignored.

    Raises:
        ValueError: a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"expected a level between 0 and 1, got {level}")
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high
