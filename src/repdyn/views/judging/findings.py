"""The published findings, their criteria (docs/findings.md), and the verdicts on one run or the
seeds of one model.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from repdyn.probe.design import DISTINCT, DISTINCT_INPUTS, INPUT_DESIGNS, TYPES
from repdyn.store.schema import LEARNING_RATE, LOSS
from repdyn.utils.numbers import number_text
from repdyn.views.judging.effects import (
    MOVES,
    CannotBeJudgedError,
    Claim,
    Effect,
    Estimate,
    Judgement,
    Verdict,
    estimate_at,
    has_bands,
    mean_estimate,
    over_seeds,
    with_bands,
)
from repdyn.views.tables.frames import (
    SUBSETS,
    concatenated,
    has_text,
    measurements,
    of_metric,
    scalar,
    scalar_rows,
    without_repeats,
)
from repdyn.views.tables.series import MetricSeries, series_of

VERSION = "2, 2026-11-22"
"""Version of the criteria, and the date on which they were fixed."""

PAPER = (
    "Internal Representation Dynamics in Transformers / The Shape of Learning (Findings of EACL "
    "2024)"
)

MORE = 0.10
"""Smallest relative change that counts."""
MIDDLE = (0.25, 0.75)
"""Positions between which a block is a middle one: 0 is the first block, 1 the last."""
BELL_BLOCKS, UNIFORM_BLOCKS = 5, 3
"""Number of blocks that a profile needs."""
UNIFORM_RANGE = 0.50
"""Share by which the highest block of a uniform profile may exceed the lowest."""
EARLY = 0.01
"""Largest step of the first measurement, as a share of the last step."""
HALF = (0.40, 0.60)
"""Shares of the last step between which a measured step counts as half of it."""
LATE_FALL = 0.05
"""Share by which the values must decline late in training."""
WARM_UPS = 1.5
"""Multiple of the warm-up within which the learning-rate schedule may have caused a peak."""
FAILED = 0.10
"""Share by which the last loss of a failed training exceeds the lowest."""

_TIMES = (
    f"Cannot be judged where the first measured step lies beyond {EARLY:.0%} of the last, {{}}no "
    f"measured step lies between {HALF[0]:.0%} and {HALF[1]:.0%} of it"
)
_FROM_HALF = "from the measured step nearest to half of the last one to the last"

BELL = (
    "With the position of block l being x = (l - 1) / (L - 1), the middle blocks have "
    f"{MIDDLE[0]:g} <= x <= {MIDDLE[1]:g}. At the last measured step, the mean of the middle "
    f"blocks exceeds that of the first block and that of the last block by more than {MORE:.0%}. "
    f"Needs at least {BELL_BLOCKS} blocks."
)
UNIFORM = (
    "At the last measured step, the highest block exceeds the lowest by less than "
    f"{UNIFORM_RANGE:.0%}. Needs at least {UNIFORM_BLOCKS} blocks."
)
GROWTH = (
    "The mean over blocks at the last measured step exceeds that at the first by more than "
    f"{MORE:.0%}, and {_FROM_HALF} it changes by less than {MORE:.0%} in either direction. "
    f"{_TIMES.format('or ')}."
)
DIMENSION = (
    f"The highest mean over blocks exceeds the first and the last by more than {MORE:.0%}, and the "
    f"decline goes on late: {_FROM_HALF}, the mean over blocks falls by more than {LATE_FALL:.0%}, "
    f"and more than half of the blocks fall, each by its own interval. {_TIMES.format('where ')}, "
    f"or where the highest mean lies within {WARM_UPS:g} times the warm-up of the learning rate "
    "(the schedule may have made the peak) and everything else is shown."
)

MEANINGS = {
    "bell": "bell-shaped anisotropy over depth (decoders)",
    "uniform": "uniform anisotropy over depth (encoders)",
    "growth": "anisotropy grows, then stabilises (decoders)",
    "dimension": "intrinsic dimension rises, then declines (decoders)",
}
"""The findings by name, each with the kind of model it was published for."""
_OF_ENCODERS = frozenset({"uniform"})
"""Those that were published for encoders; the others are about decoders."""
VECTORS = {
    "all": "of all vectors",
    TYPES: "of distinct tokens",
    DISTINCT_INPUTS: "of distinct inputs",
}
"""Which vectors a verdict on the dimension is about, by subset: the published convention, and that
without repeated tokens or inputs."""


BY_BANDS = "by the paper's bands (one standard deviation over batches, which share windows): "
"""What leads a judgement on values by the published design."""

_Judge = Callable[[MetricSeries, float | None], Judgement]
COLUMNS = ["metric", "subset", "step", "layer", "depth", "value", "std_error", "n_batches"]
"""Columns that a judgement needs."""
_CHECKED = ["run", "model", "probe", "layers", "stack", "stage", "settings", "head", "std"]
_MEASURED = [*COLUMNS, *_CHECKED, "low", "high"]
"""Columns that :func:`measurements` needs beside them."""


class Snapshot(NamedTuple):
    """The blocks at one step."""

    step: int
    blocks: tuple[Estimate, ...]
    mean: Estimate


def bell(series: MetricSeries, _: float | None) -> Judgement:
    """Judge whether anisotropy, of which these are the values, is bell-shaped over depth at the
    last measured step.
    """
    blocks = profile(series, BELL_BLOCKS)
    low, high = MIDDLE
    # with the embeddings among the layers, layer 0 is the first block
    first = min(1, series.layers[0])
    number = series.n_blocks
    inside = [
        block
        for layer, block in blocks.items()
        if low <= (layer - first) / (number - first) <= high
    ]
    if not {first, number} <= set(blocks) or not inside:
        raise CannotBeJudgedError(
            f"needs a value in blocks {first}, {number} and between; got blocks {_listed(blocks)}"
        )
    middle = mean_estimate(inside)
    ends = {"first": blocks[first], "last": blocks[number]}
    return Judgement(
        tuple(
            Claim(
                subject="the middle of the blocks",
                verbs=(f"exceeds the {end}", f"is below the {end}"),
                effect=Effect.of(middle, block),
                above=MORE,
            )
            for end, block in ends.items()
        )
    )


def uniform(series: MetricSeries, _: float | None) -> Judgement:
    """Judge whether anisotropy is uniform over depth at the last measured step."""
    blocks = profile(series, UNIFORM_BLOCKS)
    low, high = (choose(blocks, key=lambda layer: blocks[layer].value) for choose in (min, max))
    effect = Effect.of(blocks[high], blocks[low])
    verbs = "exceeds the lowest", "is below the lowest"
    claim = Claim("the highest block", verbs, effect, below=UNIFORM_RANGE)
    return Judgement((claim,), notes=(f"blocks {high} and {low}",))


def growth(series: MetricSeries, _: float | None) -> Judgement:
    """Judge whether anisotropy grows, then stabilises."""
    snapshots, coverage = snapshots_of(series)
    first, half, last = _ends_and_half(snapshots)
    claims = (
        Claim(series.metric, MOVES, Effect.of(last.mean, first.mean), above=MORE),
        _late(series.metric, half, last, above=-MORE, below=MORE),
    )
    return Judgement(claims, coverage=coverage)


def dimension(series: MetricSeries, warm_up: float | None) -> Judgement:
    """Judge whether the dimension rises, then declines; ``warm_up`` is the step at which the
    warm-up ends.
    """
    snapshots, coverage = snapshots_of(series)
    first, half, last = _ends_and_half(snapshots)
    # if the mean is highest at an end, the highest value between the ends does not exceed it
    peak = max(snapshots[1:-1], key=lambda snapshot: snapshot.mean.value)
    of = VECTORS[series.subset]
    up_to_peak = f"from the start to step {peak.step:,}, the highest in between, the dimension {of}"
    highest = f"the dimension at step {peak.step:,}"
    over_last = "exceeds the last", "is below the last"
    claims = (
        Claim(up_to_peak, MOVES, Effect.of(peak.mean, first.mean), above=MORE),
        Claim(highest, over_last, Effect.of(peak.mean, last.mean), above=MORE),
        _late("the dimension", half, last, below=-LATE_FALL),
    )
    blocks = tuple(
        Effect.of(end, before) for end, before in zip(last.blocks, half.blocks, strict=True)
    )
    until = "warm-up not known" if warm_up is None else f"warm-up to step {warm_up:,.0f}"
    is_early = warm_up is not None and peak.step <= WARM_UPS * warm_up
    return Judgement(
        claims,
        blocks,
        notes=(until,),
        objection=f"highest within {WARM_UPS:g} times the warm-up" if is_early else None,
        coverage=coverage,
    )


def _late(
    what: str,
    half: Snapshot,
    last: Snapshot,
    above: float | None = None,
    below: float | None = None,
) -> Claim:
    """Return the claim on the change of the mean from half of the training to its end."""
    subject = f"since half of the training (step {half.step:,}) {what}"
    effect = Effect.of(last.mean, half.mean)
    return Claim(subject, MOVES, effect, above=above, below=below)


def profile(series: MetricSeries, needed: int, step: int | None = None) -> dict[int, Estimate]:
    """Return the blocks with a value at a step, or the last one, by number; too few are an
    error.
    """
    blocks: dict[int, Estimate] = {}
    if series.steps:
        column = series.steps.index(series.steps[-1] if step is None else step)
        has_value = np.isfinite(series.values[:, column])
        for row in np.flatnonzero(has_value).tolist():
            blocks[series.layers[row]] = estimate_at(series, row, column)
    if len(blocks) < needed:
        raise CannotBeJudgedError(
            f"needs {needed} blocks with a value; got blocks {_listed(blocks)}"
        )
    return blocks


def snapshots_of(series: MetricSeries) -> tuple[list[Snapshot], str | None]:
    """Return, at each step with any value, the blocks that have a value at all these steps, and how
    many these are where some are left out."""
    has_value = np.isfinite(series.values)
    columns = np.flatnonzero(has_value.any(axis=0)).tolist()
    rows = np.flatnonzero(has_value[:, columns].all(axis=1)).tolist()
    if not columns or not rows:
        raise CannotBeJudgedError(f"no block has a value of {series.metric} at every measured step")
    snapshots = []
    for column in columns:
        blocks = tuple(estimate_at(series, row, column) for row in rows)
        snapshots.append(Snapshot(series.steps[column], blocks, mean_estimate(blocks)))
    n_measured = len(series.layers)
    is_partial = len(rows) < n_measured
    return snapshots, f"over {len(rows)} of {n_measured} blocks" if is_partial else None


def _ends_and_half(snapshots: Sequence[Snapshot]) -> tuple[Snapshot, Snapshot, Snapshot]:
    first = snapshots[0]
    last = snapshots[-1]
    if first is last:
        raise CannotBeJudgedError("one checkpoint")
    if first.step > EARLY * last.step:
        raise CannotBeJudgedError(
            f"no value before step {first.step:,} of {last.step:,}; the course may begin earlier"
        )
    # schedules differ, and few measure exactly at half
    half = min(snapshots, key=lambda snapshot: abs(snapshot.step - last.step / 2))
    low, high = HALF
    if not low * last.step <= half.step <= high * last.step:
        near = f"{low * last.step:,.0f} to {high * last.step:,.0f}"
        raise CannotBeJudgedError(f"no step measured near half of step {last.step:,} ({near})")
    return first, half, last


def _listed(blocks: Iterable[int]) -> str:
    return ", ".join(map(str, blocks)) or "none"


MARKS: dict[Verdict, str] = {"shown": "+", "not shown": "-", "cannot be judged": "?"}
"""Signs of verdicts in narrow columns."""
COLOURS: dict[Verdict, str] = {
    "shown": "cyan",
    "not shown": "default",
    "cannot be judged": "bright_black",
}
"""Colours of verdicts in a terminal. A verdict is no judgement of the quality of a run."""

JUDGED = ("anisotropy", "two_nn")
"""The metrics that the findings are about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A published finding and what one run says about it."""

    name: str
    """A key of :data:`repdyn.views.judging.findings.MEANINGS`."""
    subset: str
    """The subset it is judged on."""
    title: str
    criterion: str
    """The text of the criterion, with its numbers."""
    verdict: Verdict
    sentence: str
    """The effects that decide the verdict, with their intervals, then the others without theirs;
    or why it cannot be judged."""
    evidence: str
    """One line with the numbers behind the verdict, or why there is none."""
    with_embeddings: Verdict
    """The verdict with layer 0, the embeddings, as the first of the blocks."""

    @property
    def summary(self) -> str:
        """Return the sentence, and the verdict with layer 0 where it is another."""
        other = f"; with layer 0, the embeddings: {self.with_embeddings}"
        return self.sentence + (other if self.with_embeddings != self.verdict else "")


class JudgedRun:
    """Holds the data of one run, or of one stack of its model, by which findings are judged.

    The training losses among its rows decide whether the training failed, the learning rates when
    its warm-up ended.

    Args:
        frame: all rows of the run.
        rows: its :func:`~repdyn.views.tables.frames.measurements`, if they have been made.
    """

    def __init__(self, frame: pd.DataFrame, rows: pd.DataFrame | None = None) -> None:
        self.rows = _judged_rows(frame) if rows is None else _of_judged(rows)
        self.failure = _failure(frame)
        self.warm_up = _end_of_warm_up(frame)
        self.has_bands = _has_bands(frame)


def findings(frame: pd.DataFrame) -> list[Finding]:
    """Judge each published finding on one run, as :func:`findings_of` does, from all of its
    rows."""
    return findings_of(JudgedRun(frame))


def findings_of(run: JudgedRun) -> list[Finding]:
    """Judge each published finding on one run, or on one stack if its model has several.

    Returns:
        Seven findings: the two shapes of anisotropy over depth and its growth, each on all tokens
        and without sinks; rise and decline of the dimension of all vectors. Of distinct tokens or
        inputs it is an eighth, where their dimension was measured.
    """
    return _judged([run])


def findings_over_seeds(seeds: Sequence[JudgedRun]) -> list[Finding]:
    """Judge each published finding on two or more seeds of one model: each effect by its interval
    over the seeds.

    The effects of each seed are those of :func:`findings_of`, at the steps that all seeds have and
    over the blocks that have a value in all of them. The intervals of single seeds, which are over
    probes, are not used.
    """
    over = f"over {len(seeds)} seeds: "
    return [
        replace(finding, sentence=over + finding.sentence, evidence=over + finding.evidence)
        for finding in _judged(seeds)
    ]


def on_kind(judged: Iterable[Finding], causal: bool | None) -> list[Finding]:
    """Return the findings that were published for decoders, where ``causal``, or for encoders; all
    of them for a model of unknown kind."""
    return [
        finding for finding in judged if causal is None or causal != (finding.name in _OF_ENCODERS)
    ]


def _judged(runs: Sequence[JudgedRun]) -> list[Finding]:
    """Return the findings on one run, or on several seeds of one model."""
    failures = [run.failure for run in runs if run.failure is not None]
    rows = [run.rows for run in runs]
    by_what = BY_BANDS if len(runs) == 1 and runs[0].has_bands else ""
    if len(runs) > 1:
        rows = _shared_cells(rows)
        failures = [f"{len(failures)} of {len(runs)} seeds: {why}" for why in failures]
    series_of_runs = _series_of_runs(rows)

    def verdict_on(
        judge: _Judge, metric: str, subset: str, first_layer: int
    ) -> tuple[Verdict, str, str]:
        try:
            if failures:
                raise CannotBeJudgedError(failures[0])
            of_runs = series_of_runs(metric, subset, first_layer)
            judgements = [
                judge(series, run.warm_up) for series, run in zip(of_runs, runs, strict=True)
            ]
        except CannotBeJudgedError as reason:
            return "cannot be judged", str(reason), str(reason)
        joined = over_seeds(judgements) if len(judgements) > 1 else judgements[0]
        return joined.verdict, by_what + joined.sentence, by_what + joined.evidence

    # the published convention, and the one in which no vector is compared with its own repeat
    clouds = ["all", _subset_without_repeats(rows)]
    judged = []
    for name, criterion, judge, metric, subsets in (
        ("bell", BELL, bell, "anisotropy", SUBSETS),
        ("uniform", UNIFORM, uniform, "anisotropy", SUBSETS),
        ("growth", GROWTH, growth, "anisotropy", SUBSETS),
        ("dimension", DIMENSION, dimension, "two_nn", clouds),
    ):
        for subset in filter(None, subsets):
            verdict, sentence, evidence = verdict_on(judge, metric, subset, first_layer=1)
            # what the first layer is, is a convention: a verdict that hangs on it is weak
            with_embeddings, *_ = verdict_on(judge, metric, subset, first_layer=0)
            judged.append(
                Finding(
                    name=name,
                    subset=subset,
                    title=f"{MEANINGS[name]}, {subset}",
                    criterion=criterion,
                    verdict=verdict,
                    sentence=sentence,
                    evidence=evidence,
                    with_embeddings=with_embeddings,
                )
            )
    return judged


def _series_of_runs(
    runs: Sequence[pd.DataFrame],
) -> Callable[[str, str, int], list[MetricSeries]]:
    """Return a function that gives the series of all runs by metric, subset and first layer, each
    made once: several criteria are about the same series."""

    @cache
    def series_of_runs(metric: str, subset: str, first_layer: int) -> list[MetricSeries]:
        of_runs = [series_of(rows, metric, subset) for rows in runs]
        if not all(series.steps for series in of_runs):
            raise CannotBeJudgedError(f"{metric} was not measured on {subset}")
        return [series.from_layer(first_layer) for series in of_runs]

    return series_of_runs


def _judged_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the measurements that the findings are about, with the columns that these need."""
    is_judged = _is_judged(frame)
    # the other columns are many, and copied by each selection of rows
    columns = [*_MEASURED, *({"design"} & set(frame))]
    judged = frame.loc[is_judged, columns] if is_judged.any() else frame
    return _of_judged(measurements(judged))


