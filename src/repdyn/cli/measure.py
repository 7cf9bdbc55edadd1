"""The commands that measure: ``repdyn sweep`` (analyze_checkpoints.py), ``audit`` and
``reproduce``.
"""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from repdyn.checkpoints.options import SweepOptions
from repdyn.cli.flags import in_flags
from repdyn.cli.options import Json, print_json
from repdyn.cli.sweep_options import SharedFlags, SweepFlags
from repdyn.cli.tables import print_audits, print_plans, print_suites, say, warn
from repdyn.utils.arguments import Count, ModelOptions, Output, Place
from repdyn.utils.choices import Destination
from repdyn.utils.printing import Lossy, print_above_bars, shorten_list

if TYPE_CHECKING:
    from repdyn.checkpoints.sweep import Prepared, Sweep
    from repdyn.lab.recipes.recipe import Recipe

FAILED = 1
_CLOUD = ("text", "sequence_length", "max_vectors", "batch_vectors")


def sweep(
    source: str | None = None,
    /,
    *,
    list_suites: bool = False,
    dry_run: bool = False,
    export: Sequence[Destination] = (),
    options: Annotated[SweepFlags, Parameter(name="*")] = SweepFlags(),
    json: Json = False,
) -> int:
    """Measure published or local checkpoints on a fixed probe, through the same code as a live run.

    A sweep can be stopped at any time; the same command continues it. What cannot be measured is
    stored with the reason, and the exit status is 1.

    Args:
        source: A run's folder, one of save_pretrained or train.py's .ckpt files, a .gguf file, or a
            hub repository.
        list_suites: List the suites and their models.
        dry_run: Show what remains and what would be downloaded.
        export: Loggers that get the runs at the end, as by repdyn export STORE --to LOGGER.

    Examples:
      repdyn sweep --list-suites
      repdyn sweep gpt2                          one finished model
      repdyn sweep EleutherAI/pythia-70m --revisions step0,step512,step143000
      repdyn sweep --suite pythia-70m --dry-run  what would be downloaded
      repdyn sweep --suite pythia-70m --revisions log --max-disk 2GB
      repdyn sweep runs/quickstart/TIME          a run's own checkpoints
      repdyn sweep FOLDER --like RUN             measured as another run was live
      repdyn sweep FOLDER --load mine:load       a class of your own, def load(path) in mine.py
      repdyn sweep FOLDER --export wandb         one W&B run for each model
      repdyn sweep --suite pythia-70m --engine ray --workers 4
      repdyn sweep --suite pythia-70m --store s3://bucket/sweeps
    """
    from repdyn.checkpoints.sweep import measure_prepared, prepare

    if list_suites:
        return _list_suites(json)
    if json and not dry_run:
        raise ValueError(
            "expected --json with --dry-run or --list-suites, got it alone; add one of them"
        )
    with _resumable():
        prepared = prepare(replace(options, source=source), to_plan=dry_run)
        for note in prepared.notes:
            warn(note)
        if dry_run:
            return _plan(prepared, json)
        swept = measure_prepared(prepared, show=_show_line)
        is_shown = _show(swept, prepared, export)
    status = _status(swept.failures)
    return status if is_shown and swept.not_uploaded is None else FAILED


def _show_line(text: str) -> None:
    """Show what happens to a checkpoint, above the bar."""
    print_above_bars(in_flags(text))


def _plan(prepared: Prepared, json: bool) -> int:
    """Print what would be done for each model, as a table or JSON, and return the exit status."""
    from repdyn.checkpoints.sweep import make_plans

    plans, problems = make_plans(prepared)
    print_json(plans) if json else print_plans(plans)
    return _status(problems)


