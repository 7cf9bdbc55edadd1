"""The sweep: fetch, measure, delete, next, the next one being fetched while the current one is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby

from filelock import BaseFileLock, FileLock, Timeout

from repdyn.hub.errors import CheckpointError, OutOfBoundsError, SweepStoppedError
from repdyn.store import Store, read_rows
from repdyn.store.schema import Row
from repdyn.store.state_cache import KEPT
from repdyn.sweep.checkpoint import Settings, Task, file_failure, is_comparing, measure_checkpoint
from repdyn.sweep.downloads import Downloads, Fetched, prefetch
from repdyn.sweep.progress import ProgressDisplay
from repdyn.sweep.targets import place_of
from repdyn.tables.designs import NOT_RECORDED

ALIKE = 5
"""So many failures for one reason, and nothing measured, end a sweep."""


@dataclass
class Report:
    """What a sweep did."""

    measured: list[Task] = field(default_factory=list)
    failed: list[tuple[Task, str]] = field(default_factory=list)
    """With the reason, which is in the store too."""
    elsewhere: list[Task] = field(default_factory=list)
    """Left to another process, which has them in hand or has just measured them."""

    def add(self, other: Report) -> None:
        self.measured += other.measured
        self.failed += other.failed
        self.elsewhere += other.elsewhere


@dataclass(frozen=True)
class TaskList:
    """The tasks of a sweep, by what the store says of them."""

    waiting: list[Task]
    done: list[Task]
    failed_before: list[Task]
    """Not tried again unless that is asked for."""


def partition_tasks(tasks: Iterable[Task], store: Store, settings: Settings, *, retry_failed: bool = False) -> TaskList:
    """Which checkpoints are still to be measured."""
    agenda = TaskList([], [], [])
    for task in tasks:
        key = settings.key(task)
        if key in store:
            agenda.done.append(task)
        elif key.failed in store and not retry_failed:
            agenda.failed_before.append(task)
        else:
            agenda.waiting.append(task)
    return agenda


def check_comparable(tasks: Iterable[Task], store: Store, settings: Settings) -> None:
    """Keep one curve from being made of what does not compare.

    Raises:
        ValueError: a run of this name is in the store with other blocks, in another precision, or from another place.
    """
    for run, targets in groupby(tasks, lambda task: task.target.run):
        rows = _rows_of(store, run)
        dtype = settings.loading.dtype
        wanted = {
            "layers": settings.choice,
            "dtype": None if dtype == "auto" else dtype,
            "place": next(targets).target.place,
        }
        stored = {
            "layers": {row.layers for row in rows},
            "dtype": {row.dtype for row in rows},
            "place": {place_of(row.checkpoint) for row in rows if row.checkpoint},
        }
        for what, value in wanted.items():
            if value is not None and stored[what] - {value}:
                raise ValueError(
                    f"expected one {what} for the run {run!r}, but {store.path} holds it with "
                    f"{', '.join(map(repr, sorted(stored[what])))}, and {value!r} is asked for now; give another "
                    "--store, or another --name"
                )


def other_designs(tasks: Iterable[Task], store: Store) -> list[str]:
    """Say of which runs the store has values by another sampling design: they stay apart from those of this sweep."""
    told = []
    for run, of_run in groupby(tasks, lambda task: task.target.run):
        probes = {task.probe.hash: task.probe.design.name for task in of_run}
        others = {row.probe: row.design or NOT_RECORDED for row in _rows_of(store, run) if row.probe not in probes}
        if others:
            known = ", ".join(f"{probe} (sampling design {design})" for probe, design in sorted(others.items()))
            asked = ", ".join(f"{probe} (sampling design {design})" for probe, design in sorted(probes.items()))
            told.append(
                f"{store.path} holds {run} on the probe {known}; what is measured now, on {asked}, makes a curve of "
                "its own, which --probe of repdyn figures and repdyn report chooses"
            )
    return told


def _rows_of(store: Store, run: str) -> list[Row]:
    """What is stored of a run's geometry, as far as it can be read: what cannot is measured anew."""
    rows = []
    for path in store.folder_of(run).glob("step*.parquet"):
        with suppress(ValueError):
            rows += [row for row in read_rows(path) if row.layer is not None]
    return rows


