"""What analyze_checkpoints.py and ``repdyn sweep`` do with their options."""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import NoReturn

from huggingface_hub import logging as hub_logging
from rich.console import Console

from repdyn.cli.sweep_plan import make_plans, show_plans
from repdyn.diagnosis import continuity_statements
from repdyn.hub.client import Hub
from repdyn.hub.errors import NoConnectionError, SweepStoppedError
from repdyn.hub.options import check_device
from repdyn.hub.weights import Loading
from repdyn.metrics import resolve
from repdyn.probe.content import SUBSETS
from repdyn.probe.word_classes import class_names
from repdyn.publish.results import show_store
from repdyn.report import PAGE, write_report
from repdyn.store import Store, find_store, open_store
from repdyn.store.remote_errors import RemoteError
from repdyn.sweep.audit import audit
from repdyn.sweep.audit_text import fault_lines
from repdyn.sweep.checkpoint import ForeignWeights, Settings, Task, store_foreign
from repdyn.sweep.downloads import DownloadLimits, Downloads, has_abandoned_threads
from repdyn.sweep.histories import find_foreign_targets, list_histories
from repdyn.sweep.leftovers import remove_leftovers
from repdyn.sweep.loop import SweepResult, check_comparable, describe_other_designs, partition_tasks, sweep
from repdyn.sweep.plan import ModelPlan, print_suites, selection_notes, suite_fields
from repdyn.sweep.progress import ProgressDisplay
from repdyn.sweep.reuse import reuse
from repdyn.sweep.sources import Source, find_sources, select_shard, sources_of_models, tasks_of
from repdyn.sweep.suites import PublishedModel
from repdyn.sweep.targets import Target
from repdyn.utils.quiet import without_reports
from repdyn.utils.records import print_records, wants_records
from repdyn.utils.redaction import redacted
from repdyn.utils.untrusted_names import PrintableConsole, printable

FAILED, USAGE_ERROR, STOPPED, INTERRUPTED = 1, 2, 3, 130
UPLOAD_SECONDS, INTERRUPTED_UPLOAD_SECONDS = 120.0, 10.0
"""How long the end of a sweep waits for the uploads to a remote store."""


def run(
    options: Namespace,
    models: Sequence[PublishedModel] | None = None,
    *,
    views: bool = True,
    plans: list[ModelPlan] | None = None,
    announce: Callable[[Mapping[str, int]], Iterable[str]] | None = None,
) -> int:
    """Sweep, and return the exit status; errors are printed.

    Args:
        options: every option of a sweep.
        models: what to measure in place of the source or suites that the options name.
        views: write figures, summary and report at the end.
        plans: where to append what --dry-run would print, for a command that sweeps several times.
        announce: returns what to print before anything is downloaded, given the number of chosen checkpoints with
            weights of their own by run.
    """
    console = PrintableConsole(stderr=True)
    # the client logs each retried request; final failures are printed here
    hub_logging.set_verbosity_error()
    try:
        # clusters announce preemption by SIGTERM, which is handled like Ctrl-C
        signal.signal(signal.SIGTERM, _interrupt)
        # its remarks on a model that works, such as kernels that are not installed, look like errors
        with without_reports():
            return _run(options, models, console, views, plans, announce)
    except OSError as error:
        if error.errno not in {ENOSPC, EDQUOT}:
            _print(console, f"error: {error}")
            return STOPPED if isinstance(error, RemoteError) else USAGE_ERROR
        _print(console, f"stopped: the disk is full ({error}); free some space, then repeat the command")
        return STOPPED
    except ValueError as error:
        _print(console, f"error: {error}")
        return USAGE_ERROR
    except SweepStoppedError as error:
        goes_on = isinstance(error, NoConnectionError) and not options.dry_run
        how = "; what is measured is stored, and the same command goes on from there" if goes_on else ""
        _print(console, f"stopped: {error}{how}")
        return STOPPED
    except KeyboardInterrupt:
        _print(console, "stopped; completed measurements are stored, and the same command continues the sweep")
        return INTERRUPTED


