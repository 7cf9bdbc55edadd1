"""The command line of analyze_checkpoints.py, and of ``repdyn sweep``."""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import NoReturn

from huggingface_hub import logging as hub_logging
from rich.console import Console

from repdyn.hub.client import Hub
from repdyn.hub.errors import CheckpointError, SweepStoppedError
from repdyn.hub.options import check_device
from repdyn.hub.weights import Loading
from repdyn.metrics import resolve
from repdyn.probe.content import SUBSETS
from repdyn.probe.word_classes import class_names
from repdyn.publish.results import show_store
from repdyn.report import PAGE, write_report
from repdyn.store import Store, open_store
from repdyn.sweep.checkpoint import Settings, Task
from repdyn.sweep.downloads import DownloadLimits, Downloads, is_prefetching
from repdyn.sweep.loop import SweepResult, check_comparable, describe_other_designs, partition_tasks, sweep
from repdyn.sweep.options import Shard, parser
from repdyn.sweep.plan import ModelPlan, print_plan, print_suites, selection_notes
from repdyn.sweep.progress import ProgressDisplay
from repdyn.sweep.sources import Source, sources
from repdyn.utils.redaction import redacted
from repdyn.utils.untrusted_names import PrintableConsole, printable

FAILED, MISTAKEN, STOPPED, INTERRUPTED = 1, 2, 3, 130
_WIDE = 200


def main(arguments: Sequence[str] | None = None, prog: str = "analyze_checkpoints.py") -> None:
    """Measure checkpoints, then draw and summarise them; a second call finishes what is missing.

    Exits with 0 when everything asked for is measured, else as --help says.
    """
    options = parser(prog).parse_args(arguments)
    console = PrintableConsole(stderr=True)
    # the client tells of each request it repeats; what fails in the end is told here
    hub_logging.set_verbosity_error()
    try:
        # a cluster's notice before it takes the machine away is as good as Ctrl-C
        signal.signal(signal.SIGTERM, _interrupt)
        status = _run(options, console)
    except (ValueError, OSError) as error:
        _say(console, f"error: {error}")
        status = STOPPED if isinstance(error, OSError) and error.errno in {ENOSPC, EDQUOT} else MISTAKEN
    except SweepStoppedError as error:
        _say(console, f"stopped: {error}")
        status = STOPPED
    except KeyboardInterrupt:
        console.print("stopped; what is measured is stored, and the same command goes on from there")
        status = INTERRUPTED
    if is_prefetching():
        # a download that a silent hub keeps waiting would hold up the exit for a minute; its files are gone already
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


def _run(options: Namespace, console: Console) -> int:
    if options.list_suites:
        print_suites(PrintableConsole())
        return 0
    hub, settings = Hub(), _settings(options)
    found, problems = sources(options, hub)
    store = open_store(options.store or _default_store(options))
    for note in (note for source in found for note in selection_notes(source.selection)):
        _say(console, note)
    found = _share(found, options.shard) if options.shard else found
    if options.dry_run:
        parts, without_probe = _parts(found, store, settings, options)
        # a table in a file is not folded to the width of a terminal that is not there
        print_plan(parts, hub, PrintableConsole(width=None if sys.stdout.isatty() else _WIDE))
        return _status([*problems, *without_probe], console)
    tasks, without_probe = _tasks(found)
    check_comparable(tasks, store, settings)
    for note in describe_other_designs(tasks, store):
        _say(console, note)
    agenda = partition_tasks(tasks, store, settings, retry_failed=options.retry_failed)
    if agenda.done:
        _say(console, f"{len(agenda.done)} of {len(tasks)} checkpoints are in {store.path} already")
    report = _measure(agenda.waiting, store, settings, hub, options)
    # the other process may have failed or died meanwhile
    left = partition_tasks(report.elsewhere, store, settings, retry_failed=True).waiting
    again = _measure(left, store, settings, hub, options) if left else SweepResult()
    failed = [f"{task.target}: {reason}" for task, reason in report.failed + again.failed]
    failed += [f"{task.target}: failed before; --retry-failed tries it again" for task in agenda.failed_before]
    in_hand = partition_tasks(again.elsewhere, store, settings).waiting
    failed += [f"{task.target}: another process has it in hand" for task in in_hand]
    shown = _show(found, store, options, console)
    status = _status([*problems, *without_probe, *failed], console)
    return status if shown else FAILED


