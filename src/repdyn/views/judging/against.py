"""What is said of a run beside its baselines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from repdyn.utils.numbers import number_text
from repdyn.views.judging.baselines import (
    ENOUGH_FOR_LEVEL,
    LEVEL,
    OF_LOSS,
    Deviation,
    Standing,
    standing_of,
)
from repdyn.views.judging.insight import Insight, report_link
from repdyn.views.judging.settings import settings_statements
from repdyn.views.tables.frames import LOSS_TITLES
from repdyn.views.tables.runs import MeasuredRun, positions_by_step
from repdyn.views.tables.style import metric_title, short_subset_title
from repdyn.views.tables.words import layer_names


def baseline_statements(run: MeasuredRun) -> Iterator[Insight]:
    """Yield what is said of a run beside its baselines; nothing without them.

    Raises:
        ValueError: run and baselines have nothing in common.
    """
    if run.baselines:
        yield _statement(run, run.baselines)
        yield from _different_settings(run, run.baselines)


def _different_settings(run: MeasuredRun, baselines: Sequence[MeasuredRun]) -> Iterator[Insight]:
    for statement in settings_statements([run, *baselines]):
        sentence = statement.sentence.replace("These runs differ", "Run and baselines differ", 1)
        yield replace(statement, kind="settings of baselines", sentence=sentence)


def _statement(run: MeasuredRun, baselines: Sequence[MeasuredRun]) -> Insight:
    """Return in one sentence whether a run is unlike its baselines, where, since when, by how much,
    and what that is worth.
    """
    standing = standing_of(run, baselines)
    n_baselines = len(baselines)
    evidence: dict[str, float | str] = {
        "p": standing.p,
        "lowest_p": 1 / (n_baselines + 1),
        "n_baselines": float(n_baselines),
        "score": float(standing.scores[0]),
        "largest_score_of_baselines": float(standing.scores[1:].max()),
    }
    if standing.lost is not None:
        return _lost(standing, run, evidence)
    deviation = standing.deviation
    if deviation is None:
        n_as_far = int(np.sum(standing.scores[1:] >= standing.scores[0]))
        lie = "lies" if n_as_far == 1 else "lie"
        sentence = (
            f"Like its {n_baselines} baselines: {n_as_far} of them {lie} as far from the others or "
            f"further (p = {standing.p:.2g})."
        )
        return Insight("note", "baselines", sentence, evidence=evidence, weight=1.0)
    at_run, *_ = positions_by_step([run, *baselines])
    since = _step_of(deviation.since, at_run)
    furthest_at = _step_of(deviation.furthest_at, at_run)
    metric, subset = deviation.key
    is_loss = subset == OF_LOSS
    of_place = {"value": deviation.value, "low": deviation.low, "high": deviation.high}
    return Insight(
        severity="watch" if standing.is_unlike else "note",
        kind="baselines",
        sentence=f"{_where(deviation, since, furthest_at)} ({_worth(standing, n_baselines)}).",
        metric=None if is_loss else metric,
        subset=None if is_loss else subset,
        stack=run.stack,
        layers=() if is_loss else deviation.layers,
        steps=tuple(sorted({since, furthest_at})),
        evidence={
            **evidence,
            **of_place,
            "ratio": deviation.ratio,
            "since": float(since),
            **({"loss": metric} if is_loss else {"layer": deviation.layer}),
        },
        weight=1.0,
        link=report_link(run.name, step=furthest_at),
    )


def _lost(standing: Standing, run: MeasuredRun, evidence: Mapping[str, float | str]) -> Insight:
    """Return the statement on a run whose loss is no number."""
    assert standing.lost is not None
    loss, since = standing.lost
    n_baselines = len(standing.scores) - 1
    return Insight(
        severity="watch",
        kind="baselines",
        sentence=(
            f"The {LOSS_TITLES[loss]} is no number at step {since:,}, which it never is in the "
            f"{n_baselines} baselines."
        ),
        stack=run.stack,
        steps=(since,),
        evidence={**evidence, "since": float(since), "loss": loss},
        weight=1.0,
        link=report_link(run.name, step=since),
    )


def _where(deviation: Deviation, since: int, furthest_at: int) -> str:
    metric, subset = deviation.key
    low = number_text(deviation.low)
    high = number_text(deviation.high)
    if subset == OF_LOSS:
        title = LOSS_TITLES[metric]
        what = f"{title[0].upper()}{title[1:]} leaves the baselines"
        where = ""
    else:
        title = f"{metric_title(metric)} ({short_subset_title(subset)})"
        what = f"{title} leaves the baselines in {layer_names(deviation.layers)}"
        where = f" in layer {deviation.layer}"
    return (
        f"{what} since step {since:,}, its score {number_text(deviation.ratio)} times the next "
        f"one; at step {furthest_at:,} it is {number_text(deviation.value)}{where}, theirs "
        f"{low} to {high}"
    )


def _worth(standing: Standing, n_baselines: int) -> str:
    """Return how often a run like its baselines would be as far, and how low that can be."""
    lowest = 1 / (n_baselines + 1)
    said = f"p = {standing.p:.2g}"
    if standing.is_unlike:
        return f"unlike its {n_baselines} baselines, {said}; the lowest possible is {lowest:.2g}"
    return (
        f"{said}, not lower with {n_baselines} baselines: 1 in {n_baselines + 1} sound runs is "
        f"furthest; {ENOUGH_FOR_LEVEL} can show {LEVEL:g}"
    )


def _step_of(position: float, at_run: Mapping[int, float]) -> int:
    """Return the first measured step of the run at a position or after it."""
    return min(step for step, at in at_run.items() if at >= position)