def leave(status: int) -> NoReturn:
    """Exit with a status, without waiting for a download that was given up."""
    if has_abandoned_threads():
        # an unresponsive hub would delay the exit by a minute; files of downloads are deleted already
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


def _run(
    options: Namespace,
    models: Sequence[PublishedModel] | None,
    console: Console,
    views: bool,
    planned: list[ModelPlan] | None,
    announce: Callable[[Mapping[str, int]], Iterable[str]] | None,
) -> int:
    if wants_records(options) and not (options.list_suites or options.dry_run):
        given = "--json" if options.json else "--csv"
        raise ValueError(f"expected {given} with --dry-run or --list-suites, got it alone; add one of them")
    if options.list_suites:
        print_records(suite_fields(), options) if wants_records(options) else print_suites(PrintableConsole())
        return 0
    hub, settings = Hub(timeout_seconds=options.timeout, budget_bytes=options.max_disk), _settings(options)
    sources, problems = find_sources(options, hub) if models is None else sources_of_models(models, options, hub)
    for note in (note for source in sources for note in selection_notes(source.selection)):
        _print(console, note)
    foreign = _find_foreign(sources, hub, console)
    if announce is not None:
        for note in announce(_count_distinct(sources, foreign)):
            _print(console, note, style="yellow")
    store = open_store(options.store or _default_store(options))
    status = None
    try:
        status = _sweep_into(store, sources, foreign, problems, hub, settings, options, console, views, planned)
    finally:
        problem = store.drain(UPLOAD_SECONDS if status is not None else INTERRUPTED_UPLOAD_SECONDS)
        if problem is not None:
            _print(console, problem, style="yellow")
    return status or (STOPPED if problem is not None else 0)


def _sweep_into(
    store: Store,
    sources: list[Source],
    foreign: dict[Target, ForeignWeights],
    problems: list[str],
    hub: Hub,
    settings: Settings,
    options: Namespace,
    console: Console,
    views: bool,
    planned: list[ModelPlan] | None,
) -> int:
    """Measure what the store lacks, show what it contains, and return the exit status."""
    sources = select_shard(sources, options.shard) if options.shard else sources
    if options.dry_run:
        plans, without_probe = make_plans(sources, foreign, store, settings, options)
        if planned is None:
            show_plans(plans, hub, options)
        else:
            planned += plans
        return _status([*problems, *without_probe], console)
    every_task, without_probe = tasks_of(sources)
    tasks = [task for task in every_task if task.target not in foreign]
    check_comparable(tasks, store, settings)
    for note in describe_other_designs(tasks, store):
        _print(console, note)
    if options.reuse:
        waiting = partition_tasks(tasks, store, settings, retry_failed=True).waiting
        _print(console, reuse(waiting, store, find_store(options.reuse), settings).described(options.reuse))
    task_list = partition_tasks(tasks, store, settings, retry_failed=options.retry_failed)
    for task in every_task:
        if task.target in foreign:
            store_foreign(task, store, settings, foreign[task.target])
    for line in remove_leftovers(store, Downloads(hub, DownloadLimits.from_options(options))):
        _print(console, line)
    if task_list.done:
        _print(console, f"{len(task_list.done)} of {len(tasks)} checkpoints are in {store.location} already")
    result = _measure(task_list.waiting, store, settings, hub, options)
    # another process may have failed in the meantime, or stored on another machine, or somebody deleted the store
    store.refresh()
    remaining = partition_tasks(result.skipped, store, settings, retry_failed=True).waiting
    measured = [*task_list.done, *result.measured]
    if lost := [task for task in measured if not settings.is_measured(task, store)]:
        _print(
            console,
            f"{len(lost)} measured checkpoints are no longer in {store.path}, which was deleted or changed meanwhile; "
            "they are measured again",
        )
        remaining += lost
    retried = _measure(remaining, store, settings, hub, options) if remaining else SweepResult()
    failed = [f"{task.target}: {reason}" for task, reason in result.failed + retried.failed]
    failed += [f"{task.target}: failed before; --retry-failed retries it" for task in task_list.failed_before]
    claimed = partition_tasks(retried.skipped, store, settings).waiting
    failed += [f"{task.target}: another process is measuring it" for task in claimed]
    shown = _show(sources, store, options, console) if views else True
    status = _status([*problems, *without_probe, *failed], console)
    return status if shown else FAILED