@contextmanager
def _resumable() -> Iterator[None]:
    """Let SIGTERM end a sweep as Ctrl-C does, and say that it can go on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            "completed measurements are stored, and the same command continues the sweep"
        ) from error


def _show(swept: Sweep, prepared: Prepared, export: Sequence[Destination]) -> bool:
    """Write figures, summary, report and to loggers; print a failure and return False: the
    measurements are stored.
    """
    from repdyn.views.judging import doubts
    from repdyn.views.publish.results import show_store
    from repdyn.views.report import PAGE, write_report

    store = swept.store
    if prepared.options.shard:
        say(
            f"when all shards are done: repdyn figures {store.location}, repdyn report "
            f"{store.location}"
        )
        return True
    # a reader that has seen enough, such as head, prevents neither the report nor the export
    out: Any = Lossy(sys.stdout, BrokenPipeError)
    try:
        with redirect_stdout(out):
            if runs := [
                run for run in sorted(set(swept.runs) & set(store.runs())) if store.steps(run)
            ]:
                show_store(store, runs)
                print(f"report: {write_report(store, store.output / PAGE)}")
                for doubt in doubts(store, [(run, None) for run in runs]):
                    warn(doubt)
            if runs and export:
                from repdyn.views.publish.export import export_store

                for line in export_store(store, runs, to=export):
                    print(line)
    except Exception as error:  # a failing view must not hide the outcome of the measurements
        say(f"the measurements are stored, but cannot be shown: {error}")
        return False
    return True


def _status(problems: Sequence[str]) -> int:
    """Print why checkpoints were not measured, each reason once, and return the exit status."""
    by_reason: dict[str, list[str]] = {}
    for problem in problems:
        name, _, reason = problem.partition(": ")
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        warn(f"not measured: {shorten_list(names)}: {reason}")
    return FAILED if problems else 0


def _list_suites(json: bool) -> int:
    from repdyn.checkpoints.suites import shipped_suites

    suites = [
        {
            "name": suite.name,
            "title": suite.title,
            "models": [model.name for model in suite.models],
            "checked_against": {
                model.name: model.checked_against or suite.card for model in suite.models
            },
            "unverified": {
                model.name: model.unverified for model in suite.models if model.unverified
            },
        }
        for suite in shipped_suites().values()
    ]
    print_json(suites) if json else print_suites(suites)
    return 0


def attach(
    script: Annotated[str, Parameter(name="SCRIPT")],
    /,
    *arguments: Annotated[str, Parameter(name="ARGUMENTS", allow_leading_hyphen=True)],
) -> None:
    """Run a training script as it is, with the tracker in every Trainer of Lightning or of
    transformers.

    The probe is taken from the trainer's held-out data, and rows go to the folder repdyn in that of
    the trainer, unless REPDYN_PROBE, REPDYN_SCHEDULE, REPDYN_METRICS, REPDYN_LAYERS or REPDYN_STORE
    say otherwise.

    Args:
        script: The script, or -m and the name of a module.
        arguments: Whatever the script takes.

    Examples:
      repdyn attach run_clm.py --model_name_or_path gpt2 --train_file a.txt
      REPDYN_SCHEDULE=100 repdyn attach -m trl.scripts.sft --config sft.yaml
      torchrun --nproc-per-node 2 -m repdyn attach run_clm.py ...
    """
    from repdyn.callbacks.from_environment import run_script

    run_script([script, *arguments])


def audit(
    names: Annotated[list[str], Parameter(name="NAME")],
    /,
    *,
    revisions: str = "all",
    timeout: Count = 4 * 3600,
    json: Json = False,
) -> int:
    """Find copies, mixed files and missing weights among published checkpoints, without downloading
    them.

    It reads names, checksums and sizes, in one request for each checkpoint. The exit status is 1 if
    there is a fault, or a repository cannot be listed.

    Args:
        names: Suite, model of one, pattern, YAML file, hub repository, or its address.
        revisions: Use all, log (closest to powers of two), every:10, or names or steps separated by
            commas.
        timeout: Seconds for one listing.

    Examples:
      repdyn audit pythia-2.8b                       a model of a suite
      repdyn audit pythia bloom my_suite.yaml        all models of suites
      repdyn audit EleutherAI/pythia-12b             a repository, or its address
      repdyn audit olmo2-7b --revisions log          some of its checkpoints
      repdyn audit pythia-70m --json | jq '.[].findings[].sentence'
    """
    from repdyn.checkpoints.audit import audit_record, list_histories, models_to_audit
    from repdyn.checkpoints.hub import Hub
    from repdyn.checkpoints.targets import select_models

    hub = Hub(timeout_seconds=timeout)
    models = dict.fromkeys(model for name in names for model in models_to_audit(name, hub.endpoint))
    selections, problems = select_models(models, hub, revisions)
    found = [audit_record(history) for history in list_histories(selections, hub)]
    print_json(found) if json else print_audits(found)
    for problem in problems:
        say(f"not audited: {problem}")
    return FAILED if problems or any(each["faults"] for each in found) else 0


def reproduce(
    name: Annotated[str | None, Parameter(name="NAME")] = None,
    /,
    *,
    list_recipes: Annotated[bool, Parameter(name="--list")] = False,
    dry_run: bool = False,
    evaluate_only: bool = False,
    models: list[str] | None = None,
    runs: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    revisions: str | None = None,
    store: Place | None = None,
    output: Output = None,
    probe: str | None = None,
    shared: Annotated[SharedFlags, Parameter(name="*")] = SharedFlags(),
    json: Json = False,
) -> int:
    """Measure what a paper measured, and compare with what it published.

    It can be stopped at any time; the same command continues it. The exit status is 0 if every
    published value that the recipe measures is reproduced. Models or sampling other than the
    recipe's are stated as deviations.

    Args:
        name: Recipe, or YAML file of one.
        list_recipes: List the recipes.
        dry_run: Show what remains and what would be downloaded.
        evaluate_only: Judge what is in the store, without measuring anything.
        models: Other models: of suites, patterns, YAML files, hub repositories; folders for recipes
            of studies.
        runs: With --evaluate-only, judge each published value on these runs of --store, or on all
            of them, whatever models it is about.
        revisions: Other revisions, as for repdyn sweep (default: those of the recipe).
        store: Folder or URL of the measurements (default: reproductions/NAME).
        output: Folder of page and figure (default: the store).
        probe: Hash of the probe to judge, if the store has several of the design.

    Examples:
      repdyn reproduce --list
      repdyn reproduce shape-of-learning --dry-run        what would be downloaded
      repdyn reproduce shape-of-learning --max-disk 20GB
      repdyn reproduce shape-of-learning --models pythia-160m --revisions log
      repdyn reproduce embedding-spaces --models FOLDER    studies of a local model
      repdyn reproduce my_recipe.yaml --store sweeps
      repdyn reproduce shape-of-learning --evaluate-only --json
      repdyn reproduce shape-of-learning --evaluate-only --store RUN --runs
    """
    from repdyn.checkpoints.sweep import measure_prepared, prepare
    from repdyn.lab.recipes.evaluation import (
        evaluate,
        is_reproduced,
        print_outcomes,
        run_studies,
    )
    from repdyn.lab.recipes.page import write_results
    from repdyn.lab.recipes.recipe import find_models_of, find_recipe, is_local, shipped_recipes
    from repdyn.store import find_store, store_at
    from repdyn.views.judging import doubts

    if list_recipes:
        return _list_recipes(list(shipped_recipes().values()), json)
    if name is None:
        raise ValueError("expected the name of a recipe, or --list, got neither; see --help")
    if runs is not None and not evaluate_only:
        raise ValueError(
            "expected --runs with --evaluate-only, got it alone; measured runs are judged, none is "
            "swept"
        )
    recipe = find_recipe(name)
    given = {name: value for name in _CLOUD if (value := getattr(shared, name)) is not None}
    of_recipe = (
        replace(recipe.cloud, batch_vectors=None) if "max_vectors" in given else recipe.cloud
    )
    cloud, found = replace(of_recipe, **given), find_models_of(models or recipe.models)
    place = store or Path("reproductions") / recipe.name
    tables = None if not recipe.studies else output or Path(place)
    status = 0
    if tables and not evaluate_only:
        if dry_run:
            say(f"studies {', '.join(recipe.studies)} of {', '.join(model.run for model in found)}")
        else:
            loading = ModelOptions(device=shared.device, trust_remote_code=shared.trust_remote_code)
            # what studies print is no part of the outcomes
            with _resumable(), redirect_stdout(sys.stderr):
                status = _status(run_studies(recipe, found, tables, loading, given))
        if dry_run and not recipe.metrics:
            return status
    if recipe.metrics and not evaluate_only:
        settings = vars(shared) | {name: getattr(cloud, name) for name in _CLOUD}
        settings |= {"suite": found, "metrics": recipe.metrics, "design": cloud.design}
        options = SweepOptions(revisions=revisions or recipe.revisions, store=place, **settings)
        if here := next((model.run for model in found if is_local(model.run)), None):
            raise ValueError(
                f"expected published models for a recipe of metrics, got the local {here}; sweep "
                f"it with repdyn sweep {here} --design {cloud.design} --store {place}, and judge "
                f"with --evaluate-only --store {place} --runs"
            )
        with _resumable():
            prepared = prepare(options, to_plan=dry_run)
            for note in prepared.notes:
                warn(note)
            if dry_run:
                return _plan(prepared, json)
            swept = measure_prepared(prepared, show=_show_line)
        status = max(status, _status(swept.failures), FAILED * (swept.not_uploaded is not None))
        if shared.shard:
            say(
                f"when all shards are done: repdyn reproduce {name} --store {place} --evaluate-only"
            )
            return status
    judged = find_store(place) if evaluate_only and recipe.metrics else store_at(place)
    runs = judged.runs() if runs == [] else runs
    outcomes, measured = evaluate(recipe, judged, models, probe, runs, cloud, tables)
    in_doubt = doubts(
        judged, sorted({(each.name, str(each.rows["probe"].iloc[0])) for each in measured})
    )
    for sentence in in_doubt:
        say(sentence)
    page = write_results(recipe, outcomes, measured, output or judged.output, in_doubt)
    if json:
        print_json([{"recipe": recipe.name, **outcome.as_dict()} for outcome in outcomes])
    else:
        print_outcomes(recipe, outcomes, page)
    return status if is_reproduced(outcomes) else FAILED


def _list_recipes(recipes: Sequence[Recipe], json: bool) -> int:
    from repdyn.lab.recipes.evaluation import print_recipes

    names = ("name", "title", "paper", "address", "models", "metrics")
    found = [
        {name: getattr(recipe, name) for name in names}
        | {"claims": [each.claim for each in recipe.published]}
        for recipe in recipes
    ]
    print_json(found) if json else print_recipes(recipes)
    return 0
