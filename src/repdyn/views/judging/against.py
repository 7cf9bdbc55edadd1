"""What is said of a run beside its baselines, and which runs cannot be its baselines."""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from repdyn.utils.printing import shorten_list
from repdyn.views.judging.baselines import (
    ENOUGH_FOR_LEVEL,
    FEWEST,
    LEVEL,
    Deviation,
    Standing,
    positions_by_step,
    standing_of,
)
from repdyn.views.judging.comparison import settings_statements
from repdyn.views.judging.insight import Insight, RunInsights, report_link
from repdyn.views.judging.run import DescribedRun, ranked
from repdyn.views.tables.runs import MeasuredRun, differences
from repdyn.views.tables.style import metric_title, number_text, short_subset_title
from repdyn.views.tables.words import layer_names

_NAMES_OF_TOKENIZER = ("tokenizer", "tokenizer_name", "tokenizer_name_or_path", "data.tokenizer")
"""Settings in which trainings name their tokenizer."""


def insights_against(run: DescribedRun, baselines: Sequence[DescribedRun]) -> RunInsights:
    """Return the insights of a run with what is said of it beside its baselines.

    Raises:
        ValueError: fewer than three baselines; one that failed or is not comparable; nothing in
            common.
    """
    require_comparable(run, baselines)
    statements = [_statement(run, baselines), *_different_settings(run, baselines)]
    described = run.insights
    return replace(described, statements=tuple(ranked([*described.statements, *statements])))


def require_comparable(run: DescribedRun, baselines: Sequence[DescribedRun]) -> None:
    """Refuse baselines of which a band would say nothing of this run.

    Raises:
        ValueError: how many there are, or what differs in which of them.
    """
    if len(baselines) < FEWEST:
        raise ValueError(
            f"expected at least {FEWEST} baselines for {run.name}, got {len(baselines)}; give more "
            "sound runs of the same recipe"
        )
    if failed := [other.name for other in baselines if other.insights.status == "failed"]:
        raise ValueError(
            f"expected sound baselines, got {', '.join(failed)} with the status failed; leave them "
            "out"
        )
    reasons = (_difference(run, other) for other in baselines)
    if different := next(filter(None, reasons), None):
        raise ValueError(
            f"expected baselines that compare with {run.name}, got {different}; leave them out, or "
            "measure them in the same way"
        )


def _difference(run: DescribedRun, other: DescribedRun) -> str | None:
    """Return what makes a run no baseline, other values of which mean other things; None if
    nothing does.
    """
    facts = (
        ("tokenizer", _tokenizer(run), _tokenizer(other)),
        ("model", _model(run), _model(other)),
        ("stack", run.stack, other.stack),
        ("number of parameters", run.parameters, other.parameters),
        ("layers", _layers(run), _layers(other)),
        ("probe", run.probe[:8], other.probe[:8]),
    )
    for what, of_run, of_other in facts:
        if of_run != of_other:
            return f"{other.name} with another {what}: {of_other}, not {of_run}"
    return differences([run, other])


def _tokenizer(run: MeasuredRun) -> str | None:
    return next((run.settings[name] for name in _NAMES_OF_TOKENIZER if name in run.settings), None)


def _model(run: MeasuredRun) -> str:
    return ", ".join(map(str, run.rows["model"].unique()))


def _layers(run: MeasuredRun) -> str:
    return layer_names(sorted(map(int, run.rows["layer"].unique())))


def _different_settings(run: DescribedRun, baselines: Sequence[DescribedRun]) -> Iterator[Insight]:
    for statement in settings_statements([run, *baselines]):
        sentence = statement.sentence.replace("These runs differ", "Run and baselines differ", 1)
        yield replace(statement, kind="settings of baselines", sentence=sentence)


def _statement(run: DescribedRun, baselines: Sequence[DescribedRun]) -> Insight:
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
    of_place = {"value": deviation.value, "low": deviation.low, "high": deviation.high}
    return Insight(
        severity="watch" if standing.is_unlike else "note",
        kind="baselines",
        sentence=f"{_where(deviation, since, furthest_at)} ({_worth(standing, n_baselines)}).",
        metric=metric,
        subset=subset,
        stack=run.stack,
        layers=deviation.layers,
        steps=tuple(sorted({since, furthest_at})),
        evidence={**evidence, **of_place, "ratio": deviation.ratio, "layer": deviation.layer},
        weight=1.0,
        link=report_link(run.name, metric=metric, subset=subset, step=furthest_at),
    )


def _where(deviation: Deviation, since: int, furthest_at: int) -> str:
    metric, subset = deviation.key
    layers = layer_names(deviation.layers)
    low = number_text(deviation.low)
    high = number_text(deviation.high)
    return (
        f"{metric_title(metric)} ({short_subset_title(subset)}) leaves the baselines in {layers} "
        f"since step {since:,}, its score {deviation.ratio:.3g} times the next one; at "
        f"step {furthest_at:,} it is {number_text(deviation.value)} in layer {deviation.layer}, "
        f"theirs {low} to {high}"
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


def named_like(names: Iterable[str], patterns: Sequence[str] | None) -> list[str]:
    """Return the names that match a pattern, with * for any characters; all, without patterns.

    Raises:
        ValueError: a pattern that matches none.
    """
    names = list(names)
    if patterns is None:
        return names
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(
                f"expected a pattern of baselines, got {pattern!r}, which none is named like; they "
                f"are {shorten_list(names)}"
            )
    return [name for name in names if any(fnmatch.fnmatchcase(name, one) for one in patterns)]


def same_part(run: DescribedRun, stacks: Sequence[DescribedRun]) -> DescribedRun:
    """Return the part of a baseline that was measured on the run's probe and is of its stack; any,
    where there is none.
    """
    return min(stacks, key=lambda other: (other.probe != run.probe, other.stack != run.stack))