def _settings(options: Namespace) -> Settings:
    # checks that do not need the hub come first
    is_local = options.source is not None and Path(options.source).exists()
    # the probe of a run or file may have other classes
    resolve(options.metrics, subsets=None if options.probe or is_local else (*SUBSETS, *class_names(options.classes)))
    if options.engine == "serial":
        check_device(options.device)
    # Live runs are measured in the precision of their weights. Published weights are often stored in half precision
    # to reduce their size; rounding the states as well would affect the estimated dimension.
    dtype = options.dtype or ("auto" if is_local else "float32")
    loading = Loading(options.device, dtype, options.device_map, options.trust_remote_code)
    in_order = options.engine == "serial" and options.shard is None
    return Settings(
        options.metrics,
        options.layers,
        loading,
        options.tokens_per_forward,
        in_order,
        options.token_positions,
        options.loss,
    )


def _default_store(options: Namespace) -> Path:
    """Return a folder next to local checkpoints, or one folder for all published models, which can be compared
    there."""
    source = Path(options.source or "")
    if options.source and source.exists():
        return (source if source.is_dir() else source.parent) / "sweep"
    return Path("sweeps")


def _find_foreign(sources: Sequence[Source], hub: Hub, console: Console) -> dict[Target, ForeignWeights]:
    """Return the checkpoints with weights of another one; print what is wrong with each history."""
    selections = [source.selection for source in sources]
    histories = list_histories(selections, hub)
    for history in histories:
        for line in fault_lines(history, audit(history)):
            _print(console, line, style="yellow")
    return find_foreign_targets(selections, histories)


def _count_distinct(sources: Sequence[Source], foreign: Mapping[Target, ForeignWeights]) -> dict[str, int]:
    """Return the number of existing checkpoints of each source without weights of another one, by run."""
    return {
        source.selection.run: sum(
            target not in foreign and not target.missing_reason for target in source.selection.targets
        )
        for source in sources
    }


def _measure(tasks: Sequence[Task], store: Store, settings: Settings, hub: Hub, options: Namespace) -> SweepResult:
    if options.engine == "ray":
        from repdyn.sweep.ray_engine import sweep_with_ray  # an optional dependency

        return sweep_with_ray(tasks, store, settings, hub, options)
    downloads = Downloads(hub, DownloadLimits.from_options(options))
    return sweep(tasks, store, settings, downloads, ProgressDisplay(len(tasks)))


def _show(sources: Sequence[Source], store: Store, options: Namespace, console: Console) -> bool:
    """Write figures, summary and report; print a failure and return False, since the measurements are stored."""
    if options.shard:
        _print(console, f"when all shards are done: repdyn figures {store.location}, repdyn report {store.location}")
        return True
    try:
        if runs := sorted({source.selection.run for source in sources} & set(store.runs())):
            for run in runs:
                store.compact_at_end(run)
            show_store(store, runs)
            print(printable(f"report: {write_report(store, store.output / PAGE)}"))
            for run, statement in continuity_statements(store, runs):
                _print(console, f"{run}: {statement.sentence}", style="yellow")
    except Exception as error:  # a failing view must not hide the outcome of the measurements
        _print(console, f"the measurements are stored, but cannot be shown: {redacted(str(error))}")
        return False
    return True


def _status(problems: Sequence[str], console: Console) -> int:
    """Print why checkpoints were not measured, and return the exit status."""
    for problem in problems:
        _print(console, f"not measured: {problem}", style="yellow")
    return FAILED if problems else 0


def _print(console: Console, text: str, style: str | None = None) -> None:
    console.print(redacted(text), style=style, markup=False, highlight=False, soft_wrap=True)


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
