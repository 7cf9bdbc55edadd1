"""Published values in the tables of studies: run what a recipe asks for, and judge the cells."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.suites import PublishedModel
from repdyn.reading import file_name
from repdyn.recipes.criteria import Cell
from repdyn.recipes.recipe import Recipe
from repdyn.utils.arguments import ModelOptions
from repdyn.utils.files import write_atomically

_OPTIONS = "options.json"


def run_studies(
    recipe: Recipe, models: Sequence[PublishedModel], folder: Path, loading: ModelOptions, given: Mapping[str, Any]
) -> list[str]:
    """Run each study of a recipe on each model, unless its tables are in its folder; return why some were not studied.

    ``given`` options take the place of the recipe's, for the studies that have them.
    """
    problems = []
    for (kind, asked), model in product(recipe.studies.items(), models):
        study = getattr(import_module(f"repdyn.studies.{kind}"), kind)
        takes = inspect.signature(study).parameters
        options = asked | {name: value for name, value in given.items() if name in takes}
        output = _folder(folder, kind, model.run)
        if _options(output) == options:
            continue
        try:
            study([model.repository or model.run], output=output, loading=loading, **options)
        except (CheckpointError, ValueError, OSError) as error:
            problems.append(f"{kind} of {model.run}: {error}")
            continue
        # written last: without it the study is run again
        write_atomically(
            output / _OPTIONS, lambda path, done=options: path.write_text(json.dumps(done), encoding="utf-8")
        )
    return problems


def table_of(recipe: Recipe, cell: Cell, folder: Path | None, run: str) -> tuple[pd.DataFrame | str, tuple[str, ...]]:
    """Return the table of a published value as measured on a model, or why there is none, and the study's deviations.

    These are the options of the finished study that are not those of the recipe.
    """
    if folder is None:
        return "the studies were not run", ()
    output, asked = _folder(folder, cell.study, run), recipe.studies[cell.study]
    if (done := _options(output)) is None:
        return f"not studied: repdyn study {cell.study}", ()
    found = sorted(output.rglob(f"{cell.table}.csv"))
    if len(found) != 1:
        return f"the study has no table {cell.table}.csv" if not found else "has several stacks of blocks", ()
    names = [name for name in asked | done if done.get(name) != asked.get(name)]
    differing = (f"{name} {done.get(name, 'default')}, not {asked.get(name, 'the default')}" for name in names)
    return pd.read_csv(found[0], keep_default_na=False, na_values=[""]), tuple(differing)


def _folder(folder: Path, kind: str, run: str) -> Path:
    """Return the folder of a study of a model."""
    return folder / kind / file_name(run)


def _options(output: Path) -> dict[str, Any] | None:
    """Return the options of a finished study; None where none is finished."""
    path = output / _OPTIONS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
