"""The files of the checkpoints that come next.

They are downloaded ahead, within a disk budget, into a folder of this process, and deleted when the
checkpoint is measured.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from glob import escape
from pathlib import Path
from platform import node
from threading import Event
from typing import TypeAlias
from uuid import uuid4

import psutil

from repdyn.checkpoints.errors import OutOfBoundsError, SweepStoppedError
from repdyn.checkpoints.hub import PREFETCHING, Hub
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.other_weights import warn_of_other_sizes
from repdyn.checkpoints.targets import Target
from repdyn.checkpoints.weight_files import choose_files, total_bytes
from repdyn.utils.files import cache_directory

_RESERVED_BYTES = 200_000_000
"""Left free on the disk for other programs."""

_CANCEL_SECONDS = 1.0
_POLL_SECONDS = 0.1

Show: TypeAlias = Callable[[str], None]
"""Shows a line of what has happened, or how far a measurement or download is."""


@dataclass(frozen=True)
class LocalFiles:
    """The files of a checkpoint on this machine."""

    folder: Path
    bytes_fetched: int = 0
    """0 if they were present already."""
    seconds: float = 0.0
    """Wall-clock time of the download."""


class Downloads:
    """Downloads the files of checkpoints into a folder of this process, within a disk budget.

    Python files are among them only where the options allow to run a repository's code.
    """

    def __init__(self, hub: Hub, options: SweepOptions) -> None:
        self._hub = hub
        self._budget = options.max_disk
        # a folder of its own, since purge deletes what it finds inside
        parent = options.downloads or cache_directory() / "downloads"
        self._root = parent.expanduser().absolute() / "repdyn-downloads"
        self._choose = partial(choose_files, with_code=options.trust_remote_code)
        # by folder, the bytes that its checkpoint takes or will take
        self._reserved: dict[Path, int] = {}
        self._cancelled = Event()

    @contextmanager
    def opened(self) -> Iterator[ThreadPoolExecutor]:
        """Make the folder for downloads, and yield the thread that downloads.

        The folders that killed processes left are deleted first. On exit the running download is
        cancelled, and everything that was downloaded is deleted.
        """
        self.purge()
        self._cancelled.clear()
        pool = ThreadPoolExecutor(1, thread_name_prefix=PREFETCHING)
        self.folder = self._root / f"{node()}+{os.getpid()}+{uuid4().hex[:12]}"
        self.folder.mkdir(mode=0o700)
        try:
            yield pool
        finally:
            self._cancelled.set()
            # not waited for long, since a hub that does not respond would block until the timeout;
            # but an abandoned download that is still running would create its folder again
            pool.shutdown(wait=False, cancel_futures=True)
            for thread in threading.enumerate():
                if thread.name.startswith(PREFETCHING):
                    thread.join(_CANCEL_SECONDS)
            shutil.rmtree(self.folder, ignore_errors=True)

    def purge(self) -> None:
        """Delete the folders that killed processes of this machine left; others may share the file
        system.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        # the id of a process says something on its own machine alone
        for folder in self._root.glob(f"{escape(node())}+*+*"):
            if not _is_running(int(folder.name.split("+")[1])):
                shutil.rmtree(folder, ignore_errors=True)

    def fetch(self, target: Target, show: Show) -> LocalFiles:
        """Return the files of a checkpoint, downloaded as soon as the budget has room for them.

        Local files and those in the hub's own cache are used directly.
        """
        if target.path is not None:
            return LocalFiles(target.path)
        files = target.remote_files(self._hub, self._choose)
        warn_of_other_sizes(target, self._hub.files(target.repository, target.commit))
        cached = self._hub.cached(target.repository, target.commit, files)
        if cached is not None:
            return LocalFiles(cached)
        n_bytes = total_bytes(files)
        folder = self._reserve(n_bytes)
        start = time.perf_counter()

        def show_progress(n_arrived: int) -> None:
            gigabytes = f"{n_arrived / 1e9:.2f} of {n_bytes / 1e9:.2f} GB"
            show(f"download of {target}: {gigabytes}")

        try:
            self._hub.download(
                target.repository,
                target.commit,
                files,
                folder,
                cancelled=self._cancelled,
                arrived=show_progress,
            )
        except BaseException:
            self.release(LocalFiles(folder))
            raise
        return LocalFiles(folder, n_bytes, time.perf_counter() - start)

    def release(self, fetched: LocalFiles) -> None:
        """Delete the files of a checkpoint, unless they were here before."""
        for folder in [*self._reserved]:
            if fetched.folder.is_relative_to(folder):
                shutil.rmtree(folder, ignore_errors=True)
                del self._reserved[folder]

    def _reserve(self, n_bytes: int) -> Path:
        """Wait until there is room for so many bytes, and return the folder for them."""
        if self._budget is not None and n_bytes > self._budget:
            raise OutOfBoundsError(
                f"its files take {n_bytes / 1e9:.3g} GB, more than the {self._budget / 1e9:.3g} GB "
                "of max_disk="
            )
        # space becomes free when the checkpoint that is being measured is deleted
        while (
            self._reserved and not self._fits(n_bytes) and not self._cancelled.wait(_POLL_SECONDS)
        ):
            pass
        if self._cancelled.is_set():
            raise CancelledError
        free = shutil.disk_usage(self._root).free
        if n_bytes + _RESERVED_BYTES > free:
            raise SweepStoppedError(
                f"the disk of {self._root} is full: the next checkpoint takes {n_bytes / 1e9:.3g} "
                f"GB and {free / 1e9:.3g} GB are free; free some space, or choose another folder "
                "with downloads=, then repeat the sweep"
            )
        folder = self.folder / uuid4().hex[:12]
        self._reserved[folder] = n_bytes
        return folder

    def _fits(self, n_bytes: int) -> bool:
        # a copy of the values, since another thread may release a folder meanwhile
        total = sum([*self._reserved.values()]) + n_bytes
        within_budget = self._budget is None or total <= self._budget
        return within_budget and n_bytes + _RESERVED_BYTES <= shutil.disk_usage(self._root).free


def _is_running(process: int) -> bool:
    # a process that has ended, and whose parent has not asked for its status, is there still
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
