"""Files: the folder of the cache, writing in one step, and removal of what killed processes left."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4


def cache_directory(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of downloads and processed text: ``cache_dir``, else $REPDYN_CACHE, else ~/.cache/repdyn."""
    return expand_user(cache_dir or os.environ.get("REPDYN_CACHE") or "~/.cache/repdyn")


def expand_user(path: str | os.PathLike[str]) -> Path:
    """Return a path with the home directory in place of ~.

    Raises:
        FileNotFoundError: there is no such user, or none with a home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise FileNotFoundError(
            f"expected ~ or ~NAME of a user with a home directory, got {os.fspath(path)!r}: {error} Set HOME, or "
            "REPDYN_CACHE to a folder"
        ) from error


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


TEMPORARY_FILE = re.compile(r"\.repdyn-[0-9a-f]{32}(\..*)?")
"""Names of the temporary files of :func:`write_atomically`."""


def write_atomically(target: Path, write: Callable[[Path], object]) -> None:
    """Let ``write(path)`` fill a temporary file in the target's folder, then replace the target with it in one step.

    A process killed meanwhile leaves the target unchanged, and at most a file whose name matches
    :data:`TEMPORARY_FILE`; as long as the process lives, this file is locked. A missing folder is created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # not tempfile: its files are readable by their owner alone, and a store is to be shared
    temporary = target.with_name(f".repdyn-{uuid4().hex}{target.suffix}")
    with locked_file(temporary):
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