def sweep(
    tasks: Sequence[Task], store: Store, settings: Settings, downloads: Downloads, board: ProgressDisplay | None = None
) -> Report:
    """Measure checkpoints one after the other; stop it at any time and call it again with those not in the store.

    Args:
        tasks: what to measure, usually :attr:`TaskList.waiting`.
        store: where rows and failures go.
        settings: how each is measured.
        downloads: where weights lie meanwhile, and within which bounds.
        board: shows progress.

    Raises:
        SweepStoppedError: no connection, or no space on the disk; what was measured is in the store.
        ValueError: another process is at work in the store, and a metric compares checkpoints.
    """
    board = board or ProgressDisplay(len(tasks), shown=False)
    report = Report()
    with _alone_where_checkpoints_are_compared(tasks, store, settings):
        _sweep(tasks, store, settings, downloads, board, report)
    return report


@contextmanager
def _alone_where_checkpoints_are_compared(tasks: Sequence[Task], store: Store, settings: Settings) -> Iterator[None]:
    """Two processes would compare with, and forget, one another's checkpoints."""
    if not any(is_comparing(task, settings) for task in tasks):
        yield
        return
    lock = FileLock(store.path / ".claims" / f"{KEPT}.lock")
    (store.path / ".claims").mkdir(parents=True, exist_ok=True)
    try:
        held = lock.acquire(timeout=0)
    except Timeout as error:
        raise ValueError(
            f"expected one process at a time in {store.path} for metrics that compare a checkpoint with the one before "
            "(cka_previous), but another is at work; leave them out, wait, or give another --store"
        ) from error
    with held:
        yield


def _sweep(
    tasks: Sequence[Task],
    store: Store,
    settings: Settings,
    downloads: Downloads,
    board: ProgressDisplay,
    report: Report,
) -> None:
    for probe in {task.probe.hash: task.probe for task in tasks}.values():
        store.save_probe(probe)
    with board, downloads.opened():
        take = _Taking(store, settings, downloads, board)
        with closing(prefetch(take, tasks, downloads.cancel)) as taken_ones:
            for task, future in taken_ones:
                taken = future.result()
                if taken is None:
                    report.elsewhere.append(task)
                    board.finished(task, "left to another process")
                    continue
                try:
                    _finish(task, taken, store, settings, board, report)
                finally:
                    taken.release(downloads)
                abort_on_repeated_failure(report)


def abort_on_repeated_failure(report: Report) -> None:
    """A mistake of the command fails every checkpoint; hundreds need not be fetched to learn it."""
    reasons = {reason for _, reason in report.failed}
    if len(report.failed) == ALIKE and len(reasons) == 1 and not report.measured:
        raise SweepStoppedError(
            f"the first {ALIKE} checkpoints all failed alike: {reasons.pop()}; once that is mended, --retry-failed "
            "tries them again"
        )


@dataclass(frozen=True)
class _Taken:
    """A checkpoint that is this process's to measure: its files, or why they cannot be had."""

    claim: BaseFileLock
    fetched: Fetched | None
    failure: CheckpointError | None = None

    def release(self, downloads: Downloads) -> None:
        if self.fetched is not None:
            downloads.release(self.fetched)
        self.claim.release()


@dataclass(frozen=True)
class _Taking:
    """Claims and fetches one checkpoint; None where another process was first."""

    store: Store
    settings: Settings
    downloads: Downloads
    board: ProgressDisplay

    def __call__(self, task: Task) -> _Taken | None:
        key = self.settings.key(task)
        claim = self.store.claim(key)
        if claim is None:
            return None
        try:
            if key in self.store:
                claim.release()
                return None
            self.board.fetching(task)
            return _Taken(claim, self.downloads.fetch(task.target, self.board.fetched))
        except CheckpointError as error:
            return _Taken(claim, None, error)
        except BaseException:
            claim.release()
            raise


def _finish(
    task: Task, taken: _Taken, store: Store, settings: Settings, board: ProgressDisplay, report: Report
) -> None:
    try:
        if taken.fetched is None:
            raise taken.failure or CheckpointError("its files are not there")
        board.measuring(task)
        timing = measure_checkpoint(task, taken.fetched, store, settings, board.progress)
    except CheckpointError as error:
        if not isinstance(error, OutOfBoundsError):
            file_failure(task, store, settings, str(error))
        report.failed.append((task, str(error)))
        board.finished(task, f"failed: {error}", failed=True)
    else:
        report.measured.append(task)
        board.finished(task, str(timing))
        board.warn_of_own_windows(task, store.read(settings.key(task)))
