"""Measure checkpoints one after another, downloading the next while the current one is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby

from repdyn.hub.errors import CheckpointError, OutOfBoundsError, SweepStoppedError
from repdyn.store import Store
from repdyn.store.keys import STATES_FOLDER, own_folder
from repdyn.store.leases import Claim
from repdyn.sweep.checkpoint import is_comparing, measure_checkpoint, store_failure
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
    """Claimed, or measured in the meantime, by another process."""

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
        ValueError: a metric compares checkpoints, and another process is measuring into the store; or the folder of a
            run is a symbolic link.
    """
    for run in {task.target.run for task in tasks}:
        own_folder(store.folder_of(run))
    display = display or ProgressDisplay(len(tasks), shown=False)
    report = SweepResult()
    with _exclusive_if_comparing(tasks, store, settings):
        _sweep(tasks, store, settings, downloads, display, report)
    return report


@contextmanager
def _exclusive_if_comparing(tasks: Sequence[Task], store: Store, settings: Settings) -> Iterator[None]:
    """Hold a lock if a metric compares checkpoints: two processes would delete each other's cached states."""
    if not any(is_comparing(task, settings) for task in tasks):
        yield
        return
    claim = store.claim_name(STATES_FOLDER)
    if claim is None:
        raise ValueError(
            f"expected a single process in {store.location} for metrics that compare a checkpoint with the previous "
            "one (cka_previous), but another one is running; omit these metrics, wait, or give another --store"
        )
    try:
        yield
    finally:
        claim.release()


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
        claim_and_fetch = _Claim(store, settings, downloads, display)
        with closing(prefetch(claim_and_fetch, tasks, downloads.cancel)) as claims:
            for task, future in claims:
                claimed = future.result()
                if claimed is None:
                    report.skipped.append(task)
                    display.finished(task, "skipped, measured by another process")
                    continue
                try:
                    _finish(task, claimed, store, settings, display, report)
                finally:
                    claimed.release(downloads)
                abort_on_repeated_failure(report)


def abort_on_repeated_failure(report: SweepResult) -> None:
    """Raise SweepStoppedError if all checkpoints so far failed for the same reason, such as a wrong option."""
    reasons = {reason for _, reason in report.failed}
    if len(report.failed) == MAX_IDENTICAL_FAILURES and len(reasons) == 1 and not report.measured:
        raise SweepStoppedError(
            f"the first {MAX_IDENTICAL_FAILURES} checkpoints failed for the same reason: {reasons.pop()}; fix it, then "
            "repeat the sweep with --retry-failed"
        )


@dataclass(frozen=True)
class _ClaimedCheckpoint:
    """A checkpoint claimed by this process, with its files or the reason why they cannot be fetched."""

    claim: Claim
    fetched: LocalFiles | None
    failure: CheckpointError | None = None

    def release(self, downloads: Downloads) -> None:
        if self.fetched is not None:
            downloads.release(self.fetched)
        self.claim.release()


@dataclass(frozen=True)
class _Claim:
    """Claim and fetch one checkpoint; None if another process has claimed it."""

    store: Store
    settings: Settings
    downloads: Downloads
    display: ProgressDisplay

    def __call__(self, task: Task) -> _ClaimedCheckpoint | None:
        key = self.settings.key(task)
        claim = self.store.claim(key)
        if claim is None:
            return None
        try:
            if key in self.store:
                claim.release()
                return None
            self.display.fetching(task)
            return _ClaimedCheckpoint(claim, self.downloads.fetch(task.target, self.display.fetched))
        except CheckpointError as error:
            return _ClaimedCheckpoint(claim, None, error)
        except BaseException:
            claim.release()
            raise


def _finish(
    task: Task,
    claimed: _ClaimedCheckpoint,
    store: Store,
    settings: Settings,
    display: ProgressDisplay,
    report: SweepResult,
) -> None:
    try:
        if claimed.fetched is None:
            raise claimed.failure or CheckpointError("its files are missing")
        display.measuring(task)
        timing = measure_checkpoint(task, claimed.fetched, store, settings, display.progress)
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
