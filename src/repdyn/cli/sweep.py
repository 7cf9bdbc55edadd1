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

from repdyn.cli.sweep_lines import print_line
from repdyn.cli.sweep_plan import make_plans, show_plans
from repdyn.hub.client import Hub
from repdyn.hub.errors import NoConnectionError, SweepStoppedError
from repdyn.hub.options import Loading, check_device, resolved_device
from repdyn.metrics import resolve
from repdyn.probe.class_names import class_names
from repdyn.probe.views import SUBSETS
from repdyn.store import Store, open_store
from repdyn.store.remote import RemoteError
from repdyn.sweep.audit import audit
from repdyn.sweep.audit_text import fault_lines
from repdyn.sweep.downloads import has_abandoned_threads
from repdyn.sweep.histories import find_foreign_targets, list_histories
from repdyn.sweep.plan import ModelPlan, selection_notes
from repdyn.sweep.sources import Source, find_sources, select_shard, sources_of_models
from repdyn.sweep.suites import PublishedModel
from repdyn.sweep.targets import Target
from repdyn.sweep.tasks import ForeignWeights, Settings
from repdyn.utils.console import PrintableConsole
from repdyn.utils.records import wants_records

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
        return _run(options, models, console, views, plans, announce)
    except OSError as error:
        if error.errno not in {ENOSPC, EDQUOT}:
            print_line(console, f"error: {error}")
            return STOPPED if isinstance(error, RemoteError) else USAGE_ERROR
        print_line(console, f"stopped: the disk is full ({error}); free some space, then repeat the command")
        return STOPPED
    except ValueError as error:
        print_line(console, f"error: {error}")
        return USAGE_ERROR
    except SweepStoppedError as error:
        goes_on = isinstance(error, NoConnectionError) and not options.dry_run
        how = "; what is measured is stored, and the same command goes on from there" if goes_on else ""
        print_line(console, f"stopped: {error}{how}")
        return STOPPED
    except KeyboardInterrupt:
        print_line(console, "stopped; completed measurements are stored, and the same command continues the sweep")
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
    if wants_records(options) and not options.dry_run:
        given = "--json" if options.json else "--csv"
        raise ValueError(f"expected {given} with --dry-run or --list-suites, got it alone; add one of them")
    hub, settings = Hub(timeout_seconds=options.timeout, budget_bytes=options.max_disk), _settings(options)
    sources, problems = find_sources(options, hub) if models is None else sources_of_models(models, options, hub)
    for note in (note for source in sources for note in selection_notes(source.selection)):
        print_line(console, note)
    foreign = _find_foreign(sources, hub, console)
    if announce is not None:
        for note in announce(_count_distinct(sources, foreign)):
            print_line(console, note, style="yellow")
    store = open_store(options.store or _default_store(options))
    status = None
    try:
        status = _sweep_into(store, sources, foreign, problems, hub, settings, options, console, views, planned)
    finally:
        problem = store.drain(UPLOAD_SECONDS if status is not None else INTERRUPTED_UPLOAD_SECONDS)
        if problem is not None:
            print_line(console, problem, style="yellow")
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
    # with torch and transformers, which plans do without
    from repdyn.cli.sweep_measuring import measure_sources, show_sources

    failed = measure_sources(sources, foreign, store, hub, settings, options, console)
    shown = show_sources(sources, store, options, console) if views else True
    status = _status([*problems, *failed], console)
    return status if shown else FAILED


def _settings(options: Namespace) -> Settings:
    # checks that do not need the hub come first
    is_local = options.source is not None and Path(options.source).exists()
    if not options.dry_run:
        options.device = resolved_device(options.device)
    # the probe of a run or file may have other classes
    resolve(options.metrics, subsets=None if options.probe or is_local else (*SUBSETS, *class_names(options.classes)))
    if options.engine == "serial" and options.device != "auto":
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
            print_line(console, line, style="yellow")
    return find_foreign_targets(selections, histories)


def _count_distinct(sources: Sequence[Source], foreign: Mapping[Target, ForeignWeights]) -> dict[str, int]:
    """Return the number of existing checkpoints of each source without weights of another one, by run."""
    return {
        source.selection.run: sum(
            target not in foreign and not target.missing_reason for target in source.selection.targets
        )
        for source in sources
    }


def _status(problems: Sequence[str], console: Console) -> int:
    """Print why checkpoints were not measured, and return the exit status."""
    for problem in problems:
        print_line(console, f"not measured: {problem}", style="yellow")
    return FAILED if problems else 0


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
