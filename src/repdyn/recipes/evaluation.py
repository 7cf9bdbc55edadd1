"""Judge the published values of a paper by the measurements in a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import pandas as pd

from repdyn.recipes.criteria import Criterion
from repdyn.recipes.measured import Measured, NotMeasuredError
from repdyn.recipes.recipe import Published, Recipe, find_models_of
from repdyn.store import Store
from repdyn.tables.designs import design_names
from repdyn.tables.effects import CannotBeJudgedError, Verdict
from repdyn.tables.frames import by_stack
from repdyn.tables.selection import is_measured, known_runs, select

Reproduced: TypeAlias = Literal["reproduced", "not reproduced", "cannot be judged", "not run"]
REPRODUCED: dict[Verdict, Reproduced] = {
    "shown": "reproduced",
    "not shown": "not reproduced",
    "cannot be judged": "cannot be judged",
}
"""The outcome of a published value, by the verdict on its criterion."""


@dataclass(frozen=True)
class Outcome:
    """The result of comparing a published value with the measurements of one model."""

    published: Published
    run: str
    """Name of the run; "" for a value of several models, or of none."""
    verdict: Reproduced
    ours: str
    """The measured numbers; or why it was not run, or cannot be judged."""


def evaluate(
    recipe: Recipe,
    store: Store,
    models: Sequence[str] | None = None,
    probe: str | None = None,
    runs: Sequence[str] | None = None,
) -> tuple[list[Outcome], list[Measured]]:
    """Judge each published value of a recipe on each of the models that it is about.

    Args:
        recipe: its criteria.
        store: a sweep's results, of which the values by the recipe's sampling design count.
        models: names, as a recipe has them, to use in place of the recipe's.
        probe: hash, or the beginning of one, of the only probe to use. Models that were not measured on it are not run.
        runs: names of runs in the store, on each of which every published value is judged, whatever models it is about;
            None for the models.

    Returns:
        The outcomes in the order of the recipe, and what was measured of its models.

    Raises:
        ValueError: an unknown model or run, a probe that no model was measured on, or a run measured on several probes
            of the design.
    """
    about = find_models_of(models or recipe.models) if runs is None else ()
    names = [model.run for model in about] if runs is None else runs
    if runs:
        known_runs(store, runs)
    measured = {name: _with_control(recipe, store, _measured(recipe, store, name, probe)) for name in names}
    if probe is not None and not any(isinstance(each, Measured) for each in measured.values()):
        raise ValueError(
            f"expected the beginning of the hash of a probe of {recipe.cloud.design} design, got {probe!r}"
        )
    outcomes = []
    for published in recipe.published:
        chosen = [model.run for model in about if published.is_about(model)] if runs is None else list(runs)
        outcomes += _outcomes(published, chosen, measured)
    return outcomes, [each for each in measured.values() if isinstance(each, Measured)]


def count_verdicts(outcomes: Sequence[Outcome]) -> str:
    """Return the numbers of the verdicts in words, such as "2 reproduced, 1 not run"."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    order = (*REPRODUCED.values(), "not run")
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in order if counts[verdict])


def _by_design(store: Store, run: str, design: str) -> dict[str, pd.DataFrame]:
    """Return the measured rows of a run by the hash of each probe of a design."""
    return {
        probe: rows
        for (_, probe), rows in select(store, [run]).items()
        if is_measured(rows) and design in design_names(rows)
    }


def _with_control(recipe: Recipe, store: Store, measured: Measured | str) -> Measured | str:
    """Return measurements with those of the same run on the recipe's control, if there is one probe of it."""
    if isinstance(measured, str) or recipe.cloud.control is None:
        return measured
    found = [*_by_design(store, measured.name, recipe.cloud.control).values()]
    control = Measured(measured.name, found[0], recipe.by_values) if len(found) == 1 else None
    return replace(measured, control=control)


def _measured(recipe: Recipe, store: Store, run: str, probe: str | None) -> Measured | str:
    """Return the measurements of a run by the recipe's design, or the reason why there are none."""
    if run not in store.runs():
        return "not in the store"
    found = _by_design(store, run, recipe.cloud.design)
    by_design = [rows for name, rows in found.items() if name.startswith(probe or "")]
    if not by_design:
        return f"no checkpoint measured by the {recipe.cloud.design} design"
    if len(by_design) > 1:
        hashes = ", ".join(str(rows["probe"].iloc[0]) for rows in by_design)
        raise ValueError(f"expected {run} on one probe, got {hashes}; choose one with --probe")
    stacks = by_stack(by_design[0])
    if len(stacks) > 1:
        return f"has {len(stacks)} stacks of blocks, and a recipe is about one"
    return Measured(run, by_design[0], by_values=recipe.by_values)


def _outcomes(published: Published, runs: Sequence[str], measured: dict[str, Measured | str]) -> list[Outcome]:
    if published.criterion is None:
        return [Outcome(published, "", "not run", published.not_run)]
    if not runs:
        return [Outcome(published, "", "not run", f"no model among {', '.join(published.models)}")]
    if published.criterion.over_models:
        together = [each for run in runs if isinstance(each := measured[run], Measured)]
        return [_judge(published, published.criterion, together, "")]
    found = [(run, measured[run]) for run in runs]
    return [
        Outcome(published, run, "not run", each)
        if isinstance(each, str)
        else _judge(published, published.criterion, [each], run)
        for run, each in found
    ]


def _judge(published: Published, criterion: Criterion, models: Sequence[Measured], run: str) -> Outcome:
    try:
        verdict, evidence = criterion.judge(models, published.metric)
    except NotMeasuredError as reason:
        return Outcome(published, run, "not run", str(reason))
    except CannotBeJudgedError as reason:
        return Outcome(published, run, "cannot be judged", str(reason))
    return Outcome(published, run, REPRODUCED[verdict], evidence)
