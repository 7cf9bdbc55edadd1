"""A folder on a remote filesystem: listing, downloads and uploads through fsspec, with timeouts and retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from repdyn.store.hub_commits import commit, last_commit
from repdyn.store.remote_errors import RefusedError, brief
from repdyn.store.remote_requests import Requests
from repdyn.utils.files import write_atomically
from repdyn.utils.redaction import redacted

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
# where a file needs a folder to lie in
_WITH_FOLDERS = {"file", "local", "ftp", "sftp", "ssh", "smb"}
_CREATES_CONDITIONALLY = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory", "file", "local"}
# fields of a listing that change with a file's content, the strongest first
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "blob_id", "mtime", "LastModified", "last_modified", "created")


@dataclass(frozen=True)
class RemoteFile:
    """A file of a listing."""

    name: str
    """Its path relative to the folder, with slashes."""
    size: int
    version: str
    """Changes with the content: size and checksum, or time of modification."""


class RemoteFolder:
    """A folder that a URL of fsspec names, such as ``s3://bucket/prefix``.

    Args:
        url: of the folder, which need not exist.

    Raises:
        ValueError: no filesystem of this name, or the package for it is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.shown = redacted(self.url)
        self.protocol = url.partition("://")[0].partition("::")[0]
        self._requests = Requests(self.shown, self._reopen)

    @property
    def creates_conditionally(self) -> bool:
        """Return whether :meth:`create` is one step, also among several machines."""
        return self.protocol in _CREATES_CONDITIONALLY

    def files(self, below: str = "") -> dict[str, RemoteFile]:
        """Return all files, or those below a folder in it, by name; none if it does not exist.

        Raises:
            RemoteError: it cannot be listed.
        """

        def find() -> Any:
            self._filesystem.invalidate_cache()
            return self._filesystem.find(self._path(below), detail=True)

        try:
            found = self._attempt("listing", find)
        except FileNotFoundError as error:
            if "bucket" in str(error).lower() or type(error).__name__ == "RepositoryNotFoundError":
                raise self._missing(error) from error
            return {}
        described = [self._file(path, info) for path, info in found.items() if info.get("type") != "directory"]
        return {file.name: file for file in described}

    def file(self, name: str) -> RemoteFile | None:
        """Return what is known of one file; None if there is none.

        Raises:
            RemoteError: no answer.
        """

        def info() -> Mapping[str, Any]:
            self._filesystem.invalidate_cache()
            return self._filesystem.info(self._path(name))

        try:
            found = self._attempt(f"looking for {name}", info)
        except FileNotFoundError:
            return None
        return self._file(self._path(name), found)

    def download(self, file: RemoteFile, target: Path) -> None:
        """Download a file; the target is replaced once all of it is there.

        Raises:
            FileNotFoundError: it is gone.
            RemoteError: it cannot be downloaded.
        """

        def fetch(temporary: Path) -> None:
            self._filesystem.get_file(self._path(file.name), str(temporary))
            if (got := temporary.stat().st_size) != file.size:
                raise OSError(f"expected {file.size} bytes, got {got}")

        self._attempt(f"downloading {file.name}", lambda: write_atomically(target, fetch), is_transfer=True)

    def upload(self, name: str, source: Path) -> None:
        """Upload a file in place of any of this name.

        Raises:
            FileNotFoundError: the local file is gone.
            RemoteError: it cannot be uploaded.
        """
        if not source.exists():
            raise FileNotFoundError(source)
        self._write(
            f"uploading {name}",
            lambda: self._filesystem.put_file(str(source), self._prepared(name)),
            is_transfer=True,
        )

    @property
    def has_commits(self) -> bool:
        """Return whether each upload makes a commit, so that many files should go into one."""
        return self.protocol == "hf" and not self.url.startswith("hf://buckets/")

    def last_commit(self) -> str:
        """Return the last commit, where there are commits.

        Raises:
            RemoteError: no answer.
        """
        try:
            return self._attempt("asking for the last commit", lambda: last_commit(*self._opened))
        except FileNotFoundError as error:
            raise self._missing(error) from error

    def change(self, added: Mapping[str, Path], deleted: Sequence[str] = (), parent: str | None = None) -> None:
        """Upload files by name, then delete others that are there, in as few commits as possible where there are any.

        Args:
            added: local files by name.
            deleted: names of files that are there.
            parent: the last commit, if nothing is to be changed after any other one.

        Raises:
            ConflictError: the last commit is another one.
            RemoteError: not all were uploaded and deleted.
        """
        if not self.has_commits:
            for name, source in added.items():
                self.upload(name, source)
            for name in deleted:
                self.delete(name)
            return
        what = f"committing {len(added) + len(deleted)} files"
        self._write(what, lambda: commit(*self._opened, added, deleted, parent), is_transfer=True)

    def write(self, name: str, content: bytes) -> None:
        """Write a small file in place of any of this name."""
        self._write(f"writing {name}", lambda: self._filesystem.pipe_file(self._prepared(name), content))

    def create(self, name: str, content: bytes) -> bool:
        """Write a small file unless there is one of this name, in one step; return whether it was written.

        Args:
            name: of the file.
            content: unlike that of any other process.
        """
        try:
            self._write(
                f"creating {name}",
                lambda: self._filesystem.pipe_file(self._prepared(name), content, mode="create"),
            )
        except FileExistsError:
            # an attempt without an answer may have written it
            return self.read(name) == content
        return True

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""

        def cat() -> Any:
            self._filesystem.invalidate_cache()
            return self._filesystem.cat_file(self._path(name))

        try:
            return self._attempt(f"reading {name}", cat)
        except FileNotFoundError:
            return None

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        try:
            self._attempt(f"deleting {name}", lambda: self._filesystem.rm_file(self._path(name)))
        except FileNotFoundError:
            return

    @cached_property
    def _opened(self) -> tuple[AbstractFileSystem, str]:
        from fsspec.core import url_to_fs

        try:
            filesystem, root = url_to_fs(self.url)
        except ImportError as error:
            extra = _EXTRAS.get(self.protocol)
            todo = f"pip install 'repdyn[{extra}]'" if extra else f"install the package that it names: {error}"
            raise ValueError(f"expected the package for {self.protocol}://, it is not installed; {todo}") from error
        except ValueError as error:
            raise ValueError(
                f"expected a folder or a URL such as s3://bucket/prefix, got {self.shown}: {redacted(str(error))}"
            ) from error
        return filesystem, root.rstrip("/")

    @property
    def _filesystem(self) -> AbstractFileSystem:
        return self._opened[0]

    def _reopen(self) -> None:
        """Let the next request read the credentials again: those of a long training expire and are renewed."""
        type(self._filesystem).clear_instance_cache()
        self.__dict__.pop("_opened", None)

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}".rstrip("/")

    def _prepared(self, name: str) -> str:
        """Return the path of a file to write, with a folder to lie in."""
        path = self._path(name)
        if self.protocol in _WITH_FOLDERS:
            self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        return path

    def _file(self, path: str, info: Mapping[str, Any]) -> RemoteFile:
        version = next((info[field] for field in _VERSIONS if info.get(field)), "")
        if isinstance(version, datetime):
            version = version.timestamp()  # as the filesystem in memory lists what it describes as an object
        name = path.removeprefix(self._opened[1]).lstrip("/")
        return RemoteFile(name, int(info.get("size") or 0), f"{info.get('size')} {version}")

    def _attempt(self, what: str, function: Callable[[], T], *, is_transfer: bool = False) -> T:
        _ = self._filesystem  # a missing package is an error of its own
        return self._requests(what, function, is_transfer=is_transfer)

    def _write(self, what: str, function: Callable[[], object], *, is_transfer: bool = False) -> None:
        try:
            self._attempt(what, function, is_transfer=is_transfer)
        except FileNotFoundError as error:
            raise self._missing(error) from error

    def _missing(self, error: Exception) -> RefusedError:
        return RefusedError(
            f"expected an existing bucket or repository at {self.shown}, got: {brief(error)}; create it, or check "
            "the URL"
        )