def _of_judged(rows: pd.DataFrame) -> pd.DataFrame:
    """Return of measurements those that the findings are about, with the columns that these
    need."""
    columns = [*COLUMNS, *({"design", "std"} & set(rows))]
    return with_bands(rows.loc[_is_judged(rows), columns]).loc[:, COLUMNS]


def _is_judged(frame: pd.DataFrame) -> np.ndarray:
    """Return which rows are measurements that findings are about, shape (n_rows,), bool."""
    of_metrics = [has_text(frame, "metric", metric) for metric in JUDGED]
    return np.logical_or.reduce(of_metrics) & frame["layer"].notna().to_numpy()


def _has_bands(frame: pd.DataFrame) -> bool:
    """Return whether judged values have the bands of the published design."""
    if "design" not in frame:
        return False
    return bool((has_bands(frame).to_numpy(bool) & _is_judged(frame)).any())


def _end_of_warm_up(frame: pd.DataFrame) -> float | None:
    """Return the first step at which the learning rate was highest; None where it is not known."""
    rates = scalar(frame, LEARNING_RATE)
    return None if rates.empty else float(rates.index[int(rates.to_numpy().argmax())])


def _subset_without_repeats(runs: Sequence[pd.DataFrame]) -> str | None:
    """Return the subset of which the dimension is judged beside that of all vectors; None where
    none was measured in all runs."""
    has_value: dict[str, bool] = {}
    for subset in DISTINCT:
        of_runs = [of_metric(rows, "two_nn", subset)["value"] for rows in runs]
        if all(map(len, of_runs)):
            has_value[subset] = all(values.notna().any() for values in of_runs)
    return without_repeats(has_value)


