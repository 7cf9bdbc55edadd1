"""The command ``repdyn reproduce``: repeat the measurements of a paper and compare them with its published values."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repdyn.utils.addresses import path_or_url
from repdyn.utils.arguments import SuggestingParser
from repdyn.utils.console import PrintableConsole
from repdyn.utils.names import printable
from repdyn.utils.records import add_record_options, print_records, wants_records

if TYPE_CHECKING:
    from repdyn.checkpoints.plan import ModelPlan
    from repdyn.recipes import Cloud, Outcome, Recipe
    from repdyn.recipes.measured import Measured
    from repdyn.store import Store

NOT_REPRODUCED = 1
_FILE_WIDTH = 200
_EXAMPLES = """examples:
  repdyn reproduce --list
  repdyn reproduce three-phases --dry-run        what would be downloaded
  repdyn reproduce three-phases --max-disk 20GB
  repdyn reproduce three-phases --models pythia-160m --revisions log
  repdyn reproduce three-phases --models pythia-160m --text builtin --sequence-length 80
  repdyn reproduce my_recipe.yaml --store sweeps
  repdyn reproduce three-phases --evaluate-only --json
  repdyn reproduce three-phases --evaluate-only --store runs/quickstart/TIME --runs    your own run

It can be stopped at any time; the same command continues it. Exit status: 0 every published value that the recipe
measures is reproduced; 1 one is not, cannot be judged or was not measured, or a checkpoint failed; 2 invalid arguments;
3 no network, or no space on the disk; 130 interrupted.
"""
_COLOURS = {"reproduced": "green", "not reproduced": "red", "cannot be judged": "yellow", "not run": "bright_black"}
_OF_RECIPE = (
    "list",
    "evaluate_only",
    "runs",
    "output",
    "name",
    "models",
    "hash",
    "store",
    "json",
    "csv",
    "dry_run",
    "revisions",
)


def main(arguments: Sequence[str], prog: str = "repdyn reproduce") -> None:
    """Sweep the checkpoints of a recipe, judge its published values, and write table, figure and page.

    Raises:
        ValueError, OSError: an unknown or invalid recipe, an unknown model, or a store without its measurements.
        SystemExit: with the status that --help explains.
    """
    options = build_parser(prog).parse_args(arguments)
    from repdyn.recipes import find_recipe, shipped_recipes

    if options.list:
        _print_recipes(list(shipped_recipes().values()), options)
        return
    if options.name is None:
        raise ValueError("expected the name of a recipe, or --list, got neither; see --help")
    if options.runs is not None and not options.evaluate_only:
        raise ValueError("expected --runs with --evaluate-only, got it alone; measured runs are judged, none is swept")
    recipe = find_recipe(options.name)
    store = options.store or Path("reproductions") / recipe.name
    from repdyn.store import find_store, open_store

    if options.evaluate_only:
        raise SystemExit(_evaluate(recipe, find_store(store), options))
    from repdyn.cli.sweep import leave

    failed = _sweep(recipe, store, options)
    if options.dry_run:
        leave(failed)
    if options.shard:
        print(f"when all shards are done: {prog} {options.name} --store {store} --evaluate-only", file=sys.stderr)
        leave(failed)
    leave(_evaluate(recipe, open_store(store), options) or failed)


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of the command."""
    from repdyn.cli.sweep import add_forward_options, add_running, add_text

    parser = SuggestingParser(
        prog=prog,
        usage=f"{prog} NAME [options]",
        description="Measure what a paper measured, and compare with what it published.",
        epilog=_EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="recipe, or YAML file of one")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--list", action="store_true", help="list the recipes, and exit")
    modes.add_argument(
        "--evaluate-only", action="store_true", help="judge what is in the store, without measuring anything"
    )
    modes.add_argument(
        "--dry-run", action="store_true", help="show what remains and what would be downloaded, and exit"
    )
    parser.add_argument(
        "--models", nargs="+", metavar="MODEL", help="other models: of suites, patterns, YAML files or hub repositories"
    )
    parser.add_argument(
        "--runs",
        nargs="*",
        metavar="RUN",
        help="with --evaluate-only: judge each published value on these runs of --store, or on all of them, whatever "
        "models it is about",
    )
    parser.add_argument("--revisions", help="other revisions, as for repdyn sweep (default: those of the recipe)")
    parser.add_argument("--store", type=path_or_url, help="measurements: folder or URL (default: reproductions/NAME)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="folder of page and figure (default: the store)"
    )
    parser.add_argument(
        "--probe", dest="hash", metavar="HASH", help="probe to judge, if the store has several of the design"
    )
    add_record_options(parser)
    add_text(
        parser.add_argument_group("sampling in place of the recipe's, which table and page state as a deviation"),
        "that of the recipe",
    )
    add_forward_options(parser.add_argument_group("measurement, as for repdyn sweep"))
    add_running(parser.add_argument_group("execution, as for repdyn sweep"))
    return parser


