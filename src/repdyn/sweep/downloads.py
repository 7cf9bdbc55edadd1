"""Downloads of weights within a disk budget, in a folder per process, deleted after the measurement."""

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

from filelock import BaseFileLock, FileLock, Timeout

from repdyn.hub.client import ASKING_THE_HUB, Hub, total_bytes
from repdyn.hub.errors import CancelledError, OutOfBoundsError, SweepStoppedError
from repdyn.hub.transfer import DOWNLOAD_THREAD, DownloadMonitor
from repdyn.sweep.targets import Target
from repdyn.text.corpus import cache_directory

# Left free on the disk for other programs.
_RESERVED_BYTES = 200_000_000
_CANCEL_SECONDS = 1.0
# Names of the subfolders and locks of processes.
_OWN_NAME = re.compile(r"[0-9a-f]{12}(\.lock)?")

PREFETCH_THREAD = "repdyn-prefetch"
"""Prefix of the names of threads that download the next checkpoint."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class LocalFiles:
    """The files of a checkpoint on this machine."""

    folder: Path
    bytes_fetched: int
    """0 if they were present already."""
    seconds: float
    """Wall-clock time of the download."""


@dataclass(frozen=True)
class DownloadLimits:
    """The folder and the limits of downloads."""

    folder: Path
    """Folder shared by all processes, in which each uses its own subfolder."""
    budget_bytes: int | None = None
    """Largest number of bytes that one process keeps on disk at any time; None for no limit."""
    timeout_seconds: float = 3600
    """Longest time for the download of one checkpoint."""
    with_code: bool = False
    """Whether Python files of a repository are downloaded as well."""

    @classmethod
    def from_options(cls, options: Namespace) -> DownloadLimits:
        """Read the limits from the options of the command line.

        Raises:
            FileNotFoundError: no folder is given, and the user has no home directory for the default one.
        """
        folder = options.downloads or cache_directory() / "downloads"
        return cls(folder.absolute(), options.max_disk, options.timeout, options.trust_remote_code)


class Downloads:
    """The downloads of a process, in a folder of its own; folders left by killed processes are deleted first."""

    def __init__(self, hub: Hub, limits: DownloadLimits) -> None:
        # a subfolder, so that no other files of the folder are deleted
        self._root = limits.folder / "repdyn-downloads"
        self._hub = hub
        self._limits = limits
        self._held: dict[Path, int] = {}
        self._changed = Condition()
        self._cancelled = Event()

    @contextmanager
    def opened(self) -> Iterator[Downloads]:
        """Open the folder for downloads; on exit, all downloads are deleted."""
        self.purge()
        self._cancelled.clear()
        name = uuid4().hex[:12]
        lock = FileLock(self._root / f"{name}.lock", thread_local=False)
        with self._purging():
            lock.acquire()
        self._folder = self._root / name
        try:
            yield self
        finally:
            self.cancel()
            # an abandoned download that is still running would create its folder again
            for thread in _prefetch_threads():
                thread.join(_CANCEL_SECONDS)
            shutil.rmtree(self._folder, ignore_errors=True)
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)

    def purge(self) -> list[Path]:
        """Delete the folders that killed processes left, and return them."""
        self._root.mkdir(parents=True, exist_ok=True)
        removed = []
        with self._purging():
            for name in sorted({path.stem for path in self._root.iterdir() if _OWN_NAME.fullmatch(path.name)}):
                lock = FileLock(self._root / f"{name}.lock")
                try:
                    lock.acquire(timeout=0)
                except Timeout:
                    continue  # its process is running
                if (self._root / name).exists():
                    shutil.rmtree(self._root / name, ignore_errors=True)
                    removed.append(self._root / name)
                lock.release()
                Path(lock.lock_file).unlink(missing_ok=True)
        return removed

    def fetch(self, target: Target, on_bytes: Callable[[int, int], None]) -> LocalFiles:
        """Download the files of a checkpoint, after waiting until the budget has room for them.

        Args:
            target: the checkpoint; local files and those in the hub's own cache are used directly.
            on_bytes: called with the number of new bytes and the total number of bytes.

        Raises:
            CheckpointError: the files are not available, or are larger than the whole budget.
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
        """Delete the downloaded files of a checkpoint; other files are not deleted."""
        for folder in list(self._held):
            if fetched.folder.is_relative_to(folder):
                self._remove(folder)

    def cancel(self) -> None:
        """Cancel a running download, and reject new ones."""
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
        # while other downloads are held, space may become free again
        return within_budget and (not self._held or n_bytes + _RESERVED_BYTES <= self._free_bytes())

    def _require_space(self, n_bytes: int) -> None:
        free = self._free_bytes()
        if n_bytes + _RESERVED_BYTES > free:
            raise SweepStoppedError(
                f"the disk of {self._root} is full: the next checkpoint takes {n_bytes / 1e9:.3g} GB and "
                f"{free / 1e9:.3g} GB are free; free some space, or choose another folder with --downloads FOLDER, "
                "then repeat the command"
            )

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._root).free

    def _remove(self, folder: Path) -> None:
        with self._changed:
            shutil.rmtree(folder, ignore_errors=True)
            self._held.pop(folder, None)
            self._changed.notify_all()

    def _purging(self) -> BaseFileLock:
        """Return a lock for one process at a time: a lock file that is not locked yet looks like an abandoned one."""
        return FileLock(self._root / ".purge")


def prefetch(
    work: Callable[[Item], Result], items: Sequence[Item], cancel: Callable[[], None]
) -> Generator[tuple[Item, Future[Result]]]:
    """Yield each item with the result of its work, while a thread works on the next item.

    At most two results exist at any time: the one yielded last, and the next one.

    Args:
        work: function applied to each item, in order.
        items: any number of items.
        cancel: called if the caller stops early; must end running work soon.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix=PREFETCH_THREAD)
    try:
        following = [pool.submit(work, item) for item in items[:1]]
        for index, item in enumerate(items):
            current = following.pop()
            current.exception()  # waits; exceptions are raised by the caller
            following = [pool.submit(work, next_item) for next_item in items[index + 1 : index + 2]]
            yield item, current
    except BaseException:
        cancel()
        # not waited for, since a hub that does not respond would block until the timeout
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def has_abandoned_threads() -> bool:
    """Return whether a thread still waits for the hub, whose answer nobody needs any more."""
    waiting = (PREFETCH_THREAD, DOWNLOAD_THREAD, ASKING_THE_HUB)
    return any(thread.name.startswith(waiting) for thread in threading.enumerate())


def _prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(PREFETCH_THREAD)]
