"""Estimate profiles with intervals, tests between classes and correlations from the cosines to the last layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from repdyn.studies.convergence_measurements import ClassCosines, ConvergenceMeasurements, SequenceSums
from repdyn.studies.gradient import (
    average_rate,
    bound_over_alignment,
    decay_rate,
    gradient,
    isotonic_fit,
    lower_envelope,
)
from repdyn.studies.study import join_tables
from repdyn.tables.frames import grid, measurements

LEVEL = 0.95

# bounds the memory of one chunk of resamples
_MAX_CELLS = 1 << 22
THRESHOLD = 0.05
"""Adjusted p-values below it are reported as significant."""
MIN_CHECKPOINTS = 4
"""With three points, ranks agree perfectly in a third of all cases."""
ANY_STEP = "any"


def resample_profiles(samples: Sequence[SequenceSums], n_resamples: int, seed: int = 0) -> list[np.ndarray]:
    """Draw alignment profiles by a bootstrap over sequences.

    Each resample draws as many sequences as there are, with replacement, and takes the ratio of the sum of cosines to
    the number of tokens. Samples of the same sequences (two checkpoints, two classes of tokens) share the draws, so
    that their differences are paired.

    Returns:
        For each sample (n_resamples, L + 1); NaN in a draw without a single token.

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


def percentile_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the middle 95 % of resampled values, (n_resamples, ...); NaN are ignored."""
    low, high = np.nanquantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def paired_gap(first: SequenceSums, second: SequenceSums) -> pd.DataFrame:
    """Compare two classes of tokens of the same sequences by a paired t-test over sequences.

    A pair is one sequence: the mean cosine over its tokens of the first class, and over those of the second.
    Sequences that lack either class are left out. Every sequence has the same weight, however many tokens it has.

    Returns:
        A row for each layer but the last: layer, gap (mean alignment of the first class minus that of the second),
        gap_low and gap_high (95 % confidence interval), t, p (two-sided; NaN if no sequence differs from another),
        p_holm (adjusted for testing every layer), test, n (sample sizes, in words).

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

    Returns:
        As :func:`paired_gap`.

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
    ("random", "complex"): unpaired_gap,
}
"""Pairs of classes that are compared, and the test of each."""


