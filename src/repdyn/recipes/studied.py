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
    """Run each study of a recipe on each model, unless its tables are in the folder.

    Args:
        recipe: its studies.
        models: on the hub or on this machine.
        folder: of the tables and figures, one folder for each study and model in it.
        loading: how models are loaded.
        given: options in place of the recipe's, for the studies that have them.

    Returns:
        Why some models were not studied.
    """
    problems = []
    for (kind, asked), model in product(recipe.studies.items(), models):
        study = getattr(import_module(f"repdyn.studies.{kind}"), kind)
        takes = inspect.signature(study).parameters
        options = asked | {name: value for name, value in given.items() if name in takes}
        output = folder_of(folder, kind, model)
        if options_of(output) == options:
            continue
        try:
            study([model.repository or model.run], output=output, loading=loading, **options)
        except (CheckpointError, ValueError, OSError) as error:
            problems.append(f"{kind} of {model.run}: {error}")
            continue
        # written last: without it the study is run again
        write_atomically(output / _OPTIONS, lambda path, done=options: path.write_text(json.dumps(done)))
    return problems


def folder_of(folder: Path, kind: str, model: PublishedModel) -> Path:
    """Return the folder of a study of a model."""
    return folder / kind / file_name(model.run)


def options_of(output: Path) -> dict[str, Any] | None:
    """Return the options of a finished study; None where none is finished."""
    path = output / _OPTIONS
    return json.loads(path.read_text()) if path.is_file() else None


def table_of(cell: Cell, folder: Path, model: PublishedModel) -> pd.DataFrame | str:
    """Return the table of a published value as measured on a model, or why there is none."""
    output = folder_of(folder, cell.study, model)
    if options_of(output) is None:
        return f"not studied: repdyn study {cell.study}"
    found = sorted(output.rglob(f"{cell.table}.csv"))
    if len(found) != 1:
        return f"the study has no table {cell.table}.csv" if not found else "has several stacks of blocks"
    return pd.read_csv(found[0], keep_default_na=False, na_values=[""])


def changed_options(recipe: Recipe, kind: str, folder: Path, model: PublishedModel) -> tuple[str, ...]:
    """Return where the options of a finished study differ from those of the recipe."""
    done, asked = options_of(folder_of(folder, kind, model)) or {}, recipe.studies[kind]
    names = [name for name in {**asked, **done} if done.get(name) != asked.get(name)]
    return tuple(f"{name} {done.get(name, 'default')}, not {asked.get(name, 'the default')}" for name in names)