def _settings(options: Namespace) -> Settings:
    # what is mistaken is better told before anything is asked of the hub
    is_local = options.source is not None and Path(options.source).exists()
    # a run's own probe, or one from a file, may know other classes
    resolve(options.metrics, subsets=None if options.probe or is_local else (*SUBSETS, *class_names(options.classes)))
    if options.engine == "serial":
        check_device(options.device)
    # Live runs measure in the precision of their weights; published ones are often rounded to half precision for
    # their size alone, and rounding the states too would be seen in the dimension.
    dtype = options.dtype or ("auto" if is_local else "float32")
    loading = Loading(options.device, dtype, options.device_map, options.trust_remote_code)
    in_order = options.engine == "serial" and options.shard is None
    chosen = (options.metrics, options.layers, loading, options.tokens_per_forward, in_order, options.token_positions)
    return Settings(*chosen)


def _default_store(options: Namespace) -> Path:
    """Beside local checkpoints; for published ones one folder for all models, so that they can be compared."""
    source = Path(options.source or "")
    if options.source and source.exists():
        return (source if source.is_dir() else source.parent) / "sweep"
    return Path("sweeps")


def _parts(
    found: Sequence[Source], store: Store, settings: Settings, options: Namespace
) -> tuple[list[ModelPlan], list[str]]:
    parts, problems = [], []
    for source in found:
        selection = source.selection
        if not store.folder_of(selection.run).exists():
            # nothing can be done yet, so there is no need to make the probe, which may mean a download
            parts.append(ModelPlan(selection, selection.targets, 0, 0))
            continue
        tasks, without_probe = _tasks([source])
        agenda = partition_tasks(tasks, store, settings, retry_failed=options.retry_failed)
        waiting = [task.target for task in agenda.waiting]
        parts.append(ModelPlan(selection, waiting, len(agenda.done), len(agenda.failed_before)))
        problems += without_probe
    return parts, problems


def _tasks(found: Sequence[Source]) -> tuple[list[Task], list[str]]:
    tasks, problems = [], []
    for source in found:
        try:
            tasks += [Task(target, source.probe) for target in source.selection.targets]
        except CheckpointError as error:
            problems.append(f"{source.selection.run}: {error}")
    return tasks, problems


def _share(found: Sequence[Source], shard: Shard) -> list[Source]:
    """This process's part of the sweep; counted over all checkpoints, done or not, so that it never changes."""
    places = [(source, target) for source in found for target in source.selection.targets]
    mine = places[shard.index - 1 :: shard.count]
    parts = [(source, tuple(target for owner, target in mine if owner is source)) for source in found]
    return [replace(at, selection=replace(at.selection, targets=targets)) for at, targets in parts if targets]


def _measure(tasks: Sequence[Task], store: Store, settings: Settings, hub: Hub, options: Namespace) -> SweepResult:
    if options.engine == "ray":
        from repdyn.sweep.ray_engine import sweep_with_ray  # an optional dependency

        return sweep_with_ray(tasks, store, settings, hub, options)
    downloads = Downloads(hub, DownloadLimits.from_options(options))
    return sweep(tasks, store, settings, downloads, ProgressDisplay(len(tasks)))


def _show(found: Sequence[Source], store: Store, options: Namespace, console: Console) -> bool:
    """Draw and summarise. What cannot be shown is measured all the same, so that is said, and no mistake."""
    if options.shard:
        _say(console, f"when all shards are done: repdyn figures {store.path}, repdyn report {store.path}")
        return True
    try:
        if runs := sorted({source.selection.run for source in found} & set(store.runs())):
            show_store(store, runs)
            print(printable(f"report: {write_report(store, store.path / PAGE)}"))
    except Exception as error:  # a view is no reason to lose the exit status of what was measured
        _say(console, f"what is measured is stored, but cannot be shown: {redacted(str(error))}")
        return False
    return True


def _status(problems: Sequence[str], console: Console) -> int:
    """Print what could not be measured, and return the exit status."""
    for problem in problems:
        _say(console, f"not measured: {problem}", style="yellow")
    return FAILED if problems else 0


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(redacted(text), style=style, markup=False, highlight=False, soft_wrap=True)


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
