"""Tests and intervals over seeds. The unit is the run; effects are logarithms of ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from repdyn.views.judging.effects import judge_interval

MARGIN = math.log(1.1)
"""Effects within ±10% count as none."""
LEVEL = 0.05
LEAST_RUNS = 4
LEARNED = 0.9
"""Largest ratio of a model's loss to the entropy of the token frequencies at which it counts as
having learned more.
"""

PRIMARY, NO_SINK = "primary", "no_sink"

Claim = Literal["positive", "negative", "larger", "equivalent"]
Verdict = Literal["supported", "contradicted", "absent", "undecided", "untestable"]


@dataclass(frozen=True)
class Hypothesis:
    """A primary hypothesis: a claim on a statistic of an arm; "larger" compares it with the masked
    arm.
    """

    name: str
    sentence: str
    statistic: str
    arm: str
    claim: Claim
    variant: str = PRIMARY
    """Name of the rows that the statistic is computed from."""


HYPOTHESES = (
    Hypothesis(
        name="H1",
        sentence="the bell is larger in causal than in masked models",
        statistic="bell",
        arm="causal",
        claim="larger",
    ),
    Hypothesis(
        name="H2",
        sentence="causal models have a bell",
        statistic="bell",
        arm="causal",
        claim="positive",
    ),
    Hypothesis(
        name="H3",
        sentence="masked models are flat",
        statistic="bell",
        arm="masked",
        claim="equivalent",
    ),
    Hypothesis(
        name="H4",
        sentence="anisotropy grows in causal models",
        statistic="growth",
        arm="causal",
        claim="positive",
    ),
    Hypothesis(
        name="H5",
        sentence="then it stabilises",
        statistic="late anisotropy",
        arm="causal",
        claim="equivalent",
    ),
    Hypothesis(
        name="H6",
        sentence="the dimension of causal models rises",
        statistic="rise",
        arm="causal",
        claim="positive",
    ),
    Hypothesis(name="H7", sentence="then falls", statistic="fall", arm="causal", claim="positive"),
    Hypothesis(
        name="H8",
        sentence="it still declines late",
        statistic="late dimension",
        arm="causal",
        claim="negative",
    ),
    Hypothesis(
        name="H9",
        sentence="without first positions, causal models have a valley",
        statistic="bell",
        arm="causal",
        claim="negative",
        variant=NO_SINK,
    ),
    Hypothesis(
        name="H10",
        sentence="and their anisotropy stabilises",
        statistic="late anisotropy",
        arm="causal",
        claim="equivalent",
        variant=NO_SINK,
    ),
)
OTHER_ARM = "masked"


def tested_statistics(arm: str) -> set[str]:
    """Return the statistics of an arm, from the primary rows, that the hypotheses use.

    >>> tested_statistics("masked")
    {'bell'}
    """
    return {
        hypothesis.statistic
        for hypothesis in HYPOTHESES
        if hypothesis.variant == PRIMARY
        and (hypothesis.arm == arm or (hypothesis.claim == "larger" and arm == OTHER_ARM))
    }


@dataclass(frozen=True)
class Test:
    """A hypothesis with its mean effect, 95% interval, p-value before and after Holm's correction,
    and verdict.
    """

    hypothesis: Hypothesis
    mean: float
    low: float
    high: float
    p: float
    corrected_p: float
    verdict: Verdict


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return the interval of Student's t for the mean; NaN for fewer than two values."""
    x = np.asarray(values, float)
    if len(x) < 2:
        return math.nan, math.nan
    margin = stats.t.ppf(0.5 + level / 2, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x))
    return float(x.mean() - margin), float(x.mean() + margin)


def interval_of_difference(
    first: Sequence[float], other: Sequence[float], level: float = 0.95
) -> tuple[float, float]:
    """Return Welch's interval for the difference of two means; NaN for fewer than two values of
    either.
    """
    if min(len(first), len(other)) < 2:
        return math.nan, math.nan
    found = stats.ttest_ind(first, other, equal_var=False).confidence_interval(level)
    return float(found.low), float(found.high)


