"""Estimate profiles with intervals, tests between classes and correlations from the cosines to the last layer.

The gradient, its average and what is fitted to it follow Lee 2024, Fractal Self-Similarity in Semantic Convergence
(Fractal Fract. 8(10):552). Profiles A_0 ... A_L are mean cosines of each layer to the last one, all finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats
from scipy.optimize import isotonic_regression

from repdyn.studies.bootstrap import LEVEL, Estimate, SequenceSums, bootstrap
from repdyn.studies.convergence_measurements import ClassCosines, ConvergenceMeasurements
from repdyn.studies.study import join_tables
from repdyn.tables.frames import grid, measurements

THRESHOLD = 0.05
"""Adjusted p-values below it are reported as significant."""
MIN_CHECKPOINTS = 4
"""With three points, ranks agree perfectly in a third of all cases."""
ANY_STEP = "any"
COMPARED = {("frequent", "rare"): True, ("function", "content"): True}
COMPARED |= {("simple", "complex"): False, ("random", "complex"): False}
"""Pairs of classes that are compared, and whether they are of the same sequences."""
_MAX_RATE = 5.0
"""Largest rate of decay of a gradient per layer: the next step is 150 times as small."""
_N_RATES = 100_001


def gradient(alignment: ArrayLike) -> np.ndarray:
    """Return what each step adds to the alignment: ``G_l = A_{l+1} - A_l``, (..., L) in [-2, 2], of (..., L + 1).

    >>> gradient([0.0, 0.5, 0.75, 1.0])
    array([0.5 , 0.25, 0.25])
    """
    return np.diff(np.asarray(alignment, float), axis=-1)


def average_rate(alignment: ArrayLike) -> np.ndarray:
    """Return the mean of the gradient, ``(A_L - A_0) / L``, (...) of (..., L + 1): the layers between do not matter.

    >>> float(average_rate([0.25, 0.5, 0.75, 1.0]))
    0.25
    """
    values = np.asarray(alignment, float)
    return (values[..., -1] - values[..., 0]) / (values.shape[-1] - 1)


def middle_rate(alignment: np.ndarray) -> float:
    """Return the mean of the gradient over the middle third of the steps, at least one of them."""
    steps = gradient(alignment)
    third = len(steps) // 3
    return float(steps[third : len(steps) - third].mean())


def decay_rate(steps: ArrayLike) -> float:
    """Return the rate lambda of the curve ``a * exp(-lambda * l)`` nearest to a gradient (L,) by least squares.

    Per layer, positive where the gradient shrinks with depth, in [-5, 5]; NaN for fewer than two steps, or all 0.

    >>> round(decay_rate([0.4, 0.2, 0.1, 0.05]), 4)
    0.6931
    """
    values = np.asarray(steps, float)
    if len(values) < 2 or not values.any():
        return math.nan
    rates = np.linspace(-_MAX_RATE, _MAX_RATE, _N_RATES)[:, None]
    curves = np.exp(-rates * np.arange(len(values)) - np.maximum(0.0, -rates * (len(values) - 1)))
    return float(rates[((curves @ values) ** 2 / (curves**2).sum(1)).argmax(), 0])


def isotonic_fit(steps: ArrayLike) -> np.ndarray:
    """Return the non-decreasing sequence over depth that is nearest to a gradient by least squares, (L,).

    A pooled mean lies above the smallest of what it pools: the fit is no lower bound, see :func:`lower_envelope`.

    Source: the monotone function of Lee 2024, fitted over depth.

    >>> isotonic_fit([0.5, 0.25, 0.25, 1.0]).round(4).tolist()
    [0.3333, 0.3333, 0.3333, 1.0]
    """
    return isotonic_regression(np.asarray(steps, float)).x


def lower_envelope(steps: ArrayLike) -> np.ndarray:
    """Return the largest non-decreasing sequence over depth nowhere above a gradient: ``min over j >= l of G_j``, (L,).

    >>> lower_envelope([0.5, 0.25, 0.25, 1.0]).tolist()
    [0.25, 0.25, 0.25, 1.0]
    """
    return np.minimum.accumulate(np.asarray(steps, float)[::-1])[::-1]


def bound_over_alignment(alignment: ArrayLike) -> np.ndarray:
    """Return the largest non-decreasing function f of the alignment with ``G_l >= f(A_l)``: f(A_0) ... f(A_{L-1}).

    It is :func:`lower_envelope` where the alignment rises with depth, and differs where it falls. Source: theorem 3.

    >>> bound_over_alignment([0.5, 0.25, 0.75, 1.0]).tolist()
    [-0.25, -0.25, 0.25]
    """
    steps, before = gradient(alignment), np.asarray(alignment, float)[:-1]
    return np.array([steps[before >= value].min() for value in before])


def compare_classes(first: SequenceSums, second: SequenceSums, *, paired: bool) -> pd.DataFrame:
    """Compare the alignment of two classes of tokens, or of two kinds of sentences, every sequence with one weight.

    Two classes of the same sequences by a paired t-test of the means over the tokens of each class (sequences that lack
    either are left out), two kinds of sentences by Welch's t-test, since any pairing would be arbitrary.

    Returns:
        A row for each layer but the last: layer, gap (mean alignment of the first minus that of the second), gap_low
        and gap_high (95% confidence interval), t, p (two-sided; NaN if no sequence differs from another), p_holm
        (adjusted for testing every layer), test, n (sample sizes, in words).
    """
    has = first.counts > 0, second.counts > 0
    if paired:
        has = (has[0] & has[1],) * 2
    one, other = (sums.means[chosen, :-1] for sums, chosen in zip((first, second), has, strict=True))
    if min(len(one), len(other)) < 2:
        what = "sequences with tokens of both classes" if paired else "sentences of either kind"
        raise ValueError(f"expected at least 2 {what}, got {len(one)} and {len(other)}; take more text, or sentences")
    with np.errstate(all="ignore"):
        tested: Any = stats.ttest_rel(one, other) if paired else stats.ttest_ind(one, other, equal_var=False)
    gap = (one - other).mean(0) if paired else one.mean(0) - other.mean(0)
    bounds = tested.confidence_interval(LEVEL)
    table = {"layer": np.arange(len(gap)), "gap": gap, "gap_low": bounds.low, "gap_high": bounds.high}
    table |= {"t": tested.statistic, "p": tested.pvalue, "p_holm": holm(tested.pvalue)}
    test = "paired t-test" if paired else "Welch's t-test"
    n = f"{len(one)} sequences" if paired else f"{len(one)} and {len(other)} sentences"
    return pd.DataFrame({**table, "test": test, "n": n})


def class_gaps(classes: Mapping[str, ClassCosines], own: Iterable[str] = ()) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the test of each pair of :data:`COMPARED` that is among the classes, and of each ``own`` class against all
    tokens but first positions and special ones."""
    pairs = {**COMPARED, **{(name, "no_sink"): True for name in own}}
    return {
        pair: compare_classes(*(classes[name].alignment for name in pair), paired=paired)
        for pair, paired in pairs.items()
        if set(pair) <= set(classes)
    }


