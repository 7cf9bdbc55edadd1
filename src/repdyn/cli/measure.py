"""The commands that measure: ``repdyn sweep`` (analyze_checkpoints.py) and ``audit``."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from repdyn.cli.flags import in_flags
from repdyn.cli.options import Json, print_json
from repdyn.cli.sweep_options import SweepFlags
from repdyn.cli.tables import print_audits, print_plans, print_suites, say, warn
from repdyn.utils.arguments import Count
from repdyn.utils.choices import Destination
from repdyn.utils.printing import Lossy, print_above_bars, shorten_list

if TYPE_CHECKING:
    from repdyn.checkpoints.sweep import Prepared, Sweep

FAILED = 1


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
    with resumable():
        prepared = prepare(replace(options, source=source), to_plan=dry_run)
        for note in prepared.notes:
            warn(note)
        if dry_run:
            return print_plan(prepared, json)
        swept = measure_prepared(prepared, show=show_line)
        is_shown = _show(swept, prepared, export)
    status = status_of(swept.failures)
    return status if is_shown and swept.not_uploaded is None else FAILED


def show_line(text: str) -> None:
    """Show what happens to a checkpoint, above the bar."""
    print_above_bars(in_flags(text))


def print_plan(prepared: Prepared, json: bool) -> int:
    """Print what would be done for each model, as a table or JSON, and return the exit status."""
    from repdyn.checkpoints.plans import make_plans

    plans, problems = make_plans(prepared)
    print_json(plans) if json else print_plans(plans)
    return status_of(problems)


@contextmanager
def resumable() -> Iterator[None]:
    """Let SIGTERM end a sweep as Ctrl-C does, and say that it can go on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            "completed measurements are stored, and the same command continues the sweep"
        ) from error


def _show(swept: Sweep, prepared: Prepared, export: Sequence[Destination]) -> bool:
    """Show what was measured: figures, summary, report, and the loggers of ``export``.

    Returns False where that fails: the failure is printed, and the measurements are stored.
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
            stored = sorted(set(swept.runs) & set(store.runs()))
            # a run of failures alone has nothing to draw
            runs = [run for run in stored if store.steps(run)]
            if runs:
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


def status_of(problems: Sequence[str]) -> int:
    """Print why checkpoints were not measured, each reason once, and return the exit status."""
    by_reason: dict[str, list[str]] = {}
    for problem in problems:
        # each is "RUN REVISION: REASON"
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
    from repdyn.checkpoints.audit import audit_record, models_to_audit
    from repdyn.checkpoints.histories import list_histories
    from repdyn.checkpoints.hub import Hub
    from repdyn.checkpoints.published import select_models

    hub = Hub(timeout_seconds=timeout)
    models = dict.fromkeys(model for name in names for model in models_to_audit(name, hub.endpoint))
    selections, problems = select_models(models, hub, revisions)
    audits = [audit_record(history) for history in list_histories(selections, hub)]
    print_json(audits) if json else print_audits(audits)
    for problem in problems:
        say(f"not audited: {problem}")
    has_faults = any(record["faults"] for record in audits)
    return FAILED if problems or has_faults else 0
