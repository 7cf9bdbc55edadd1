"""Measure what is missing of the models of the papers, and write what belongs into the repository.

  python -m experiments.public_rows --list             # what is missing, and how many GB it is
  python -m experiments.public_rows                    # within 60 GB of downloads and 3 hours
  python -m experiments.public_rows --gigabytes 20 --hours 1 --device cuda

A task of the plan, experiments/plans/public_rows.yaml, is a sweep by the paper's design, whose rows
go to docs/public_models/rows, or a recipe of studies, of which the tables that it judges go to
docs/public_models/studies. Tasks that do not fit into what is left of the downloads are left out,
and named; at the end of the time the current task is interrupted. The same command continues: what
is measured is neither downloaded nor measured again. Options that are not known here, such as
--device, go to each command. CONTRIBUTING.md says how to hand in what was written.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from threading import Timer
from typing import Any

import yaml
from huggingface_hub import HfApi

from repdyn.activations import file_name
from repdyn.cli.main import main as run_command
from repdyn.lab.recipes.cells import Cell
from repdyn.lab.recipes.evaluation import OPTIONS
from repdyn.lab.recipes.recipe import Recipe, find_models_of, find_recipe
from repdyn.utils.files import write_atomically

PLAN = Path(__file__).parent / "plans" / "public_rows.yaml"
ROWS = Path("docs/public_models/rows")
STUDIES = Path("docs/public_models/studies")
WORK = Path("runs/public_rows")
"""What is not handed in: all tables and figures of the studies."""
SOURCE = "source.json"
"""Which checkpoint a study is of, and by which versions it was measured."""
PACKAGES = ("repdyn", "torch", "transformers")
_GIGABYTE = 1e9


@dataclass(frozen=True, kw_only=True)
class Task:
    """A sweep of models, or a recipe of studies."""

    about: str
    gigabytes: float
    """What it downloads, by the plan."""
    models: list[str] = field(default_factory=list)
    revisions: str = "all"
    recipe: str = ""

    @property
    def name(self) -> str:
        return self.recipe or ", ".join(self.models)

    def command(self, options: Sequence[str], rows: Path, work: Path) -> list[str]:
        """Return the arguments of the command that measures it."""
        if self.recipe:
            return ["reproduce", self.recipe, "--store", str(work / self.recipe), *options]
        swept = ["--revisions", self.revisions, "--design", "paper", "--store", str(rows)]
        return ["sweep", "--suite", *self.models, *swept, *options]


def read_plan(path: Path = PLAN) -> list[Task]:
    """Return the tasks of a plan in their order."""
    return [Task(**task) for task in yaml.safe_load(path.read_text(encoding="utf-8"))]


def missing_of(task: Task, options: Sequence[str], rows: Path, work: Path) -> tuple[int, float]:
    """Return how many checkpoints of a task are not measured, and how many GB these are.

    Raises:
        SystemExit: the hub cannot say.
    """
    command = task.command(options, rows, work)
    if task.recipe:
        models = [model.name for model in _waiting_models(find_recipe(task.recipe), work)]
        if not models:
            return 0, 0.0
        command = ["sweep", "--suite", *models, "--store", str(work / "sizes"), *options]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        run_command([*command, "--dry-run", "--json"])
    plans = json.loads(output.getvalue())
    n_waiting = sum(len(plan["waiting"]) for plan in plans)
    return n_waiting, sum(plan["download_bytes"] for plan in plans) / _GIGABYTE


def _waiting_models(recipe: Recipe, work: Path) -> list[Any]:
    """Return the models of a recipe of which a study is not finished."""
    return [
        model
        for model in find_models_of(recipe.models)
        if any(
            not (work / recipe.name / study / file_name(model.run) / OPTIONS).is_file()
            for study in recipe.studies
        )
    ]


def measure_parts(
    tasks: Sequence[Task],
    options: Sequence[str],
    *,
    gigabytes: float,
    hours: float,
    folder: Path = Path(),
) -> list[str]:
    """Measure tasks one after another within a limit of downloads and of time, and return what is
    left out, with the reason.

    Args:
        options: of each command.
        folder: the checkout into which everything is written.
    """
    rows = folder / ROWS
    work = folder / WORK
    end = time.monotonic() + 3600 * hours
    left = gigabytes
    left_out = []
    for task in tasks:
        if time.monotonic() >= end:
            left_out.append(f"{task.name}: the time is over")
            continue
        try:
            n_waiting, size = missing_of(task, options, rows, work)
        except SystemExit:
            left_out.append(f"{task.name}: the hub does not say what it would download")
            continue
        if n_waiting and size > left:
            left_out.append(f"{task.name}: {size:.1f} GB, where {left:.1f} are left")
            continue
        if n_waiting:
            print(f"{task.name}: {n_waiting} checkpoints, {size:.1f} GB", flush=True)
            left -= size
            problem = _measure(task.command(options, rows, work), end)
            if problem and not task.recipe:
                left_out.append(f"{task.name}: {problem}")
        if task.recipe:
            left_out += hand_in(find_recipe(task.recipe), work, folder / STUDIES)
    return left_out


def _measure(command: list[str], end: float) -> str:
    """Run a command until it is done or the time is over, and return what was wrong with it.

    What is measured by then is stored, since an interrupted command can be continued.
    """
    timer = Timer(max(0.0, end - time.monotonic()), signal.raise_signal, [signal.SIGINT])
    timer.daemon = True
    timer.start()
    try:
        run_command(command)
    except KeyboardInterrupt:
        if time.monotonic() < end:  # someone else ends the script
            raise
        return "interrupted, since the time is over"
    except SystemExit as stop:
        return f"exit status {stop.code}; its lines above say why" if stop.code else ""
    finally:
        timer.cancel()
    return ""


def hand_in(recipe: Recipe, work: Path, studies: Path) -> list[str]:
    """Copy the tables that a recipe judges, of each model whose study is finished, with where they
    are from; return what is not there."""
    problems = []
    for study, model in _studies_of(recipe):
        measured = work / recipe.name / study / file_name(model.run)
        folder = studies / recipe.name / study / file_name(model.run)
        if not (measured / OPTIONS).is_file():
            problems.append(f"{recipe.name}: the study {study} of {model.run} is not finished")
            continue
        if (folder / SOURCE).is_file():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for name in judged_tables(recipe, study):
            for table in measured.rglob(f"{name}.csv"):
                shutil.copyfile(table, folder / table.name)
        shutil.copyfile(measured / OPTIONS, folder / OPTIONS)
        repository = model.repository or model.run  # of finished models the suites give the run
        commit = HfApi().model_info(repository).sha
        source = {"checkpoint": f"{repository}@{commit}", "date": f"{datetime.now(UTC):%F}"}
        source |= {f"{package}_version": version(package) for package in PACKAGES}
        content = json.dumps(source, indent=1) + "\n"
        # written last: without it the tables are copied again
        write_atomically(folder / SOURCE, lambda path, text=content: path.write_text(text))
    return problems


def judged_tables(recipe: Recipe, study: str) -> list[str]:
    """Return the tables of a study that a recipe judges."""
    cells = [published.criterion for published in recipe.published]
    names = [cell.table for cell in cells if isinstance(cell, Cell) and cell.study == study]
    return list(dict.fromkeys(names))


def _studies_of(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    for study in recipe.studies:
        for model in find_models_of(recipe.models):
            yield study, model


def print_list(tasks: Sequence[Task], options: Sequence[str], folder: Path = Path()) -> None:
    """Print what is missing of each task and how many GB it is, by the hub or else by the plan."""
    total = 0.0
    for task in tasks:
        try:
            n_waiting, size = missing_of(task, options, folder / ROWS, folder / WORK)
            what = f"{n_waiting:3} checkpoints, {size:5.1f} GB" if n_waiting else "measured"
        except SystemExit:
            size = task.gigabytes
            what = f"{size:.1f} GB by the plan, since the hub does not say"
        total += size
        print(f"{task.name}: {what}  ({task.about})")
    print(f"together {total:.1f} GB")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print what is missing, and its size")
    parser.add_argument("--gigabytes", type=float, default=60.0, help="of downloads, at most")
    parser.add_argument("--hours", type=float, default=3.0, help="after which it stops")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="recipes and models")
    settings, options = parser.parse_known_args(arguments)
    tasks = read_plan()
    if settings.only:
        names = set(settings.only)
        tasks = [task for task in tasks if names & {task.recipe, *task.models}]
        if not tasks:
            parser.error(
                f"expected recipes or models of {PLAN.name}, got {' '.join(settings.only)}"
            )
    if settings.list:
        print_list(tasks, options)
        return
    left_out = measure_parts(tasks, options, gigabytes=settings.gigabytes, hours=settings.hours)
    for line in left_out:
        print(f"left out: {line}")
    print(f"hand in {ROWS} and {STUDIES}, as CONTRIBUTING.md says")
    sys.exit(1 if left_out else 0)


if __name__ == "__main__":
    main()
