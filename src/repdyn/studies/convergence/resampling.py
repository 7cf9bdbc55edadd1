"""Uncertainty by resampling sequences: intervals of profiles, and tests of gaps between classes of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

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


THRESHOLD = 0.05
"""Adjusted p-values below it are reported as significant."""


def paired_gap(first: SequenceSums, second: SequenceSums) -> pd.DataFrame:
    """Compare two classes of tokens of the same sequences by a paired t-test over sequences.

    A pair is one sequence: the mean cosine over its tokens of the first class, and over those of the second.
    Sequences that lack either class are left out. Every sequence has the same weight, however many tokens it has.

    Args:
        first, second: of the same sequences in the same order.

    Returns:
        A row for each layer but the last: layer, gap (mean alignment of the first class minus that of the second),
        gap_low and gap_high (95 % confidence interval), t, p (two-sided; NaN if no sequence differs from another),
        p_holm (adjusted for testing every layer), test, n (sample sizes, in words).

    Raises:
        ValueError: samples of different sequences, or fewer than two sequences that have both classes.

    Source: Student 1908; scipy.stats.ttest_rel.
    """
    if first.sums.shape != second.sums.shape:
        raise ValueError(
            f"expected two classes of the same sequences, got {first.sums.shape} and {second.sums.shape}; use one probe"
        )
    both = (first.counts > 0) & (second.counts > 0)
    if both.sum() < 2:
        raise ValueError(
            f"expected at least 2 sequences with tokens of both classes, got {both.sum()} of {len(both)}; take more "
            "text"
        )
    one, other = first.means[both, :-1], second.means[both, :-1]
    with np.errstate(all="ignore"):
        tested = stats.ttest_rel(one, other)
    return _gap("paired t-test", f"{both.sum()} sequences", (one - other).mean(0), tested)


def unpaired_gap(first: SequenceSums, second: SequenceSums) -> pd.DataFrame:
    """Compare two kinds of sentences by Welch's t-test over sentences.

    Sentences of the two kinds do not correspond, so any pairing would be arbitrary, and the result would depend on the
    order of the sentences. Each sentence has the same weight, as the mean over its tokens; the two kinds may differ in
    variance and number.

    Args:
        first, second: sentences without a token are left out.

    Returns:
        As :func:`paired_gap`.

    Raises:
        ValueError: fewer than two sentences of a kind, or different numbers of layers.

    Source: Welch 1947 (Biometrika 34:28); scipy.stats.ttest_ind.
    """
    one, other = (kind.means[kind.counts > 0, :-1] for kind in (first, second))
    if min(len(one), len(other)) < 2 or one.shape[1] != other.shape[1]:
        raise ValueError(
            "expected at least 2 sentences of either kind and as many layers, got "
            f"{one.shape} and {other.shape}; take more sentences"
        )
    with np.errstate(all="ignore"):
        tested = stats.ttest_ind(one, other, equal_var=False)
    return _gap("Welch's t-test", f"{len(one)} and {len(other)} sentences", one.mean(0) - other.mean(0), tested)


def holm(p: ArrayLike) -> np.ndarray:
    """Adjust p-values for testing all of them: the chance of any false positive is then at most the threshold.

    The i-th smallest of m becomes ``max over j <= i of min(1, (m - j + 1) p_j)``; NaN stays NaN, and is not counted.

    Args:
        p: (m,) in [0, 1] or NaN.

    Raises:
        ValueError: another shape or range.

    Source: Holm 1979 (Scand. J. Statist. 6:65).

    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=float)
    if values.ndim != 1 or (values < 0).any() or (values > 1).any():
        raise ValueError(f"expected p-values, (m,) in [0, 1], got {p!r}")
    adjusted = np.full(len(values), np.nan)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    adjusted[order] = np.maximum.accumulate(np.minimum(1, values[order] * np.arange(len(order), 0, -1)))
    return adjusted


def _gap(test: str, n: str, gap: np.ndarray, tested: Any) -> pd.DataFrame:
    bounds, p = tested.confidence_interval(LEVEL), tested.pvalue
    columns = {"layer": np.arange(len(gap)), "gap": gap, "gap_low": bounds.low, "gap_high": bounds.high}
    return pd.DataFrame({**columns, "t": tested.statistic, "p": p, "p_holm": holm(p), "test": test, "n": n})


COMPARED: dict[tuple[str, str], Callable[[SequenceSums, SequenceSums], pd.DataFrame]] = {
    ("frequent", "rare"): paired_gap,
    ("function", "content"): paired_gap,
    ("simple", "complex"): unpaired_gap,
}
"""Pairs of classes that are compared, and the test of each."""


def class_gaps(classes: Mapping[str, SequenceSums]) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the test of each pair of :data:`COMPARED` that is among the classes."""
    return {pair: test(*(classes[c] for c in pair)) for pair, test in COMPARED.items() if set(pair) <= set(classes)}
