"""Test whether two classes of tokens, or two kinds of sentences, are aligned unequally, layer by layer.

The last layer has no test, because its alignment is 1 whatever the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from repdyn.studies.convergence.bootstrap import LEVEL, SequenceSums

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
