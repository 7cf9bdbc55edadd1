"""Folders of downloads, and the removal of those that killed processes left."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

try:
    import fcntl
except ImportError:  # Windows, where no folder is locked, and none is removed as abandoned
    fcntl = None

_FOLDER = re.compile(r"repdyn-downloads-[0-9a-f]{32}")


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Create a folder inside an existing one, and delete it on exit.

    It is locked as long as the process lives; that of a killed one is deleted by :func:`remove_abandoned_folders`.
    """
    folder = parent / f"repdyn-downloads-{uuid4().hex}"
    unlocked = folder.with_name(f".{folder.name}")  # not taken for an abandoned one
    unlocked.mkdir(mode=0o700)
    try:
        with _locked(unlocked):
            yield unlocked.rename(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned_folders(parent: Path) -> list[Path]:
    """Delete the folders that killed processes of this user made with :func:`temporary_folder`, and return them."""
    removed = []
    for folder in parent.iterdir():
        if _FOLDER.fullmatch(folder.name):
            with _locked(folder) as is_abandoned:
                if is_abandoned:
                    shutil.rmtree(folder, ignore_errors=True)
                    removed.append(folder)
    return removed


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder of this user, without waiting; yield whether that succeeded."""
    descriptor, is_locked = None, False
    if fcntl is not None:
        with suppress(OSError):  # on file systems without locks too
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = os.fstat(descriptor).st_uid == os.geteuid()
    try:
        yield is_locked
    finally:
        if descriptor is not None:
            os.close(descriptor)
