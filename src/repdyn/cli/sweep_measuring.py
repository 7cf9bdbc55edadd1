"""What ``repdyn sweep`` measures and shows, once it is planned."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence

from rich.console import Console

from repdyn.cli.sweep_lines import print_line
from repdyn.diagnosis import continuity_statements
from repdyn.hub.client import Hub
from repdyn.publish.results import show_store
from repdyn.report import PAGE, write_report
from repdyn.store import Store
from repdyn.sweep.checkpoint import store_foreign
from repdyn.sweep.downloads import DownloadLimits, Downloads
from repdyn.sweep.leftovers import remove_leftovers
from repdyn.sweep.loop import SweepResult, check_comparable, describe_other_designs, sweep
from repdyn.sweep.progress import ProgressDisplay
from repdyn.sweep.sources import Source, tasks_of
from repdyn.sweep.targets import Target
from repdyn.sweep.tasks import ForeignWeights, Settings, Task, partition_tasks
from repdyn.utils.names import printable
from repdyn.utils.quiet import without_reports
from repdyn.utils.redaction import redacted


def measure_sources(
    sources: Sequence[Source],
    foreign: Mapping[Target, ForeignWeights],
    store: Store,
    hub: Hub,
    settings: Settings,
    options: Namespace,
    console: Console,
) -> list[str]:
    """Measure what the store lacks, and return why some checkpoints were not measured."""
    # its remarks on a model that works, such as kernels that are not installed, look like errors
    with without_reports():
        every_task, without_probe = tasks_of(sources)
        tasks = [task for task in every_task if task.target not in foreign]
        check_comparable(tasks, store, settings)
        for note in describe_other_designs(tasks, store):
            print_line(console, note)
        task_list = partition_tasks(tasks, store, settings, retry_failed=options.retry_failed)
        for task in every_task:
            if task.target in foreign:
                store_foreign(task, store, settings, foreign[task.target])
        for line in remove_leftovers(store, Downloads(hub, DownloadLimits.from_options(options))):
            print_line(console, line)
        if task_list.done:
            print_line(console, f"{len(task_list.done)} of {len(tasks)} checkpoints are in {store.location} already")
        result = _measure(task_list.waiting, store, settings, hub, options)
        # another process may have failed in the meantime, or stored on another machine, or somebody deleted the store
        store.refresh()
        remaining = partition_tasks(result.skipped, store, settings, retry_failed=True).waiting
        measured = [*task_list.done, *result.measured]
        if lost := [task for task in measured if not settings.is_measured(task, store)]:
            print_line(
                console,
                f"{len(lost)} measured checkpoints are no longer in {store.path}, which was deleted or changed "
                "meanwhile; they are measured again",
            )
            remaining += lost
        retried = _measure(remaining, store, settings, hub, options) if remaining else SweepResult()
        failed = [f"{task.target}: {reason}" for task, reason in result.failed + retried.failed]
        failed += [f"{task.target}: failed before; --retry-failed retries it" for task in task_list.failed_before]
        return [*without_probe, *failed]


def _measure(tasks: Sequence[Task], store: Store, settings: Settings, hub: Hub, options: Namespace) -> SweepResult:
    if options.engine == "ray":
        from repdyn.sweep.ray_engine import sweep_with_ray  # an optional dependency

        return sweep_with_ray(tasks, store, settings, hub, options)
    downloads = Downloads(hub, DownloadLimits.from_options(options))
    return sweep(tasks, store, settings, downloads, ProgressDisplay(len(tasks)))


def show_sources(sources: Sequence[Source], store: Store, options: Namespace, console: Console) -> bool:
    """Write figures, summary and report; print a failure and return False, since the measurements are stored."""
    if options.shard:
        print_line(
            console, f"when all shards are done: repdyn figures {store.location}, repdyn report {store.location}"
        )
        return True
    try:
        if runs := sorted({source.selection.run for source in sources} & set(store.runs())):
            show_store(store, runs)
            print(printable(f"report: {write_report(store, store.output / PAGE)}"))
            for run, statement in continuity_statements(store, runs):
                print_line(console, f"{run}: {statement.sentence}", style="yellow")
    except Exception as error:  # a failing view must not hide the outcome of the measurements
        print_line(console, f"the measurements are stored, but cannot be shown: {redacted(str(error))}")
        return False
    return True
