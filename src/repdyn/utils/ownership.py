"""Temporary files and folders that are locked by their process, so that those of killed processes can be removed."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

try:
    import fcntl
except ImportError:  # Windows, where no file is locked, and none is removed as abandoned
    fcntl = None

_FOLDER_LOCK = re.compile(r"\.(repdyn-[a-z]+-[0-9a-f]{32})")


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Create a file and lock it; on exit, it is deleted, unless it was moved.

    On file systems without locks the file is created without one.

    Raises:
        FileExistsError: the file exists.
    """
    descriptor = _create_locked(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def temporary_folder(purpose: str, parent: Path | None = None) -> Iterator[Path]:
    """Create a folder for temporary files, and delete it on exit.

    A process killed meanwhile leaves the folder, which :func:`remove_abandoned_folders` deletes.

    Args:
        purpose: part of the name, lower-case letters.
        parent: existing folder in which it is created; by default that of the system.
    """
    folder = (parent or Path(tempfile.gettempdir())) / f"repdyn-{purpose}-{uuid4().hex}"
    with locked_file(folder.with_name(f".{folder.name}")):
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned_files(paths: Iterable[Path]) -> list[Path]:
    """Delete the files that no process has locked, and return them."""
    removed = []
    for path in paths:
        with _locked_if_abandoned(path) as is_abandoned:
            if is_abandoned:
                path.unlink(missing_ok=True)
                removed.append(path)
    return removed


def remove_abandoned_folders(parent: Path | None = None) -> list[Path]:
    """Delete the folders that killed processes of this user made with :func:`temporary_folder`, and return them."""
    removed = []
    for path in (parent or Path(tempfile.gettempdir())).glob(".repdyn-*"):
        if (match := _FOLDER_LOCK.fullmatch(path.name)) is None:
            continue
        with _locked_if_abandoned(path) as is_abandoned:
            if is_abandoned:
                folder = path.with_name(match[1])
                if folder.exists():
                    shutil.rmtree(folder, ignore_errors=True)
                    removed.append(folder)
                path.unlink(missing_ok=True)
    return removed


def _create_locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        # between these lines another process may have taken the file for an abandoned one
        if not _lock(descriptor) or _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)


@contextmanager
def _locked_if_abandoned(path: Path) -> Iterator[bool]:
    """Lock a regular file of this user that no process has locked; yield whether that succeeded."""
    try:
        # does not wait for the writer of a named pipe
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        yield False
        return
    try:
        status = os.fstat(descriptor)
        is_own = stat.S_ISREG(status.st_mode) and (not hasattr(os, "geteuid") or status.st_uid == os.geteuid())
        yield is_own and _lock(descriptor) and _is_at(descriptor, path)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock a file without waiting; return whether that succeeded."""
    if fcntl is None:
        return False
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether a path still leads to an open file."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False
