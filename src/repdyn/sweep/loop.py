"""The sweep: fetch, measure, delete, next, the next one being fetched while the current one is measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from filelock import BaseFileLock

from repdyn.store import Store
from repdyn.sweep.board import Board
from repdyn.sweep.checkpoint import Settings, Task, file_failure, measure_checkpoint
from repdyn.sweep.downloads import Downloads, Fetched, one_ahead
from repdyn.sweep.failures import CheckpointError


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
class Agenda:
    """The tasks of a sweep, by what the store says of them."""

    waiting: list[Task]
    done: list[Task]
    failed_before: list[Task]
    """Not tried again unless that is asked for."""


def sort_out(tasks: Iterable[Task], store: Store, settings: Settings, *, retry_failed: bool = False) -> Agenda:
    """Which checkpoints are still to be measured."""
    agenda = Agenda([], [], [])
    for task in tasks:
        key = settings.key(task)
        if key in store:
            agenda.done.append(task)
        elif key.failed in store and not retry_failed:
            agenda.failed_before.append(task)
        else:
            agenda.waiting.append(task)
    return agenda


def sweep(
    tasks: Sequence[Task], store: Store, settings: Settings, downloads: Downloads, board: Board | None = None
) -> Report:
    """Measure checkpoints one after the other; stop it at any time and call it again with those not in the store.

    Args:
        tasks: what to measure, usually :attr:`Agenda.waiting`.
        store: where rows and failures go.
        settings: how each is measured.
        downloads: where weights lie meanwhile, and within which bounds.
        board: shows progress.

    Raises:
        SweepStoppedError: no connection, or no space on the disk; what was measured is in the store.
    """
    board = board or Board(len(tasks), shown=False)
    report = Report()
    for probe in {task.probe.hash: task.probe for task in tasks}.values():
        store.save_probe(probe)
    with board, downloads.opened():
        take = _Taking(store, settings, downloads, board)
        with closing(one_ahead(take, tasks, downloads.cancel)) as taken_ones:
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
    return report


@dataclass(frozen=True)
class _Taken:
    """A checkpoint that is this process's to measure: its files, or why they cannot be had."""

    claim: BaseFileLock
    fetched: Fetched | None
    reason: str = ""

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
    board: Board

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
            return _Taken(claim, None, str(error))
        except BaseException:
            claim.release()
            raise


def _finish(task: Task, taken: _Taken, store: Store, settings: Settings, board: Board, report: Report) -> None:
    try:
        if taken.fetched is None:
            raise CheckpointError(taken.reason)
        board.measuring(task)
        timing = measure_checkpoint(task, taken.fetched, store, settings, board.progress)
    except CheckpointError as error:
        file_failure(task, store, settings, str(error))
        report.failed.append((task, str(error)))
        board.finished(task, f"failed: {error}", failed=True)
    else:
        report.measured.append(task)
        board.finished(task, str(timing))
