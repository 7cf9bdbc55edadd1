"""Statements on steps that are out of line with their neighbours: of the input embeddings, and of the geometry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from repdyn.diagnosis.insight import Insight
from repdyn.diagnosis.training import MAX_STEPS
from repdyn.store.scalars import EMBEDDING_NORM
from repdyn.tables.continuity import MIN_JUMP, Jump, Jumps, embeddings_out_of_line, losses_out_of_line
from repdyn.tables.frames import scalar
from repdyn.tables.numbers import number_text
from repdyn.tables.series import MetricSeries
from repdyn.tables.style import metric_title


def embedding_statements(frame: pd.DataFrame) -> Iterator[Insight]:
    """Yield the steps whose input embeddings are nearer to the first, or farther from them, than both neighbours'; of
    those in line, the steps where their median norm is not."""
    first, cosines = embeddings_out_of_line(frame)
    known = {jump.step for jump in cosines.found}
    if cosines.found:
        what = f"have a cosine of {{}} to those of step {first:,}, out of line with"
        yield _of_embeddings(what, "cosine", cosines.found)
    norms = losses_out_of_line(scalar(frame, EMBEDDING_NORM), may_turn=True)
    if others := [jump for jump in norms.found if jump.step not in known]:
        yield _of_embeddings("have a median norm of {}, out of line with", "norm", others)
    of_cosine = f"The cosine of the input embeddings to those of step {first:,}"
    yield from too_many_statements(cosines, of_cosine, "embeddings out of line")
    yield from too_many_statements(norms, "The median norm of the input embeddings", "embeddings out of line")


def geometry_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield the steps at which the mean of a metric over layers is out of line, by more than its interval."""
    of_mean = series.layer_mean
    mean = of_mean.mean.dropna()
    judged = losses_out_of_line(mean, of_mean.margin / MIN_JUMP, may_turn=True)
    what = f"{metric_title(series.metric)}, mean over layers,"
    yield from too_many_statements(judged, what, "geometry out of line", metric=series.metric, subset=series.subset)
    # before training, the geometry may be any
    found = [jump for jump in judged.found if not jump.is_end]
    if not found:
        return
    largest = found[0]
    sentence = (
        f"{what} is {number_text(largest.loss)} at step {largest.step:,}, "
        f"out of line with {neighbours_text(largest)}: a spike of the training, or the weights of another step."
        f"{others_text('The same holds at step', found)}"
    )
    yield Insight(
        "watch",
        "geometry out of line",
        sentence,
        metric=series.metric,
        subset=series.subset,
        steps=tuple(sorted(jump.step for jump in found)),
        evidence=_evidence("value", largest),
        weight=0.7,
    )


def too_many_statements(judged: Jumps, what: str, kind: str, **fields: Any) -> Iterator[Insight]:
    """Yield that the continuity of a quantity is not judged, if too many steps would be out of line."""
    if judged.are_too_many:
        sentence = (
            f"{what} would be out of line at more than a sixth of the steps: not judged, since nothing tells which "
            "steps are wrong."
        )
        yield Insight("note", kind, sentence, weight=0.3, **fields)


def _of_embeddings(what: str, name: str, found: Sequence[Jump]) -> Insight:
    largest = found[0]
    sentence = (
        f"The input embeddings of step {largest.step:,} {what.format(number_text(largest.loss))} "
        f"{neighbours_text(largest)}: the weights of another step.{others_text('So are those of step', found)}"
    )
    steps = tuple(sorted(jump.step for jump in found))
    evidence = _evidence(name, largest)
    return Insight("watch", "embeddings out of line", sentence, steps=steps, evidence=evidence, weight=0.75)


def neighbours_text(jump: Jump) -> str:
    """Return the values of the two neighbours of a step with their steps."""
    (before, value_before), (after, value_after) = jump.neighbours
    return f"{number_text(value_before)} at step {before:,} and {number_text(value_after)} at step {after:,}"


def others_text(beginning: str, found: Sequence[Jump]) -> str:
    """Return a sentence on the steps but the first; empty if there are none."""
    others = sorted(jump.step for jump in found[1:])
    if not others:
        return ""
    listed = ", ".join(f"{step:,}" for step in others[:MAX_STEPS]) + f" .. ({len(others)})" * (len(others) > MAX_STEPS)
    return f" {beginning}{'s' * (len(others) > 1)} {listed}."


def _evidence(name: str, jump: Jump) -> dict[str, float]:
    return {name: jump.loss, "before": jump.neighbours[0][1], "after": jump.neighbours[1][1], "jump": jump.size}
