"""Weights on disk: inside a budget, in a folder of this process's own, gone when measured."""

from __future__ import annotations

import re
import shutil
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Event
from typing import TypeVar
from uuid import uuid4

from filelock import FileLock, Timeout

from repdyn.hub.client import DownloadMonitor, Hub, total_bytes
from repdyn.hub.errors import CancelledError, OutOfBoundsError, SweepStoppedError
from repdyn.sweep.targets import Target

# Left free on the disk: whoever fills it to the last byte breaks other programs.
_MARGIN_BYTES = 200_000_000
_SOON_SECONDS = 1.0
# What processes keep for themselves inside the folder that the user names.
_OWN = re.compile(r"[0-9a-f]{12}(\.lock)?")

PREFETCH_THREAD = "repdyn-ahead"
"""How the names of threads begin that fetch the next checkpoint."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class LocalFiles:
    """A checkpoint's files on this machine."""

    folder: Path
    bytes_fetched: int
    """0 where they were here already."""
    seconds: float
    """Wall-clock time of the download."""


@dataclass(frozen=True)
class DownloadLimits:
    """Where a process downloads to, and how much."""

    folder: Path
    """Shared by all processes; each uses a subfolder of its own."""
    budget_bytes: int | None = None
    """Most that one process keeps on disk at any time; None for no limit."""
    timeout_seconds: float = 3600
    """Longest time for the download of one checkpoint."""
    with_code: bool = False
    """Whether Python files of a repository are downloaded too."""

    @classmethod
    def from_options(cls, options: Namespace) -> DownloadLimits:
        """Read the limits from the options of the command line."""
        return cls(options.downloads.absolute(), options.max_disk, options.timeout, options.trust_remote_code)


class Downloads:
    """A process's own folder for downloads. Folders that killed processes left behind are removed first."""

    def __init__(self, hub: Hub, limits: DownloadLimits) -> None:
        # a subfolder, because other files in the folder are not ours to remove
        self._root = limits.folder / "repdyn-downloads"
        self._hub = hub
        self._limits = limits
        self._held: dict[Path, int] = {}
        self._changed = Condition()
        self._cancelled = Event()

    @contextmanager
    def opened(self) -> Iterator[Downloads]:
        """Inside, files can be fetched; on leaving, whatever was fetched is removed."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._cancelled.clear()
        name = uuid4().hex[:12]
        lock = FileLock(self._root / f"{name}.lock", thread_local=False)
        # one at a time: between making a lock's file and locking it, it looks like a dead process's
        with FileLock(self._root / ".purge"):
            self._purge()
            lock.acquire()
        self._folder = self._root / name
        try:
            yield self
        finally:
            self.cancel()
            # before that, a download that was given up would make its folder anew
            for thread in _given_up():
                thread.join(_SOON_SECONDS)
            shutil.rmtree(self._folder, ignore_errors=True)
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)

    def fetch(self, target: Target, on_bytes: Callable[[int, int], None]) -> LocalFiles:
        """Put a checkpoint's files on disk, waiting until the budget has room for them.

        Args:
            target: what to fetch; local files and those in the hub's own cache are taken as they are.
            on_bytes: called with the number of new bytes and of all bytes.

        Raises:
            CheckpointError: it cannot be had, or is larger than the whole budget.
            SweepStoppedError: no connection, or no space on the disk.
            CancelledError: :meth:`cancel` was called.
        """
        if target.path is not None:
            return LocalFiles(target.path, 0, 0.0)
        files = target.remote_files(self._hub, with_code=self._limits.with_code)
        if cached := self._hub.cached(target.repository, target.commit, files):
            return LocalFiles(cached / target.subfolder, 0, 0.0)
        total = total_bytes(files)
        folder = self._reserve(total)
        on_bytes(0, total)
        start = time.perf_counter()
        monitor = DownloadMonitor(self._limits.timeout_seconds, self._cancelled, lambda n: on_bytes(n, total))
        try:
            self._hub.download(target.repository, target.commit, files, folder, monitor)
        except BaseException:
            self._remove(folder)
            raise
        return LocalFiles(folder / target.subfolder, total, time.perf_counter() - start)

    def release(self, fetched: LocalFiles) -> None:
        """Remove what was fetched for a checkpoint; files that were here before stay."""
        for folder in list(self._held):
            if fetched.folder.is_relative_to(folder):
                self._remove(folder)

    def cancel(self) -> None:
        """End any download that is under way, and refuse new ones."""
        with self._changed:
            self._cancelled.set()
            self._changed.notify_all()

    def _reserve(self, n_bytes: int) -> Path:
        budget = self._limits.budget_bytes
        if budget is not None and n_bytes > budget:
            raise OutOfBoundsError(
                f"its files take {n_bytes / 1e9:.3g} GB, more than the {budget / 1e9:.3g} GB of --max-disk"
            )
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled.is_set() or self._fits(n_bytes))
            if self._cancelled.is_set():
                raise CancelledError
            self._require_space(n_bytes)
            folder = self._folder / uuid4().hex[:12]
            self._held[folder] = n_bytes
        return folder

    def _fits(self, n_bytes: int) -> bool:
        held = sum(self._held.values())
        within_budget = self._limits.budget_bytes is None or held + n_bytes <= self._limits.budget_bytes
        # with something still held the disk may only be full for now
        return within_budget and (not self._held or n_bytes + _MARGIN_BYTES <= self._free_bytes())

    def _require_space(self, n_bytes: int) -> None:
        free = self._free_bytes()
        if n_bytes + _MARGIN_BYTES > free:
            raise SweepStoppedError(
                f"the disk of {self._root} is full: the next checkpoint takes {n_bytes / 1e9:.3g} GB and "
                f"{free / 1e9:.3g} GB are free; free some, or choose another place with --downloads FOLDER, then "
                "repeat the command"
            )

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._root).free

    def _remove(self, folder: Path) -> None:
        with self._changed:
            shutil.rmtree(folder, ignore_errors=True)
            self._held.pop(folder, None)
            self._changed.notify_all()

    def _purge(self) -> None:
        for path in [path for path in self._root.iterdir() if _OWN.fullmatch(path.name)]:
            lock = FileLock(path.with_suffix(".lock"))
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue  # its process lives
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            lock.release()
            path.with_suffix(".lock").unlink(missing_ok=True)


def prefetch(
    work: Callable[[Item], Result], items: Sequence[Item], give_up: Callable[[], None]
) -> Generator[tuple[Item, Future[Result]]]:
    """Each item with the outcome of its work, the next item's work being done in a thread meanwhile.

    At most two outcomes exist at any time: the one that was yielded last, and the one in the making.

    Args:
        work: done for each item, in order.
        items: any number.
        give_up: called where the caller stops early; must make the work that is under way end soon.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix=PREFETCH_THREAD)
    try:
        following = [pool.submit(work, item) for item in items[:1]]
        for index, item in enumerate(items):
            current = following.pop()
            current.exception()  # waits; what was raised is for the caller
            following = [pool.submit(work, after) for after in items[index + 1 : index + 2]]
            yield item, current
    except BaseException:
        give_up()
        # not waited for: a hub that keeps silent would keep the caller for as long as it is given to answer
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def is_prefetching() -> bool:
    """Whether work that was given up has not come to its end yet."""
    return any(thread.is_alive() for thread in _given_up())


def _given_up() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(PREFETCH_THREAD)]