def class_gaps(classes: Mapping[str, ClassCosines], own: Iterable[str] = ()) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the test of each pair of :data:`COMPARED` that is among the classes, and of each ``own`` class against all
    tokens but first positions and special ones."""
    tests = {**COMPARED, **{(name, "no_sink"): paired_gap for name in own}}
    return {
        pair: test(*(classes[name].alignment for name in pair))
        for pair, test in tests.items()
        if set(pair) <= set(classes)
    }


class ProfileEstimate(NamedTuple):
    """An alignment profile with its gradient, or a difference of two, with 95 % intervals of a bootstrap."""

    table: pd.DataFrame
    """A row for each layer: layer, alignment, alignment_low, alignment_high, gradient, gradient_low, gradient_high,
    and, unless it is a difference, isotonic_fit, lower_envelope and bound. Gradients and what is fitted to them are
    from the layer to the next, NaN at the last."""
    rate: float
    """Average of the gradient."""
    rate_low: float
    rate_high: float


def estimate_profile(measured: ConvergenceMeasurements, n_resamples: int, seed: int = 0) -> ProfileEstimate:
    """Return the alignment profile of a model on its text."""
    [resampled] = resample_profiles([measured.all_tokens], n_resamples, seed)
    return _estimate(measured.all_tokens.over_tokens, resampled, with_fits=True)


def estimate_change(
    before: ConvergenceMeasurements, after: ConvergenceMeasurements, n_resamples: int, seed: int = 0
) -> ProfileEstimate:
    """Return the profile of a second checkpoint minus that of a first, paired over the same sequences."""
    if before.probe != after.probe:
        raise ValueError(
            f"expected two models that read the same tokens, but {before.name} and {after.name} cut the text "
            "differently; compare checkpoints with one tokenizer"
        )
    if before.n_layers != after.n_layers:
        raise ValueError(
            f"expected two models with the same number of layers, got {before.name} with {before.n_layers - 1} blocks "
            f"and {after.name} with {after.n_layers - 1}; compare two checkpoints of one model"
        )
    earlier, later = resample_profiles([before.all_tokens, after.all_tokens], n_resamples, seed)
    return _estimate(after.all_tokens.over_tokens - before.all_tokens.over_tokens, later - earlier)


def _estimate(alignment: np.ndarray, resampled: np.ndarray, *, with_fits: bool = False) -> ProfileEstimate:
    steps = gradient(alignment)
    columns = {"alignment": (alignment, *percentile_interval(resampled))}
    columns["gradient"] = steps, *percentile_interval(gradient(resampled))
    table = {
        f"{name}{end}": v
        for name, values in columns.items()
        for end, v in zip(("", "_low", "_high"), values, strict=True)
    }
    if with_fits:
        table |= {"isotonic_fit": isotonic_fit(steps), "lower_envelope": lower_envelope(steps)}
        table["bound"] = bound_over_alignment(alignment)
    low, high = map(float, percentile_interval(average_rate(resampled)))
    frame = pd.DataFrame({name: pd.Series(values) for name, values in table.items()})
    return ProfileEstimate(frame.rename_axis("layer").reset_index(), float(average_rate(alignment)), low, high)


def class_table(measured: ConvergenceMeasurements, n_resamples: int, seed: int = 0) -> pd.DataFrame:
    """Return the alignment of each class of tokens or sentences, a row for each class and layer.

    Returns:
        class, layer, alignment (mean over tokens) with its 95 % interval alignment_low and alignment_high,
        alignment_of_words (mean over distinct words, each by the mean of its tokens), n_tokens, n_words, n_sequences.
    """
    frames = {}
    for name, found in measured.classes.items():
        sums = found.alignment
        low, high = percentile_interval(resample_profiles([sums], n_resamples, seed)[0])
        columns = {"alignment": sums.over_tokens, "alignment_low": low, "alignment_high": high}
        columns["alignment_of_words"] = found.of_words.mean(0)
        counts = {
            "n_tokens": sums.n_tokens,
            "n_words": len(found.of_words),
            "n_sequences": int((sums.counts > 0).sum()),
        }
        frames[name] = pd.DataFrame({"layer": np.arange(measured.n_layers), **columns, **counts})
    return join_tables(frames, "class")


def key_layers(classes: pd.DataFrame) -> pd.DataFrame:
    """Return the alignment of each class at the first, the middle and the last but one layer, and its mean over layers.

    Args:
        classes: as :func:`class_table` of each model, with its name as the column "model".

    Returns:
        model, class, mean (over all layers), mean_of_words (the same of distinct words), first, middle, last_but_one.
    """
    rows = []
    for keys, table in classes.groupby(["model", "class"], sort=False):
        model, name = cast(tuple[str, str], keys)
        alignment = table["alignment"].to_numpy(float)
        at_layers = {"first": alignment[0], "middle": alignment[len(alignment) // 2], "last_but_one": alignment[-2]}
        means = {"mean": alignment.mean(), "mean_of_words": table["alignment_of_words"].mean()}
        rows.append({"model": model, "class": name, **means, **at_layers})
    return pd.DataFrame(rows)


def fall_table(measured: ConvergenceMeasurements, n_resamples: int, seed: int = 0) -> pd.DataFrame:
    """Return the share of each class's tokens whose cosine to their final vector falls.

    Returns:
        A row for each class, size of the fall and step: class, more_than (of :data:`FALLS`), layer (from which to the
        next; "any" for at least one step), share with its 95 % interval share_low and share_high, n_tokens.
    """
    layers = [*range(measured.n_layers - 1), ANY_STEP]
    frames = {}
    for name, found in measured.classes.items():
        for size, sums in found.falls.items():
            low, high = percentile_interval(resample_profiles([sums], n_resamples, seed)[0])
            shares = {"share": sums.over_tokens, "share_low": low, "share_high": high}
            frames[name, size] = pd.DataFrame({"layer": layers, **shares, "n_tokens": sums.n_tokens})
    return join_tables(frames, "class", "more_than")


def middle_rate(alignment: np.ndarray) -> float:
    """Return the mean of the gradient over the middle third of the steps, at least one of them.

    >>> middle_rate(np.array([0.0, 0.5, 0.75, 1.0]))
    0.25
    """
    steps = gradient(alignment)
    third = len(steps) // 3
    return float(steps[third : len(steps) - third].mean())


SUMMARIES: dict[str, Callable[[np.ndarray], float]] = {
    "mean alignment": lambda alignment: float(alignment.mean()),
    "average rate": lambda alignment: float(average_rate(alignment)),
    "rate of the middle third": middle_rate,
    "last step": lambda alignment: float(gradient(alignment)[-1]),
    "decay of the gradient": lambda alignment: decay_rate(gradient(alignment)),
}
"""Scalar summaries of a profile A_0 ... A_L, (L + 1,)."""


def summaries_with(rows: pd.DataFrame, values: pd.Series) -> pd.DataFrame:
    """Return each summary of the alignment profile and a scalar, at every step that has both.

    Args:
        rows: of one run, or of one stack of its model.
        values: the scalar by step, without NaN.

    Returns:
        Index step, ascending; columns those of :data:`SUMMARIES`, and "value". Steps at which a layer has no value are
        left out.
    """
    profiles = grid(measurements(rows), "alignment", "all").dropna(axis="columns")
    steps = [step for step in profiles.columns if step in values.index]
    table = {name: [of(profiles[step].to_numpy(float)) for step in steps] for name, of in SUMMARIES.items()}
    return pd.DataFrame({**table, "value": values.loc[steps].to_numpy(float)}, index=pd.Index(steps, name="step"))


def correlations(table: pd.DataFrame) -> pd.DataFrame:
    """Return the correlation of each summary with the scalar, from the table of :func:`summaries_with`.

    There is no p-value: checkpoints of one training are not independent draws, and anything that moves in one direction
    while the scalar does correlates with it.

    Returns:
        summary, spearman and pearson in [-1, 1], NaN for a summary or scalar that never changes.
    """
    if len(table) < MIN_CHECKPOINTS:
        raise ValueError(
            f"expected at least {MIN_CHECKPOINTS} checkpoints with both an alignment profile and the scalar, got "
            f"{len(table)}; measure the metric alignment at more steps of the training"
        )
    # rounding would give constants a correlation
    varying = table.loc[:, table.nunique() > 1].reindex(columns=table.columns)
    summaries, values = varying[list(SUMMARIES)], varying["value"]
    found = {method: summaries.corrwith(values, method=method) for method in ("spearman", "pearson")}
    return pd.DataFrame(found).rename_axis("summary").reset_index()
