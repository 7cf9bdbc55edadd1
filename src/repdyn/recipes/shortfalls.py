"""What a choice of models and checkpoints leaves unjudged, known before anything is downloaded."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

from repdyn.checkpoints.suites import PublishedModel
from repdyn.recipes.evaluation import models_for, stands_in
from repdyn.recipes.measured import Measured
from repdyn.recipes.recipe import Recipe


def shortfalls(recipe: Recipe, models: Sequence[PublishedModel], n_checkpoints: Mapping[str, int]) -> list[str]:
    """Return sentences on the published values that cannot be judged on a choice, or are judged on stand-ins.

    Args:
        recipe: the published values; those that it does not run are left out.
        models: the chosen models.
        n_checkpoints: the number of chosen checkpoints with weights of their own, by run; models that could not be
            listed are missing.
    """
    sentences: list[str] = []
    standing_in: dict[str, list[int]] = {}
    too_few: dict[str, dict[int, list[int]]] = {}
    for number, published in enumerate(recipe.published, start=1):
        criterion = published.criterion
        if criterion is None:
            continue
        chosen = models_for(recipe, published, models)
        if not chosen:
            sentences.append(f"published value {number} is not run: no model among {', '.join(published.models)}")
        elif criterion.over_models and len(chosen) < criterion.least_models:
            needed = f"{criterion.least_models} models, got {', '.join(model.name for model in chosen)}"
            sentences.append(f"published value {number} cannot be judged: it needs {needed}; choose more with --models")
        for model in chosen:
            if model.run in n_checkpoints and (text := stands_in(recipe, published, model)):
                standing_in.setdefault(text, []).append(number)
            if n_checkpoints.get(model.run, math.inf) < criterion.least_checkpoints:
                too_few.setdefault(model.run, {}).setdefault(criterion.least_checkpoints, []).append(number)
    sentences += [f"{text}: published value{_listed(numbers)}" for text, numbers in standing_in.items()]
    for run, needs in too_few.items():
        needed = " and ".join(f"{n} for value{_listed(numbers)}" for n, numbers in sorted(needs.items()))
        n = n_checkpoints[run]
        sentences.append(
            f"{run} has {n} chosen checkpoint{'s' * (n != 1)}, and needs {needed}; choose more with --revisions"
        )
    return sentences


def missing_metrics(recipe: Recipe, measured: Sequence[Measured]) -> list[str]:
    """Return a sentence on each model that lacks metrics of a recipe, with the options that measure them."""
    sentences = []
    for each in measured:
        if missing := [metric for metric in recipe.metrics if not each.has(metric)]:
            quoted = " ".join(shlex.quote(metric) for metric in recipe.metrics)
            sentences.append(
                f"{each.name} was not measured with {', '.join(missing)}; track them, or sweep its checkpoints with "
                f"--design {recipe.cloud.design} --metrics {quoted}"
            )
    return sentences


def _listed(numbers: Sequence[int]) -> str:
    return f"{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
