"""A store at a URL: a local copy that everything reads, downloads of what changed, and uploads in
the background.

    CACHE/stores/DIGEST/NAME/       the copy, which everything that reads takes for a local store
    CACHE/stores/DIGEST/index.json  of each file the remote version, and the local state that it was
                                    sent or received as

A file of the copy whose state is not in the index waits for its upload. A process may be killed at
any time, or run beside another one: at worst a file is sent twice. Nothing is ever deleted
remotely.
"""

import hashlib
import json
import logging
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, TypeVar

from filelock import FileLock
from tqdm.contrib.concurrent import thread_map

from repdyn.store.files import ROW_FILE, copy_folder
from repdyn.store.runs import RUN_FILE
from repdyn.store.store import Store
from repdyn.utils.attempts import TimeoutRunner
from repdyn.utils.extras import install_line
from repdyn.utils.files import write_atomically
from repdyn.utils.redaction import redacted

T = TypeVar("T")

log = logging.getLogger(__name__)

UPLOAD_SECONDS = 120.0  # how long the end of a sweep or a training waits for the uploads
REQUEST_SECONDS = 300.0
"""How long one request may take: the listing of all files, or the transfer of one or of a commit.
"""
COMMIT_SECONDS = 60.0
"""Shortest time between two commits, of which the Hugging Face hub accepts some hundred in an hour.
"""
_FILES_PER_COMMIT = 500
# downloads at once
_PARALLEL = 16
# between two attempts while somebody waits for the uploads
_POLL_SECONDS = 0.2
# of files or commits in one attempt, after which the rest waits for the next one
_MAX_FAILURES = 3
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
# as clients name and describe it: boto, the Hugging Face hub and its storage of large files, S3
# without a body
_REFUSED = re.compile(
    r"PermissionError|NoCredentialsError|PartialCredentialsError|TokenRetrievalError|"
    r"LocalTokenNotFoundError|"
    r"\b40[13] (client error|forbidden|unauthorized)|status client error \(40[13] |"
    r"\(400\) when calling the headobject|expired|invalidaccesskeyid",
    re.IGNORECASE,
)


class RemoteError(OSError):
    """An error of a remote store: no connection, no answer, or a transfer that failed again and
    again.
    """


class RefusedError(RemoteError):
    """An error of a remote store that repeating does not help: credentials, permissions, a missing
    bucket.
    """


