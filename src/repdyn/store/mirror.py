"""A local copy of a remote store: what is new or changed is downloaded, and what waits for upload is recorded.

    FOLDER/NAME/            the store, which everything that reads takes for a local one
    FOLDER/state/index.json the remote version of each file that was downloaded or uploaded
    FOLDER/state/waiting/   a marker for each file that is to be uploaded or deleted, made before the file is changed

A process may be killed at any time: a marker is removed only after its upload, and the next process continues.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeVar
from uuid import uuid4

from filelock import FileLock

from repdyn.store.remote_errors import ConflictError, RemoteError
from repdyn.store.remote_folder import RemoteFile, RemoteFolder
from repdyn.store.waiting_files import Waiting, WaitingFiles
from repdyn.utils.files import write_atomically

Item = TypeVar("Item")

STATE_FOLDER = "state"
PARALLEL_TRANSFERS = 16
COMMIT_ATTEMPTS = 5
"""How often a commit is tried while other machines commit."""
_FILES_WITH_PROGRESS_BAR = 20
_UNKNOWN = ""
"""The version of a file whose download has begun."""


def is_shared(name: str) -> bool:
    """Return whether a file of a store, by its name, is kept remotely too: rows, probes and certificates.

    >>> is_shared("run/step000000008-probe-metrics.parquet"), is_shared("probes/3f2a.safetensors")
    (True, True)
    >>> is_shared(".claims/ab.lock"), is_shared("run/alerts.yaml"), is_shared("run/kept_states/ab/layer003.safetensors")
    (False, False, False)
    """
    parts = PurePosixPath(name).parts
    if len(parts) < 2 or any(part.startswith(".") or part == ".." for part in parts):
        return False
    folder, ending = parts[0], PurePosixPath(name).suffix
    if folder == "probes":
        return len(parts) == 2 and ending == ".safetensors"
    if folder == "certificates":
        return len(parts) == 2 and ending == ".json"
    return ending == ".parquet" and folder not in {"exports", "figures", "claims"}


class Mirror:
    """A local copy of the files of a remote store.

    Args:
        remote: the remote folder.
        folder: of the copy, with its state; several processes may use it.
    """

    def __init__(self, remote: RemoteFolder, folder: Path) -> None:
        self.remote = remote
        name = PurePosixPath(remote.shown.partition("://")[2]).name or "store"
        self.path = folder / name
        self._state = folder / STATE_FOLDER
        self._waiting = WaitingFiles(self._state / "waiting", self.path)
        self.mark = self._waiting.mark
        self.waiting = self._waiting.all

    @property
    def has_commits(self) -> bool:
        """Return whether each upload makes a commit, so that what waits should be uploaded at once."""
        return self.remote.has_commits

    @property
    def identity(self) -> str:
        """Return a random name of this copy, the same for all processes that use it."""
        path = self._state / "identity"
        with self._locked():
            if not path.exists():
                write_atomically(path, lambda temporary: temporary.write_text(uuid4().hex))
        return path.read_text()

    def local_files(self) -> set[str]:
        """Return the names of the copied files that are kept remotely too."""
        names = (path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file())
        return {name for name in names if is_shared(name)}

    def refresh(self, below: str = "", folders: Collection[str] = ()) -> set[str]:
        """Download new and changed files, and delete those that are gone remotely; those that wait are left alone.

        Args:
            below: the name of a run's folder, outside of which nothing is listed; everything is unless given.
            folders: names of runs' folders, outside of which nothing is downloaded; everything listed is unless given.

        Returns:
            The names of the listed files.

        Raises:
            RemoteError: the remote folder cannot be listed or read; files downloaded before are kept.
        """
        scope = {below} if below else set(folders)

        def chosen(names: Iterable[str]) -> set[str]:
            return {name for name in names if not scope or name.partition("/")[0] in scope}

        with self._locked():
            listed = {name: file for name, file in self.remote.files(below).items() if is_shared(name)}
            waiting = {one.name for one in self.waiting()}
            index, local = self._index(), self.local_files()
            for name in chosen(index) - listed.keys() - waiting:
                (self.path / name).unlink(missing_ok=True)
                index.pop(name)
            for name in chosen(local) - index.keys() - listed.keys() - waiting:
                self.mark(name)  # written by a program that takes the copy for a local store
            new = [
                listed[name]
                for name in sorted(chosen(listed) - waiting)
                if index.get(name) != listed[name].version or name not in local
            ]
            self._download(new, index)
        return set(listed)

    def fetch(self, names: Iterable[str]) -> None:
        """Download single files if they are there and do not wait for upload.

        Raises:
            RemoteError: as :meth:`refresh` does.
        """
        found = [file for name in names if (file := self.remote.file(name))]
        with self._locked():
            waiting, index = {one.name for one in self.waiting()}, self._index()
            self._download([file for file in found if file.name not in waiting], index)

    def _download(self, files: list[RemoteFile], index: dict[str, str]) -> None:
        # a file that is there without being in the index would be taken for a new one
        self._save_index(index | {file.name: _UNKNOWN for file in files if file.name not in index})

        def download(file: RemoteFile) -> None:
            try:
                self.remote.download(file, self.path / file.name)
            except FileNotFoundError:
                return  # deleted since it was listed
            index[file.name] = file.version

        try:
            _in_parallel(download, files, "downloading")
        finally:
            self._save_index(index)

    def upload(self, one: Waiting) -> None:
        """Upload or delete a file, and remove its marker unless the file has changed meanwhile.

        What another machine has written since it was downloaded is not deleted.

        Raises:
            RemoteError: it was not uploaded; it waits on.
        """
        if one.is_deleted:
            self._discard(one)
            there, file = self.remote.file(one.name), None
            if there is not None and self._is_as_known(there, self._index()):
                self.remote.delete(one.name)
        else:
            try:
                self.remote.upload(one.name, self.path / one.name)
            except FileNotFoundError:
                return  # deleted since; its new marker says so
            file = self.remote.file(one.name)
        self._settle(one, file)

    def upload_all(self) -> None:
        """Upload and delete everything that waits, in one commit where there are commits.

        Raises:
            RemoteError: the first that failed; the others have been tried.
        """
        waiting = self.waiting()
        if self.has_commits:
            return self._commit(waiting)
        # what is deleted may have been replaced by what is uploaded
        for is_deleted in (False, True):
            _in_parallel(self.upload, [one for one in waiting if one.is_deleted is is_deleted], "uploading")

    def _commit(self, waiting: list[Waiting]) -> None:
        for attempts_left in range(COMMIT_ATTEMPTS - 1, -1, -1):
            try:
                return self._commit_once(waiting)
            except ConflictError:
                # another machine was faster; what it has written is looked at again
                if not attempts_left:
                    raise

    def _commit_once(self, waiting: list[Waiting]) -> None:
        if not waiting:
            return
        added = {one.name: self.path / one.name for one in waiting if not one.is_deleted}
        gone = [one for one in waiting if one.is_deleted]
        for one in gone:
            self._discard(one)
        parent = self.remote.last_commit()
        there, index = self.remote.files() if gone else {}, self._index()
        deleted = [one.name for one in gone if one.name in there and self._is_as_known(there[one.name], index)]
        self.remote.change(added, deleted, parent)
        there = self.remote.files() if added else {}
        missing = [one.name for one in waiting if not one.is_deleted and one.name not in there]
        for one in waiting:
            if one.name not in missing:
                self._settle(one, None if one.is_deleted else there.get(one.name))
        if missing:
            raise RemoteError(
                f"{missing[0]} is not in {self.remote.shown} after its commit; look whether a .gitignore there leaves "
                "it out, and remove that line"
            )

    def _discard(self, one: Waiting) -> None:
        """Delete a file here too if its process was killed before it did so."""
        with self._waiting.if_unchanged(one) as unchanged:
            if unchanged and one.is_discarded:
                (self.path / one.name).unlink(missing_ok=True)

    @staticmethod
    def _is_as_known(file: RemoteFile, index: dict[str, str]) -> bool:
        """Return whether no other machine has written a file since this one has read or written it."""
        return index.get(file.name, file.version) == file.version

    def _settle(self, one: Waiting, file: RemoteFile | None) -> None:
        """Record an upload, and remove its marker unless the file has changed meanwhile."""
        with self._locked():
            index = self._index()
            if file is None:
                index.pop(one.name, None)
            else:
                index[one.name] = file.version
            self._save_index(index)
        with self._waiting.if_unchanged(one) as unchanged:
            if unchanged:
                one.marker.unlink(missing_ok=True)

    def _index(self) -> dict[str, str]:
        try:
            return json.loads((self._state / "index.json").read_text())
        except FileNotFoundError:
            return {}

    def _save_index(self, index: dict[str, str]) -> None:
        content = json.dumps(index, indent=0, sort_keys=True)
        write_atomically(self._state / "index.json", lambda temporary: temporary.write_text(content))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._state.mkdir(parents=True, exist_ok=True)
        with FileLock(self._state / "lock"):
            yield


def _in_parallel(function: Callable[[Item], None], items: list[Item], what: str) -> None:
    """Call a function with each item, several at a time, and show a progress bar where there are many.

    Raises:
        Exception: the first error, once all items have been tried.
    """
    if not items:
        return
    from tqdm import tqdm

    shown = None if len(items) >= _FILES_WITH_PROGRESS_BAR else True
    with ThreadPoolExecutor(PARALLEL_TRANSFERS, thread_name_prefix="repdyn-transfer") as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            for future in tqdm(futures, what, unit="file", disable=shown, leave=False):
                future.exception()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise errors[0]