def _sweep(recipe: Recipe, store: Path, options: argparse.Namespace) -> int:
    """Measure the checkpoints of a recipe by each of its designs, or print the plan; return 1 if some failed, and exit
    if the sweep cannot continue."""
    from repdyn.checkpoints.options import SweepOptions
    from repdyn.cli.sweep import FAILED, leave, run, show_plans
    from repdyn.recipes import find_models_of, shortfalls

    cloud = _cloud(recipe, options)
    shared = {name: value for name, value in vars(options).items() if name not in _OF_RECIPE}
    described: dict[str, Any] = {
        "metrics": list(recipe.metrics),
        "revisions": options.revisions or recipe.revisions,
        "text": cloud.text,
        "sequence_length": cloud.sequence_length,
        "max_vectors": cloud.max_vectors,
        "store": store,
    }
    sweep_options = SweepOptions.of({**shared, **described})
    models = find_models_of(options.models or recipe.models)
    failed = 0
    plans: list[ModelPlan] | None = [] if options.dry_run else None
    announce: Callable[[Mapping[str, int]], list[str]] | None = partial(shortfalls, recipe, models)
    for design in cloud.designs:
        status = run(replace(sweep_options, design=design), models, views=False, plans=plans, announce=announce)
        announce = None  # once is enough
        if status not in {0, FAILED}:
            leave(status)
        failed = max(failed, status)
    if plans is not None:
        show_plans(plans, options)
    return failed


def _cloud(recipe: Recipe, options: argparse.Namespace) -> Cloud:
    """Return the cloud of a recipe, with what the options replace."""
    given = {name: getattr(options, name) for name in ("text", "sequence_length", "max_vectors")}
    return replace(recipe.cloud, **{name: value for name, value in given.items() if value is not None})


def _evaluate(recipe: Recipe, store: Store, options: argparse.Namespace) -> int:
    """Judge a recipe, write figure and page, print the outcomes, and return the exit status."""
    from repdyn.recipes import evaluate, missing_metrics

    runs = store.runs() if options.runs == [] else options.runs
    outcomes, measured = evaluate(recipe, store, options.models, options.hash, runs, _cloud(recipe, options))
    doubts = _doubts(store, measured)
    for sentence in (*missing_metrics(recipe, measured), *doubts):
        print(printable(sentence), file=sys.stderr)
    page = _write(recipe, outcomes, measured, doubts, options.output or store.output)
    if wants_records(options):
        print_records([_fields(recipe, outcome) for outcome in outcomes], options)
    else:
        _print_outcomes(recipe, outcomes)
        print(printable(f"page: {page}"))
    judged = [outcome for outcome in outcomes if outcome.published.criterion is not None]
    # values on other text or models say something, but not that the paper is reproduced
    is_reproduced = all(outcome.verdict == "reproduced" and not outcome.deviations for outcome in judged)
    return 0 if judged and is_reproduced else NOT_REPRODUCED


def _doubts(store: Store, measured: Sequence[Measured]) -> list[str]:
    """Return what is said of steps that repeat another one or are out of line, in the runs that were judged."""
    from repdyn.diagnosis import continuity_statements

    probes = {(each.name, each.rows["probe"].iloc[0]) for each in measured}
    stated = [
        f"{run}: {statement.sentence}"
        for name, probe in sorted(probes)
        for run, statement in continuity_statements(store, [name], probe)
    ]
    return list(dict.fromkeys(stated))


def _write(
    recipe: Recipe, outcomes: Sequence[Outcome], measured: Sequence[Measured], doubts: Sequence[str], folder: Path
) -> Path:
    from repdyn.figures.files import save
    from repdyn.recipes.figure import draw_recipe
    from repdyn.recipes.page import write_page

    figure = draw_recipe(recipe, outcomes, measured)
    files = save({recipe.name: figure}, folder) if figure is not None else []
    folder.mkdir(parents=True, exist_ok=True)
    image = files[0] if files else None
    return write_page(recipe, outcomes, measured, folder / f"{recipe.name}.html", image, doubts)


def _print_outcomes(recipe: Recipe, outcomes: Sequence[Outcome]) -> None:
    from rich.table import Table
    from rich.text import Text

    from repdyn.recipes.evaluation import count_verdicts

    console = PrintableConsole(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    console.print(Text(f"{recipe.title} (arXiv {recipe.paper})", style="bold"), soft_wrap=True)
    if recipe.by_values:
        console.print("values judged as exact, since the design has no intervals", highlight=False)
    for number, published in enumerate(recipe.published, start=1):
        console.print(Text(f"{number}. {published.claim} ({published.source})"), soft_wrap=True)
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for outcome in outcomes:
            if outcome.published is published:
                verdict = Text(outcome.verdict, style=_COLOURS[outcome.verdict])
                table.add_row(*([Text(outcome.run)] if outcome.run else []), verdict, Text(outcome.text))
        console.print(table)
    console.print(count_verdicts(outcomes), highlight=False)


def _fields(recipe: Recipe, outcome: Outcome) -> dict[str, Any]:
    published = outcome.published
    return {
        "recipe": recipe.name,
        "claim": published.claim,
        "source": published.source,
        "metric": published.metric or None,
        "criterion": published.criterion.text if published.criterion else None,
        "run": outcome.run or None,
        "verdict": outcome.verdict,
        "ours": outcome.ours,
        "deviations": list(outcome.deviations),
    }


def _print_recipes(recipes: Sequence[Recipe], options: argparse.Namespace) -> None:
    if wants_records(options):
        print_records(
            [
                {
                    "name": recipe.name,
                    "title": recipe.title,
                    "paper": recipe.paper,
                    "address": recipe.address,
                    "models": list(recipe.models),
                    "metrics": list(recipe.metrics),
                    "claims": [published.claim for published in recipe.published],
                }
                for recipe in recipes
            ],
            options,
        )
        return
    for recipe in recipes:
        n_run = sum(published.criterion is not None for published in recipe.published)
        print(printable(f"{recipe.name}: {recipe.title} (arXiv {recipe.paper})"))
        print(printable(f"    {n_run} of {len(recipe.published)} published values, on {', '.join(recipe.models)}"))