class RemoteStore(Store):
    """A store at a URL of fsspec; see :func:`repdyn.open_store`.

    What is written is stored in the copy at once, and uploaded in the background; :meth:`drain`
    waits for it.
    """

    def __init__(self, url: str) -> None:
        self.remote = RemoteFolder(url)
        super().__init__(copy_folder(url))
        self.error: RemoteError | None = None
        """Why the last attempt to upload failed; None after one that succeeded."""
        self._uploading = Lock()
        self._draining = Event()
        self._queued: Thread | None = None
        """Uploads all that waits when it begins, which it has not done yet."""

    def __reduce__(self) -> tuple[Any, ...]:
        # locks and threads cannot be pickled: a copy in another process is opened anew
        return RemoteStore, (self.remote.url,)

    @property
    def location(self) -> str:
        return self.remote.shown

    @property
    def output(self) -> Path:
        # in the working folder: the copy lies in a cache, where nobody looks for figures
        return Path(self.path.name)

    def refresh(self) -> None:
        """Download what is new, delete here what is gone there, and upload what an earlier process
        left waiting.
        """
        listed = {name: version for name, version in self.remote.files().items() if is_shared(name)}
        with self._index() as index:
            waiting = set(self.waiting())
            # an entry of the index: the remote version, then time and size of the local file
            for name in index.keys() & listed.keys():
                if index[name][0] is None:  # sent, and listed for the first time
                    index[name][0] = listed[name]
            for name in index.keys() - listed.keys() - waiting:
                if index[name][0] is not None:  # otherwise it was sent, and is not listed yet
                    (self.path / name).unlink(missing_ok=True)
                    del index[name]
            new = [
                name
                for name in sorted(listed.keys() - waiting)
                if index.get(name, [""])[0] != listed[name]
            ]

            def download(name: str) -> None:
                with suppress(FileNotFoundError):  # deleted since it was listed
                    self.remote.download(
                        name, self.path / name, int(listed[name].partition(" ")[0])
                    )
                    index[name] = [listed[name], *_state(self.path / name)]

            # hidden where standard error is no terminal
            thread_map(
                download, new, max_workers=_PARALLEL, desc="downloading", disable=None, leave=False
            )
        if waiting:
            self._written()

    def drain(self, seconds: float = UPLOAD_SECONDS) -> str | None:
        """Wait at most so long for the uploads; return why some files still wait and what uploads
        them, or None.
        """
        deadline = time.monotonic() + seconds
        # the thread does not wait between two commits now
        self._draining.set()
        while (left := len(self.waiting())) and (remaining := deadline - time.monotonic()) > 0:
            self._written().join(remaining)
            # without permission no further attempt succeeds
            if isinstance(self.error, RefusedError):
                break
            time.sleep(_POLL_SECONDS if self.error else 0)
        self._draining.clear()
        reason = self.error or f"they took more than {seconds:g} s"
        code = shlex.quote(
            f"import repdyn; repdyn.open_store({json.dumps(self.location)}).drain(600)"
        )
        told = (
            f"{left} files are not uploaded: {reason}; they are in {self.path}, and uploaded by "
            f"python -c {code}"
        )
        return told if left else None

    def waiting(self) -> list[str]:
        """Return the names of the files that are to be uploaded, the oldest first."""
        names = [path.relative_to(self.path).as_posix() for path in self.path.glob("*/*")]
        index = self._read_index()
        changed = {}
        for name in filter(is_shared, names):
            with suppress(FileNotFoundError):  # deleted since it was listed
                state = _state(self.path / name)
                if index.get(name, [None])[1:] != state:
                    changed[name] = state
        return sorted(changed, key=changed.__getitem__)

    def _written(self) -> Thread:
        """Return the thread that uploads what waits now, without waiting: a slow network delays no
        training.
        """
        # read once, since the thread itself sets it to None
        queued = self._queued
        if queued is None:
            queued = Thread(target=self._upload_waiting, name="repdyn-upload", daemon=True)
            self._queued = queued
            queued.start()
        return queued

    def _upload_waiting(self) -> None:
        """Upload what waits, one thread at a time; what fails is in no other's way, and tried again
        with the next writing."""
        with self._uploading:
            # before it looks what waits: whatever is written from now on needs another thread
            self._queued = None
            names = self.waiting()
            # a failure of one file keeps no other from being sent
            errors: list[RemoteError] = []
            at_once = _FILES_PER_COMMIT if self.remote.has_commits else 1
            for first in range(0, len(names), at_once):
                try:
                    self._upload(names[first : first + at_once])
                except Exception as failure:  # a full disk, say
                    is_remote = isinstance(failure, RemoteError)
                    errors.append(failure if is_remote else RemoteError(redacted(str(failure))))
                    if isinstance(failure, RefusedError) or len(errors) == _MAX_FAILURES:
                        break
            # once for each time that the connection is lost
            if errors and self.error is None:
                log.warning("%s; the rows are kept in %s and uploaded later", errors[0], self.path)
            self.error = errors[0] if errors else None
            if self.remote.has_commits:
                self._draining.wait(COMMIT_SECONDS)

    def _upload(self, names: Sequence[str]) -> None:
        # before the upload: a file that changes meanwhile waits for another one
        states = {name: _state(self.path / name) for name in names}
        self.remote.upload(names, self.path)
        with self._index() as index:  # the version is taken from the next listing
            index.update({name: [None, *state] for name, state in states.items()})

    def _read_index(self) -> dict[str, list]:
        try:
            return json.loads((self.path.parent / "index.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}

    @contextmanager
    def _index(self) -> Iterator[dict[str, list]]:
        """Yield the index for changes, which are written on exit; one process at a time has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # read anew under the lock: another process may have sent files since
        with FileLock(self.path.parent / "lock"):
            index = self._read_index()
            try:
                yield index
            finally:
                text = json.dumps(index, indent=0, sort_keys=True)
                write_atomically(
                    self.path.parent / "index.json",
                    lambda path: path.write_text(text, encoding="utf-8"),
                )


class RemoteFolder:
    """A folder at a URL of fsspec, such as ``s3://bucket/prefix``, which need not exist."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.shown = redacted(self.url)
        self.protocol = url.partition("://")[0].partition("::")[0]
        self.has_commits = self.protocol == "hf" and not self.url.startswith("hf://buckets/")
        """Whether each upload makes a commit, so that many files should go into one."""

    def files(self) -> dict[str, str]:
        """Return the size and version of each file by its name; none without a folder."""
        filesystem, root = self._opened
        # fsspec remembers listings, and other machines write into the store
        filesystem.invalidate_cache()
        try:
            listed = self._request("listing", lambda: filesystem.find(root, detail=True))
        except FileNotFoundError:
            return {}
        return {
            path.removeprefix(root).lstrip("/"): _version(info) for path, info in listed.items()
        }

    def download(self, name: str, target: Path, size: int) -> None:
        """Download a file of this size in bytes; the target is replaced once all of it is there."""

        def fetch(temporary: Path) -> None:
            filesystem, root = self._opened
            filesystem.get_file(f"{root}/{name}", str(temporary))
            n_bytes = temporary.stat().st_size
            if n_bytes != size:
                raise OSError(f"expected {size} bytes, got {n_bytes}")

        self._request(f"downloading {name}", lambda: write_atomically(target, fetch))

    def upload(self, names: Sequence[str], source: Path) -> None:
        """Upload files of a local folder in place of those of the same names, in one commit where
        uploads make any.
        """

        def send() -> None:
            filesystem, root = self._opened
            if self.has_commits:
                _commit(filesystem, root, names, source)
                return
            for name in names:
                if self.protocol in {"file", "local"}:  # others have no folders, or make them
                    filesystem.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
                filesystem.put_file(str(source / name), f"{root}/{name}")

        what = names[0] if len(names) == 1 else f"{len(names)} files"
        self._request(f"uploading {what}", send, is_upload=True)

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """Return the filesystem, and the path of the folder in it."""
        from fsspec.core import url_to_fs

        try:
            filesystem, root = url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            extra = _EXTRAS.get(self.protocol) if isinstance(error, ImportError) else None
            todo = f"; {install_line(extra)}" if extra else ""
            raise ValueError(
                f"expected a folder or a URL such as s3://bucket/prefix, got {self.shown}: "
                f"{redacted(str(error))}{todo}"
            ) from error
        return filesystem, root.rstrip("/")

    def _request(self, what: str, function: Callable[[], T], *, is_upload: bool = False) -> T:
        """Return what a request returns, or raise a RemoteError; FileNotFoundError where the bucket
        or repository is there.

        It is not repeated: the clients do so, and what waits is tried again.
        """
        filesystem = self._opened[0]  # a missing package is an error of its own
        try:
            return TimeoutRunner(REQUEST_SECONDS)(what, function)
        except FileNotFoundError as error:
            if not (is_upload or _is_of_place(error)):
                raise
            raise RefusedError(
                f"expected an existing bucket or repository at {self.shown}, got: "
                f"{_brief(error)}; create it, or check the URL"
            ) from error
        except TimeoutError as error:
            raise self._failed(what, f"no answer in {REQUEST_SECONDS:g} s") from error
        except Exception as error:
            if not _is_refusal(error):
                raise self._failed(what, _brief(error)) from error
            # the next request reads the credentials again: those of a long training expire and are
            # renewed
            type(filesystem).clear_instance_cache()
            self.__dict__.pop("_opened", None)
            raise RefusedError(
                f"{what} at {self.shown} was refused: {_brief(error)}; set up or renew the "
                "credentials, and check that they permit it"
            ) from error

    def _failed(self, what: str, reason: str) -> RemoteError:
        return RemoteError(
            f"{what} at {self.shown} failed: {reason}; check the connection, then repeat the "
            "command"
        )


def _commit(filesystem: Any, root: str, names: Sequence[str], source: Path) -> None:
    """Upload files of a local folder to a repository of the Hugging Face hub in one commit."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils import disable_progress_bars

    remote = filesystem.resolve_path(root)
    disable_progress_bars()  # which would be in the output of a training
    HfApi(filesystem.endpoint, filesystem.token).create_commit(
        remote.repo_id,
        [
            CommitOperationAdd(f"{remote.path_in_repo}/{name}".lstrip("/"), source / name)
            for name in names
        ],
        commit_message=f"Add {len(names)} files measured with repdyn",
        repo_type=remote.repo_type,
        revision=remote.revision,
    )


def is_shared(name: str) -> bool:
    """Return whether a file of a store, by its name, is kept remotely too: rows, probes and what
    runs are.
    """
    folder, _, file = name.partition("/")
    if folder.startswith(".") or "/" in file:
        return False
    if folder == "probes":
        return file.endswith(".safetensors")
    return file == RUN_FILE or ROW_FILE.fullmatch(file) is not None


def _state(path: Path) -> list[int]:
    """Return what changes when a file of the copy is written again."""
    stat = path.stat()
    return [stat.st_mtime_ns, stat.st_size]


def _version(info: Mapping[str, Any]) -> str:
    """Return the size of a file in a listing, and a digest of all else but the time at which it was
    read.
    """
    # filesystems name it in their own ways, as etag, generation or commit
    values = sorted(
        (name, str(value)) for name, value in info.items() if name not in {"name", "time"}
    )
    digest = hashlib.sha256(repr(values).encode()).hexdigest()[:20]
    return f"{int(info.get('size') or 0)} {digest}"


def _is_of_place(error: FileNotFoundError) -> bool:
    """Return whether what is missing should hold the files: only a person can make it."""
    is_repository = type(error).__name__ == "RepositoryNotFoundError"
    return is_repository or "bucket" in str(error).lower()


def _is_refusal(error: Exception) -> bool:
    """Return whether an error, or its cause, is of credentials or permissions."""
    links = (error, error.__cause__)
    return any(_REFUSED.search(f"{type(link).__name__}: {link}") for link in links)


def _brief(error: BaseException) -> str:
    """Return the first line of an error, and of its cause where it only says what failed, without
    secrets.
    """
    chain = [error]
    if type(error) is RuntimeError and error.__cause__ is not None:
        chain.append(error.__cause__)
    lines = [str(link).strip().partition("\n")[0] or type(link).__name__ for link in chain]
    return redacted(": ".join(lines))