def _shared_cells(runs: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return the rows at the steps and layers that all runs have, without the values that one of
    them lacks; the spread over seeds takes the place of their standard errors."""
    cell = ["metric", "subset", "step", "layer"]
    rows = concatenated([rows.assign(seed=seed) for seed, rows in enumerate(runs)])
    cells = rows.assign(known=np.isfinite(rows["value"])).groupby(cell, observed=True)["known"]
    is_shared = cells.transform("size") == len(runs)
    values = rows["value"].where(cells.transform("sum") == len(runs))
    # errors of 0 and two batches let each effect be computed; its own interval is not used
    shared = rows.assign(value=values, std_error=0.0, n_batches=2).loc[is_shared]
    return [shared.loc[shared["seed"].eq(seed)] for seed in range(len(runs))]


def _failure(frame: pd.DataFrame) -> str | None:
    """Return why a run cannot be judged: it was not measured on text, or its training failed
    according to its stored losses; None if it can."""
    if "design" in frame and bool(frame["design"].isin(INPUT_DESIGNS).any()):
        return "measured on other inputs than text, which the finding is about"
    losses = scalar_rows(frame, LOSS, ["step", "value"])["value"].to_numpy(float)
    if not len(losses):
        return None
    last = float(losses[-1])
    lowest = float(np.min(losses, where=np.isfinite(losses), initial=math.inf))
    if not math.isfinite(last):
        return f"the training failed: its last stored loss is {last}"
    # of a loss that is negative somewhere a share says nothing
    if 0 < lowest < last / (1 + FAILED):
        return (
            f"the loss rose again: its last stored value, {number_text(last)}, is "
            f"{last / lowest - 1:.0%} above the lowest"
        )
    return None
