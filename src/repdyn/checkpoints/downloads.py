"""Downloads of weights within a disk budget, in a folder per process, deleted after the measurement."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeVar
from uuid import uuid4

from repdyn.checkpoints.errors import CancelledError, OutOfBoundsError, SweepStoppedError
from repdyn.checkpoints.hub import PREFETCHING, Hub, total_bytes
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.targets import Target
from repdyn.checkpoints.temporary import remove_abandoned_folders, temporary_folder
from repdyn.utils.files import cache_directory

_RESERVED_BYTES = 200_000_000
"""Left free on the disk for other programs."""
_CANCEL_SECONDS, _POLL_SECONDS = 1.0, 0.1

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class LocalFiles:
    """The files of a checkpoint on this machine."""

    folder: Path
    bytes_fetched: int = 0
    """0 if they were present already."""
    seconds: float = 0.0
    """Wall-clock time of the download."""


class Downloads:
    """The downloads of a process, in a folder of its own; folders left by killed processes are deleted first.

    Args:
        hub: from which files are downloaded.
        root: folder of the downloads of all processes.
        budget_bytes: largest number of bytes that this process keeps on disk at any time; None for no limit.
        with_code: whether Python files of a repository are downloaded as well.
    """

    def __init__(self, hub: Hub, root: Path, budget_bytes: int | None = None, *, with_code: bool = False) -> None:
        self._hub = hub
        self._root = root
        self._budget = budget_bytes
        self._with_code = with_code
        self._held: dict[Path, int] = {}
        self._cancelled = Event()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the folder for downloads; on exit, a running one is cancelled, and all are deleted."""
        self.purge()
        self._cancelled.clear()
        with temporary_folder("downloads", self._root) as self._folder:
            try:
                yield
            finally:
                self._cancelled.set()
                # an abandoned download that is still running would create its folder again
                for thread in threading.enumerate():
                    if thread.name.startswith(PREFETCHING):
                        thread.join(_CANCEL_SECONDS)

    def purge(self) -> list[Path]:
        """Delete the folders that killed processes left, and return them."""
        self._root.mkdir(parents=True, exist_ok=True)
        return remove_abandoned_folders(self._root)

    def fetch(self, target: Target, on_bytes: Callable[[int, int], None] = lambda n, total: None) -> LocalFiles:
        """Return the files of a checkpoint, downloaded as soon as the budget has room for them.

        Local files and those in the hub's own cache are used directly. ``on_bytes`` is called with the number of bytes
        so far and their total number.
        """
        if target.path is not None:
            return LocalFiles(target.path)
        files = target.remote_files(self._hub, with_code=self._with_code)
        place = target.repository, target.commit, files
        if cached := self._hub.cached(*place):
            return LocalFiles(cached / target.subfolder)
        total = total_bytes(files)
        folder, start = self._reserve(total), time.perf_counter()
        try:
            self._hub.download(*place, folder, self._cancelled, lambda n: on_bytes(n, total))
        except BaseException:
            self._remove(folder)
            raise
        return LocalFiles(folder / target.subfolder, total, time.perf_counter() - start)

    def release(self, fetched: LocalFiles) -> None:
        """Delete the downloaded files of a checkpoint; other files are not deleted."""
        for folder in list(self._held):
            if fetched.folder.is_relative_to(folder):
                self._remove(folder)

    def _reserve(self, n_bytes: int) -> Path:
        """Return the folder for so many bytes, as soon as there is room for them."""
        if self._budget is not None and n_bytes > self._budget:
            raise OutOfBoundsError(
                f"its files take {n_bytes / 1e9:.3g} GB, more than the {self._budget / 1e9:.3g} GB of --max-disk"
            )
        # space becomes free when the checkpoint that is being measured is deleted
        while self._held and not self._fits(n_bytes) and not self._cancelled.wait(_POLL_SECONDS):
            pass
        if self._cancelled.is_set():
            raise CancelledError
        if n_bytes + _RESERVED_BYTES > (free := self._free_bytes()):
            raise SweepStoppedError(
                f"the disk of {self._root} is full: the next checkpoint takes {n_bytes / 1e9:.3g} GB and "
                f"{free / 1e9:.3g} GB are free; free some space, or choose another folder with --downloads FOLDER, "
                "then repeat the command"
            )
        folder = self._folder / uuid4().hex[:12]
        self._held[folder] = n_bytes
        return folder

    def _fits(self, n_bytes: int) -> bool:
        within_budget = self._budget is None or sum([*self._held.values()]) + n_bytes <= self._budget
        return within_budget and n_bytes + _RESERVED_BYTES <= self._free_bytes()

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._root).free

    def _remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._held.pop(folder, None)


def downloads_of(options: SweepOptions, hub: Hub) -> Downloads:
    """Return the downloads that the options of a sweep describe."""
    folder = (options.downloads or cache_directory() / "downloads").absolute() / "repdyn-downloads"
    return Downloads(hub, folder, options.max_disk, with_code=options.trust_remote_code)


def prefetch(work: Callable[[Item], Result], items: Sequence[Item]) -> Generator[tuple[Item, Result]]:
    """Yield each item with the result of its work, while a thread works on the next item.

    At most two results exist at any time: the one yielded last, and the next one.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix=PREFETCHING)
    try:
        following = [pool.submit(work, item) for item in items[:1]]
        for number, item in enumerate(items, start=1):
            result = following.pop().result()
            following = [pool.submit(work, item) for item in items[number : number + 1]]
            yield item, result
    finally:
        # not waited for, since a hub that does not respond would block until the timeout
        pool.shutdown(wait=False, cancel_futures=True)