def equivalence_p(values: Sequence[float], margin: float = MARGIN) -> float:
    """Return the p-value of two one-sided t-tests that the mean lies within ±margin (Schuirmann
    1987).
    """
    below = stats.ttest_1samp(values, margin, alternative="less").pvalue
    above = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    return float(max(below, above))


def permutation_p(first: Sequence[float], other: Sequence[float]) -> float:
    """Return the exact two-sided p-value of the difference of means under all divisions of the
    values.
    """
    result = stats.permutation_test(
        (first, other),
        lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis),
        n_resamples=np.inf,
        vectorized=True,
    )
    return float(result.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method; NaN stays NaN and takes no part.

    >>> [round(p, 12) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, float)
    corrected = np.full(len(p), math.nan)
    order = [index for index in np.argsort(p) if not math.isnan(p[index])]
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p[index]))
        corrected[index] = highest
    return corrected.tolist()


def test_all(statistics: pd.DataFrame, *, learned: bool) -> list[Test]:
    """Test every hypothesis.

    Args:
        statistics: columns variant, arm, seed and a column for each statistic, of the runs that are
            not excluded.
        learned: whether the causal models have learned more than token frequencies; otherwise
            nothing can be tested.
    """
    values_of = [_values(statistics, hypothesis) for hypothesis in HYPOTHESES]
    p_values = [
        _p(hypothesis, *values) for hypothesis, values in zip(HYPOTHESES, values_of, strict=True)
    ]
    tests = []
    for hypothesis, (x, other), p, corrected in zip(
        HYPOTHESES, values_of, p_values, holm(p_values), strict=True
    ):
        larger = hypothesis.claim == "larger"
        mean = (
            float(np.mean(x) - np.mean(other))
            if larger and x and other
            else float(np.mean(x))
            if x
            else math.nan
        )
        low, high = interval_of_difference(x, other) if larger else interval(x)
        verdict: Verdict = "untestable"
        if learned:
            enough = min(len(x), len(other) if larger else len(x)) >= LEAST_RUNS
            narrow = interval_of_difference(x, other, 0.90) if larger else interval(x, 0.90)
            verdict = (
                _verdict(hypothesis.claim, mean, (low, high), narrow, corrected)
                if enough
                else "undecided"
            )
        tests.append(
            Test(
                hypothesis=hypothesis,
                mean=mean,
                low=low,
                high=high,
                p=p,
                corrected_p=corrected,
                verdict=verdict,
            )
        )
    return tests


def _values(statistics: pd.DataFrame, hypothesis: Hypothesis) -> tuple[list[float], list[float]]:
    is_of_variant = statistics["variant"] == hypothesis.variant
    rows = statistics[is_of_variant]
    by_arm: Mapping[str, list[float]] = (
        rows.groupby("arm")[hypothesis.statistic].apply(list).to_dict()
    )
    return by_arm.get(hypothesis.arm, []), by_arm.get(OTHER_ARM, [])


def _p(hypothesis: Hypothesis, x: list[float], other: list[float]) -> float:
    if (
        len(x) < 2
        or (hypothesis.claim == "larger" and len(other) < 2)
        or (np.ptp(x) == 0 and hypothesis.claim != "larger")
    ):
        return math.nan
    if hypothesis.claim == "larger":
        return permutation_p(x, other)
    return (
        equivalence_p(x)
        if hypothesis.claim == "equivalent"
        else float(stats.ttest_1samp(x, 0.0).pvalue)
    )


def _verdict(
    claim: Claim,
    mean: float,
    wide: tuple[float, float],
    narrow: tuple[float, float],
    corrected: float,
) -> Verdict:
    """Return the verdict from the 95% interval, the 90% interval and the corrected p-value."""
    significant = corrected < LEVEL
    none = (-MARGIN, MARGIN)
    if claim == "equivalent":
        if significant:
            return "supported"
        return "contradicted" if judge_interval(*wide, none) == "not shown" else "undecided"
    if significant:
        return "supported" if (mean < 0) == (claim == "negative") else "contradicted"
    return "absent" if judge_interval(*narrow, none) == "shown" else "undecided"