def holm(p: ArrayLike) -> np.ndarray:
    """Adjust p-values for testing all of them, NaN aside: the chance of any false positive stays at the threshold.

    Source: Holm 1979 (Scand. J. Statist. 6:65).

    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=float)
    adjusted = np.full(len(values), np.nan)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    adjusted[order] = np.maximum.accumulate(np.minimum(1, values[order] * np.arange(len(order), 0, -1)))
    return adjusted


def profile_table(profile: Estimate, *, with_fits: bool = True) -> pd.DataFrame:
    """Return an alignment profile, or a difference of two, with its gradient: a row for each layer.

    Columns: layer, alignment and gradient with their NAME_low and NAME_high, and ``with_fits`` isotonic_fit,
    lower_envelope and bound. Gradients and fits are from the layer to the next, NaN at the last.
    """
    steps = profile.map(gradient)
    columns = {**profile.columns("alignment"), **steps.columns("gradient")}
    if with_fits:
        columns |= {"isotonic_fit": isotonic_fit(steps.values), "lower_envelope": lower_envelope(steps.values)}
        columns["bound"] = bound_over_alignment(profile.values)
    frame = pd.DataFrame({name: pd.Series(values) for name, values in columns.items()})
    return frame.rename_axis("layer").reset_index()


def class_table(measured: ConvergenceMeasurements, n_resamples: int, seed: int = 0) -> pd.DataFrame:
    """Return the alignment of each class of tokens or sentences, a row for each class and layer.

    Columns: class, layer, alignment (mean over tokens) with its 95% interval, alignment_of_words (mean over distinct
    words, each by the mean of its tokens), n_tokens, n_words, n_sequences.
    """
    frames = {}
    for name, found in measured.classes.items():
        [estimate] = bootstrap([found.alignment], n_resamples, seed)
        table = {"layer": range(measured.n_layers), **estimate.columns("alignment")}
        table |= {"alignment_of_words": found.of_words.mean(0), "n_tokens": found.alignment.n_tokens}
        n_sequences = np.count_nonzero(found.alignment.counts)
        frames[name] = pd.DataFrame({**table, "n_words": len(found.of_words), "n_sequences": n_sequences})
    return join_tables(frames, "class")


def key_layers(classes: pd.DataFrame) -> pd.DataFrame:
    """Return the alignment of each class of each model at some layers, from the :func:`class_table` of all models.

    Columns: model, class, mean (over layers), mean_of_words (of distinct words), first, middle, last_but_one.
    """
    found = classes.groupby(["model", "class"], sort=False)
    means = {"mean": ("alignment", "mean"), "mean_of_words": ("alignment_of_words", "mean")}
    places = {"first": lambda n: 0, "middle": lambda n: n // 2, "last_but_one": lambda n: n - 2}
    at = {name: ("alignment", lambda of, place=place: of.iloc[place(len(of))]) for name, place in places.items()}
    return found.agg(**means, **at).reset_index()


def fall_table(measured: ConvergenceMeasurements, n_resamples: int, seed: int = 0) -> pd.DataFrame:
    """Return the share of each class's tokens whose cosine to their final vector falls.

    A row for each class, size of the fall and step: class, more_than (of :data:`FALLS`), layer (from which to the next;
    "any" for at least one step), share with its 95% interval share_low and share_high, n_tokens.
    """
    layers, frames = [*range(measured.n_layers - 1), ANY_STEP], {}
    for name, found in measured.classes.items():
        for size, sums in found.falls.items():
            [estimate] = bootstrap([sums], n_resamples, seed)
            table = {"layer": layers, **estimate.columns("share"), "n_tokens": sums.n_tokens}
            frames[name, size] = pd.DataFrame(table)
    return join_tables(frames, "class", "more_than")


SUMMARIES: dict[str, Callable[[np.ndarray], float]] = {
    "mean alignment": lambda alignment: float(alignment.mean()),
    "average rate": lambda alignment: float(average_rate(alignment)),
    "rate of the middle third": middle_rate,
    "last step": lambda alignment: float(gradient(alignment)[-1]),
    "decay of the gradient": lambda alignment: decay_rate(gradient(alignment)),
}
"""Scalar summaries of a profile A_0 ... A_L, (L + 1,)."""


def summaries_with(rows: pd.DataFrame, values: pd.Series) -> pd.DataFrame:
    """Return each summary of the alignment profile and a scalar (column "value"), at every step that has both.

    Args:
        rows: of one run, or of one stack of its model.
        values: the scalar by step, without NaN.
    """
    profiles = grid(measurements(rows), "alignment", "all").dropna(axis="columns")
    steps = [step for step in profiles.columns if step in values.index]
    table = {name: [of(profiles[step].to_numpy(float)) for step in steps] for name, of in SUMMARIES.items()}
    return pd.DataFrame({**table, "value": values.loc[steps].to_numpy(float)}, index=pd.Index(steps, name="step"))


def correlations(table: pd.DataFrame) -> pd.DataFrame:
    """Return the correlation of each summary with the scalar: spearman and pearson, NaN where one never changes.

    There is no p-value: checkpoints of one training are not independent draws, and anything that moves in one direction
    while the scalar does correlates with it.
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
