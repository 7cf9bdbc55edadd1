"""Measure checkpoints one after another, downloading the next while the current one is measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from repdyn.hub.errors import CheckpointError, OutOfBoundsError, SweepStoppedError
from repdyn.store import Store
from repdyn.store.keys import own_folder
from repdyn.sweep.checkpoint import measure_checkpoint, store_failure
from repdyn.sweep.downloads import Downloads, LocalFiles, prefetch
from repdyn.sweep.progress import ProgressDisplay
from repdyn.sweep.targets import location_of
from repdyn.sweep.tasks import Settings, Task
from repdyn.tables.designs import NOT_RECORDED

MAX_IDENTICAL_FAILURES = 5
"""A sweep ends when this many checkpoints fail for the same reason and none succeeds."""


@dataclass
class SweepResult:
    """The outcome of a sweep."""

    measured: list[Task] = field(default_factory=list)
    failed: list[tuple[Task, str]] = field(default_factory=list)
    """With the reasons, which are also stored."""
    skipped: list[Task] = field(default_factory=list)
    """Measured in the meantime by another process."""

    def add(self, other: SweepResult) -> None:
        self.measured += other.measured
        self.failed += other.failed
        self.skipped += other.skipped


def check_comparable(tasks: Iterable[Task], store: Store, settings: Settings) -> None:
    """Check that new values are comparable with those stored for the same run.

    Raises:
        ValueError: the store has this run with other blocks, in another precision, or from another location; or its
            folder is a symbolic link.
    """
    for run, targets in groupby(tasks, lambda task: task.target.run):
        own_folder(store.folder_of(run))
        rows = store.distinct(run, ("layers", "dtype", "checkpoint"))
        dtype = settings.loading.dtype
        expected = {
            "layers": settings.choice,
            "dtype": None if dtype == "auto" else dtype,
            "location": next(targets).target.location,
        }
        stored = {
            "layers": {row["layers"] for row in rows},
            "dtype": {row["dtype"] for row in rows},
            "location": {location_of(row["checkpoint"]) for row in rows if row["checkpoint"]},
        }
        for what, value in expected.items():
            if value is not None and stored[what] - {value}:
                raise ValueError(
                    f"expected one {what} for the run {run!r}, got {value!r}, but {store.location} has it with "
                    f"{', '.join(map(repr, sorted(stored[what])))}; give another --store, or another --name"
                )


def describe_other_designs(tasks: Iterable[Task], store: Store) -> list[str]:
    """Describe the runs that the store has on other probes; their values form separate curves."""
    messages = []
    for run, run_tasks in groupby(tasks, lambda task: task.target.run):
        probes = {task.probe.hash: task.probe.design.name for task in run_tasks}
        stored = {row["probe"]: row["design"] or NOT_RECORDED for row in store.distinct(run, ("probe", "design"))}
        others = {probe: design for probe, design in stored.items() if probe not in probes}
        if others:
            known = ", ".join(f"{probe} (sampling design {design})" for probe, design in sorted(others.items()))
            current = ", ".join(f"{probe} (sampling design {design})" for probe, design in sorted(probes.items()))
            messages.append(
                f"{store.location} has {run} on the probe {known}; the new values, on {current}, form a "
                "separate curve; select one with --probe in repdyn figures and repdyn report"
            )
    return messages


def sweep(
    tasks: Sequence[Task],
    store: Store,
    settings: Settings,
    downloads: Downloads,
    display: ProgressDisplay | None = None,
) -> SweepResult:
    """Measure checkpoints one after another; a sweep can be stopped at any time and repeated with the remaining ones.

    Args:
        tasks: checkpoints to measure, usually :attr:`repdyn.sweep.tasks.TaskList.waiting`.
        store: store of rows and failures.
        settings: metrics, and options for loading and running the models.
        downloads: downloads the weights, and deletes them after the measurement.
        display: display of the progress; None for none.

    Raises:
        SweepStoppedError: no connection, or no space on the disk; checkpoints measured before are stored.
        ValueError: the folder of a run is a symbolic link.
    """
    for run in {task.target.run for task in tasks}:
        own_folder(store.folder_of(run))
    display = display or ProgressDisplay(len(tasks), shown=False)
    report = SweepResult()
    _sweep(tasks, store, settings, downloads, display, report)
    return report


def _sweep(
    tasks: Sequence[Task],
    store: Store,
    settings: Settings,
    downloads: Downloads,
    display: ProgressDisplay,
    report: SweepResult,
) -> None:
    for probe in {task.probe.hash: task.probe for task in tasks}.values():
        store.save_probe(probe)
    with display, downloads.opened():
        fetch = partial(_fetch, store=store, settings=settings, downloads=downloads, display=display)
        with closing(prefetch(fetch, tasks, downloads.cancel)) as fetches:
            for task, future in fetches:
                fetched = future.result()
                if fetched is None:
                    report.skipped.append(task)
                    display.finished(task, "skipped, measured by another process")
                    continue
                try:
                    _finish(task, fetched, store, settings, display, report)
                finally:
                    if isinstance(fetched, LocalFiles):
                        downloads.release(fetched)
                abort_on_repeated_failure(report)


def _fetch(
    task: Task, store: Store, settings: Settings, downloads: Downloads, display: ProgressDisplay
) -> LocalFiles | CheckpointError | None:
    """Return the files of a checkpoint, or why they cannot be fetched; None if it has been measured meanwhile."""
    if settings.key(task) in store:
        return None
    display.fetching(task)
    try:
        return downloads.fetch(task.target, display.fetched)
    except CheckpointError as error:
        return error


def abort_on_repeated_failure(report: SweepResult) -> None:
    """Raise SweepStoppedError if all checkpoints so far failed for the same reason, such as a wrong option."""
    reasons = {reason for _, reason in report.failed}
    if len(report.failed) == MAX_IDENTICAL_FAILURES and len(reasons) == 1 and not report.measured:
        raise SweepStoppedError(
            f"the first {MAX_IDENTICAL_FAILURES} checkpoints failed for the same reason: {reasons.pop()}; fix it, then "
            "repeat the sweep with --retry-failed"
        )


def _finish(
    task: Task,
    fetched: LocalFiles | CheckpointError,
    store: Store,
    settings: Settings,
    display: ProgressDisplay,
    report: SweepResult,
) -> None:
    try:
        if isinstance(fetched, CheckpointError):
            raise fetched
        display.measuring(task)
        timing = measure_checkpoint(task, fetched, store, settings, display.progress)
    except CheckpointError as error:
        if not isinstance(error, OutOfBoundsError):
            store_failure(task, store, settings, str(error))
        report.failed.append((task, str(error)))
        display.finished(task, f"failed: {error}", failed=True)
    else:
        report.measured.append(task)
        display.finished(task, str(timing))
        with suppress(ValueError):  # the store was deleted meanwhile
            display.warn_of_own_windows(task, store.read(settings.key(task)))
