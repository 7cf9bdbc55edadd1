"""The published findings, judged on one run, or on the seeds of one model, by the criteria of docs/findings.md.

The stacks of a model are judged separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pandas as pd

from repdyn.probe.design import INPUTS
from repdyn.store.schema import LEARNING_RATE, LOSS
from repdyn.tables import criteria
from repdyn.tables.criteria import MEANINGS, PAPER, VERSION
from repdyn.tables.effects import CannotBeJudgedError, Judgement, Verdict, over_seeds
from repdyn.tables.frames import SUBSETS, measurements, metrics_of, scalar, subsets_of
from repdyn.tables.texts import concatenated

COLOURS: dict[Verdict, str] = {"shown": "cyan", "not shown": "default", "cannot be judged": "bright_black"}
"""Colours of verdicts in a terminal. A verdict is no judgement of the quality of a run."""

JUDGED = ("anisotropy", "two_nn")
"""The metrics that the findings are about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A published finding and what one run says about it."""

    name: str
    """A key of :data:`repdyn.tables.criteria.MEANINGS`."""
    subset: str
    """The token subset it is judged on."""
    title: str
    source: str
    criterion: str
    """The text of the criterion, with its numbers."""
    verdict: Verdict
    evidence: str
    """One line with the numbers behind the verdict, or why there is none."""
    version: str = VERSION
    """Version of the criteria."""


_OF_INPUTS = "measured on other inputs than text, which the finding is about"

_Judge: TypeAlias = Callable[[pd.DataFrame, str, str, float | None], Judgement]
"""Takes measurements, a metric, a subset and the step at which the warm-up ends."""


@dataclass(frozen=True, slots=True)
class _JudgedRun:
    """The data on which the findings of one run are judged."""

    rows: pd.DataFrame
    """Its measurements of the judged metrics."""
    warm_up: float | None
    """Step at which the warm-up ends; None if it is not known."""
    failure: str | None
    """Why it cannot be judged: its training failed, or it was not measured on text; None if it can."""

    @classmethod
    def of(cls, frame: pd.DataFrame) -> _JudgedRun:
        judged = frame["metric"].isin(JUDGED) & frame["layer"].notna()
        # the other columns are many, and copied by each selection of rows
        rows = measurements(frame.loc[judged] if bool(judged.any()) else frame)
        of_inputs = "design" in rows and bool((rows["design"] == INPUTS.name).any())
        failure = _OF_INPUTS if of_inputs else _failure(frame)
        return cls(rows.loc[:, criteria.COLUMNS], _warm_up(frame), failure)


def findings(frame: pd.DataFrame) -> list[Finding]:
    """Judge each published finding on one run.

    Args:
        frame: rows of one run, or of one stack if its model has several. The training losses among them decide whether
            the training failed, the learning rates when its warm-up ended.

    Returns:
        Seven findings: the two shapes of anisotropy over depth and its growth, each on all tokens and without sinks;
        rise and decline of the dimension.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none.
    """
    run = _JudgedRun.of(frame)
    return _judged(lambda judge, metric, subset: _judgement(judge, run, metric, subset), run.failure)


def findings_over_seeds(frames: Sequence[pd.DataFrame]) -> list[Finding]:
    """Judge each published finding on two or more seeds of one model: each effect by its interval over the seeds.

    The effects of each seed are those of :func:`findings`, at the steps that all seeds have and over the blocks that
    have a value in all of them. The intervals of single seeds, which are over probes, are not used.
    """
    runs = [_JudgedRun.of(frame) for frame in frames]
    failures = [run.failure for run in runs if run.failure]
    failure = f"{len(failures)} of {len(runs)} seeds: {failures[0]}" if failures else None
    rows = _shared_cells([run.rows for run in runs])
    shared = [replace(run, rows=of_run) for run, of_run in zip(runs, rows, strict=True)]

    def judgement(judge: _Judge, metric: str, subset: str) -> Judgement:
        return over_seeds([_judgement(judge, run, metric, subset) for run in shared])

    found = _judged(judgement, failure)
    return [replace(finding, evidence=f"over {len(runs)} seeds: {finding.evidence}") for finding in found]


def _shared_cells(runs: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return the rows at the steps and layers that all runs have, without the values that one of them lacks; the spread
    over seeds takes the place of their standard errors."""
    cell = ["metric", "subset", "step", "layer"]
    rows = concatenated([rows.assign(seed=seed) for seed, rows in enumerate(runs)], ignore_index=True)
    cells = rows.assign(known=np.isfinite(rows["value"])).groupby(cell, observed=True)["known"]
    is_shared = cells.transform("size") == len(runs)
    known = rows["value"].where(cells.transform("sum") == len(runs))
    known = rows.assign(value=known, std_error=0.0, n_batches=2).loc[is_shared]
    return [known.loc[known["seed"] == seed] for seed in range(len(runs))]


def _judged(judgement: Callable[[_Judge, str, str], Judgement], failure: str | None) -> list[Finding]:
    """Return the findings by how a criterion is judged on a metric and subset, and why the training failed."""
    found = []
    for name, criterion, judge, metric, subsets in (
        ("bell", criteria.BELL, criteria.bell, "anisotropy", SUBSETS),
        ("uniform", criteria.UNIFORM, criteria.uniform, "anisotropy", SUBSETS),
        ("growth", criteria.GROWTH, criteria.growth, "anisotropy", SUBSETS),
        ("dimension", criteria.DIMENSION, criteria.dimension, "two_nn", ("all",)),
    ):
        for subset in subsets:
            verdict, evidence = "cannot be judged", failure or ""
            if failure is None:
                try:
                    judged = judgement(judge, metric, subset)
                    verdict, evidence = judged.verdict, judged.evidence
                except CannotBeJudgedError as reason:
                    evidence = str(reason)
            title = f"{MEANINGS[name]}, {subset}"
            found.append(Finding(name, subset, title, PAPER, criterion, verdict, evidence))
    return found


def _judgement(judge: _Judge, run: _JudgedRun, metric: str, subset: str) -> Judgement:
    if metric not in metrics_of(run.rows) or subset not in subsets_of(run.rows, metric):
        raise CannotBeJudgedError(f"{metric} was not measured on {subset}")
    return judge(run.rows, metric, subset, run.warm_up)


def _failure(frame: pd.DataFrame) -> str | None:
    """Return why a training failed according to its stored losses; None if it did not."""
    of_loss = frame.loc[frame["layer"].isna() & (frame["metric"] == LOSS), ["step", "value"]]
    losses = of_loss.sort_values("step")["value"].to_numpy(float)
    if not len(losses):
        return None
    last, lowest = float(losses[-1]), float(np.min(losses, where=np.isfinite(losses), initial=math.inf))
    if not math.isfinite(last):
        return f"the training failed: its last stored loss is {last}"
    if 0 < lowest < last / (1 + criteria.FAILED):
        return f"the training failed: its last stored loss, {last:.4g}, is {last / lowest - 1:.0%} above the lowest"
    return None


def _warm_up(frame: pd.DataFrame) -> float | None:
    """Return the first step at which the learning rate was highest; None if none is stored."""
    rates = scalar(frame, LEARNING_RATE)
    return None if rates.empty else float(rates.index[int(rates.to_numpy().argmax())])
