"""A store at a URL: a local copy that everything reads, downloads of what changed, and uploads in the background.

    CACHE/stores/DIGEST/NAME/       the copy, which everything that reads takes for a local store
    CACHE/stores/DIGEST/index.json  of each file the remote version, and the local state that it was sent or received as

A file of the copy whose state is not in the index waits for its upload. A process may be killed at any time, or run
beside another one: at worst a file is sent twice. Nothing is ever deleted remotely.
"""

from __future__ import annotations

import json
import logging
import random
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock

from repdyn.store.files import ROW_FILE, copy_folder
from repdyn.store.keys import MeasurementKey
from repdyn.store.runs import RUN_FILE, Run
from repdyn.store.schema import Row
from repdyn.store.store import Store
from repdyn.utils.attempts import TimeoutRunner
from repdyn.utils.files import write_atomically
from repdyn.utils.redaction import redacted

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from repdyn.probe import Probe

T = TypeVar("T")

log = logging.getLogger(__name__)

UPLOAD_SECONDS = 120.0
"""How long the end of a sweep or a training waits for the uploads."""
REQUEST_SECONDS, TRANSFER_SECONDS = 100.0, 300.0
"""How long one request may take, such as a listing of all files, and the transfer of a file or a commit."""
WAITS_SECONDS = (0.5, 2.0, 8.0)
"""Pauses before a failed request is repeated; up to a quarter longer, so that many workers do not return at once."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 300.0
"""Pauses between attempts to upload while the network is down; they double."""
COMMIT_SECONDS = 60.0
"""Shortest time between two commits, of which the Hugging Face hub accepts some hundred in an hour."""
FILES_PER_COMMIT = 500
_PARALLEL = 16
_MAX_FAILURES = 3
_FILES_WITH_PROGRESS_BAR = 20
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
# where a file needs a folder to lie in
_WITH_FOLDERS = {"file", "local", "ftp", "sftp", "ssh", "smb"}
# fields of a listing that change with a file's content, the strongest first
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "blob_id", "mtime", "LastModified", "last_modified", "created")
_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError", "LocalTokenNotFoundError"}
_EXPIRED = re.compile("expired|invalidaccesskeyid|invalid credentials|when calling the headobject", re.IGNORECASE)
# as the storage of large files on the Hugging Face hub says it
_XET_STATUS = re.compile(r"HTTP status client error \((40[13]) ")


class RemoteError(OSError):
    """An error of a remote store: no connection, no answer, or a transfer that failed again and again."""


class RefusedError(RemoteError):
    """An error of a remote store that repeating does not help: credentials, permissions, a missing bucket."""


class RemoteStore(Store):
    """A store at a URL of fsspec; see :func:`repdyn.open_store`.

    What is written is stored in the copy at once, and uploaded in the background; :meth:`drain` waits for it.
    """

    def __init__(self, url: str) -> None:
        self.remote = RemoteFolder(url)
        super().__init__(copy_folder(url))
        self._uploader = Uploader(self)

    @property
    def location(self) -> str:
        return self.remote.shown

    @property
    def output(self) -> Path:
        return Path(self.path.name)

    def begin_run(self, name: str, configuration: Mapping[str, Any] | None = None, **parent: Any) -> Run:
        run = super().begin_run(name, configuration, **parent)
        self._uploader.wake()
        return run

    def write(self, key: MeasurementKey, rows: Sequence[Row]) -> Path:
        written = super().write(key, rows)
        self._uploader.wake()
        return written

    def save_probe(self, probe: Probe) -> Path:
        saved = super().save_probe(probe)
        self._uploader.wake()
        return saved

    def refresh(self) -> None:
        """Download what is new, delete here what is gone there, and upload what an earlier process left waiting.

        Raises:
            RemoteError: the remote store cannot be read; what was downloaded before is kept.
        """
        listed = {name: version for name, version in self.remote.files().items() if is_shared(name)}
        with self._index() as index:
            waiting = set(self.waiting(index))
            for name in index.keys() - listed.keys() - waiting:
                if index[name][0] is not None:  # otherwise it was sent, and is not listed yet
                    (self.path / name).unlink(missing_ok=True)
                    del index[name]
            for name in (name for name in listed if index.get(name, [""])[0] is None and name not in waiting):
                index[name][0] = listed[name]
            new = [name for name in sorted(listed) if name not in waiting and index.get(name, [""])[0] != listed[name]]
            in_parallel(partial(self._download, index, listed), new, "downloading")
        if waiting:
            self._uploader.wake()

    def drain(self, seconds: float = UPLOAD_SECONDS) -> str | None:
        """Wait for the uploads; return why some files still wait and what uploads them, or None.

        Args:
            seconds: at most.
        """
        left = self._uploader.drain(seconds)
        if not left:
            return None
        reason = self._uploader.error or f"they took more than {seconds:g} s"
        code = f"import repdyn; repdyn.open_store({json.dumps(self.location)}).drain(600)"
        return (
            f"{left} files are not uploaded: {reason}; they are in {self.path}, and uploaded by "
            f"python -c {shlex.quote(code)}"
        )

    def waiting(self, index: Mapping[str, list] | None = None) -> list[str]:
        """Return the names of the files that are to be uploaded, the oldest first."""
        known = self._read_index() if index is None else index
        found = []
        for path in (*self.path.glob("*/*.parquet"), *self.path.glob(f"*/{RUN_FILE}"), *self.path.glob("probes/*")):
            name = path.relative_to(self.path).as_posix()
            if is_shared(name) and (state := _state(path)) and known.get(name, [None, None, None])[1:] != state:
                found.append((state[0], name))
        return [name for _, name in sorted(found)]

    def upload(self, names: Sequence[str]) -> None:
        """Upload files of the copy, in as few commits as possible where there are any.

        Raises:
            RemoteError: not all were uploaded; these wait on.
        """
        at_once, errors = FILES_PER_COMMIT if self.remote.has_commits else 1, []
        for first in range(0, len(names), at_once):
            few = names[first : first + at_once]
            states = {name: state for name in few if (state := _state(self.path / name)) is not None}
            try:
                self.remote.upload({name: self.path / name for name in states})
            except RemoteError as error:
                errors.append(error)  # what fails is in no other's way, unless all of it does
                if isinstance(error, RefusedError) or len(errors) == _MAX_FAILURES:
                    break
            else:
                with self._index() as index:
                    # the version is taken from the next listing
                    index.update({name: [None, *state] for name, state in states.items()})
        if errors:
            raise errors[0]

    def _download(self, index: dict[str, list], listed: Mapping[str, str], name: str) -> None:
        try:
            self.remote.download(name, self.path / name, int(listed[name].partition(" ")[0]))
        except FileNotFoundError:
            return  # deleted since it was listed
        index[name] = [listed[name], *(_state(self.path / name) or ())]

    def _read_index(self) -> dict[str, list]:
        try:
            return json.loads((self.path.parent / "index.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}

    @contextmanager
    def _index(self) -> Iterator[dict[str, list]]:
        """Yield the index for changes, which are written on exit; one process at a time has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.parent / "lock"):
            index = self._read_index()
            try:
                yield index
            finally:
                text = json.dumps(index, indent=0, sort_keys=True)
                write_atomically(self.path.parent / "index.json", lambda path: path.write_text(text))

    def __repr__(self) -> str:
        return f"RemoteStore({self.location!r})"


class Uploader:
    """A thread that uploads what waits in a store, so that a slow network delays neither training nor measurement."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self._changed = Condition()
        self._is_due = False
        self._n_draining = 0
        self._attempts = 0
        self._thread: Thread | None = None
        self.error: RemoteError | None = None
        """Why the last attempt failed; None after one that succeeded."""

    def wake(self) -> None:
        """Let the thread upload what waits now; returns at once."""
        with self._changed:
            self._is_due = True
            if self._thread is None:
                self._thread = Thread(target=self._run, name="repdyn-upload", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drain(self, seconds: float) -> int:
        """Wait until everything is uploaded, it is refused, or the time is over; return how many files wait."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._n_draining += 1
            began = self._attempts
        try:
            while waiting := len(self._store.waiting()):
                left = deadline - time.monotonic()
                # an attempt that began before this call may have failed for a reason that is gone
                if left <= 0 or (self._attempts > began + 1 and isinstance(self.error, RefusedError)):
                    return waiting
                if not self._is_due:
                    self.wake()
                with self._changed:
                    self._changed.wait(min(left, 0.2))
            return 0
        finally:
            with self._changed:
                self._n_draining -= 1

    def _run(self) -> None:
        pause, not_before = FIRST_PAUSE_SECONDS, 0.0
        while True:
            with self._changed:
                # what failed is tried again; without a failure there is nothing to do until the next call
                self._changed.wait_for(lambda: self._is_due, pause if self.error else None)
                self._changed.wait_for(lambda: self._n_draining, max(0.0, not_before - time.monotonic()))
                self._is_due = False
            error: RemoteError | None = None
            try:
                if waiting := self._store.waiting():
                    not_before = time.monotonic() + (COMMIT_SECONDS if self._store.remote.has_commits else 0.0)
                    self._store.upload(waiting)
            except Exception as failure:  # a full disk, say: the thread must go on
                error = failure if isinstance(failure, RemoteError) else RemoteError(redacted(str(failure)))
                if self.error is None:
                    log.warning("%s; the rows are kept in %s and uploaded later", error, self._store.path)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS) if error else FIRST_PAUSE_SECONDS
            with self._changed:
                self.error = error
                self._attempts += 1
                self._changed.notify_all()


class RemoteFolder:
    """A folder that a URL of fsspec names, such as ``s3://bucket/prefix``.

    Args:
        url: of the folder, which need not exist.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.shown = redacted(self.url)
        self.protocol = url.partition("://")[0].partition("::")[0]
        self.has_commits = self.protocol == "hf" and not self.url.startswith("hf://buckets/")
        """Whether each upload makes a commit, so that many files should go into one."""

    def files(self) -> dict[str, str]:
        """Return the size and version of each file by its name, which change with its content; none without a folder.

        Raises:
            RemoteError: it cannot be listed.
        """

        def find() -> Any:
            self._filesystem.invalidate_cache()
            return self._filesystem.find(self._opened[1], detail=True)

        try:
            found = self._attempt("listing", find)
        except FileNotFoundError as error:
            if "bucket" in str(error).lower() or type(error).__name__ == "RepositoryNotFoundError":
                raise self._missing(error) from error
            return {}
        return {self._name(path): _version(info) for path, info in found.items() if info.get("type") != "directory"}

    def download(self, name: str, target: Path, size: int) -> None:
        """Download a file of this size in bytes; the target is replaced once all of it is there.

        Raises:
            FileNotFoundError: it is gone.
            RemoteError: it cannot be downloaded.
        """

        def fetch(temporary: Path) -> None:
            self._filesystem.get_file(self._path(name), str(temporary))
            if (got := temporary.stat().st_size) != size:
                raise OSError(f"expected {size} bytes, got {got}")

        self._attempt(f"downloading {name}", lambda: write_atomically(target, fetch), is_transfer=True)

    def upload(self, files: Mapping[str, Path]) -> None:
        """Upload local files by name in place of any of these names; several where each upload makes a commit.

        Raises:
            RemoteError: they cannot be uploaded.
        """
        what = f"uploading {next(iter(files))}" if len(files) == 1 else f"uploading {len(files)} files"
        try:
            if files:
                self._attempt(what, lambda: (self._commit if self.has_commits else self._put)(files), is_transfer=True)
        except FileNotFoundError as error:
            raise self._missing(error) from error

    def _put(self, files: Mapping[str, Path]) -> None:
        for name, source in files.items():
            path = self._path(name)
            if self.protocol in _WITH_FOLDERS:
                self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._filesystem.put_file(str(source), path)

    def _commit(self, files: Mapping[str, Path]) -> None:
        from huggingface_hub import CommitOperationAdd, HfFileSystem
        from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

        filesystem, root = self._opened
        if not isinstance(filesystem, HfFileSystem):
            raise TypeError(f"expected the filesystem of the Hugging Face hub, got {type(filesystem).__name__}")
        place: Any = filesystem.resolve_path(root)
        inside = f"{place.path_in_repo}/" if place.path_in_repo else ""
        are_shown = not are_progress_bars_disabled()
        disable_progress_bars()  # which would be in the output of a training
        try:
            filesystem._api.create_commit(
                place.repo_id,
                [CommitOperationAdd(f"{inside}{name}", str(path)) for name, path in files.items()],
                commit_message=f"Add {len(files)} files measured with repdyn",
                repo_type=place.repo_type,
                revision=place.revision,
            )
        finally:
            if are_shown:
                enable_progress_bars()

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

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}"

    def _name(self, path: str) -> str:
        return path.removeprefix(self._opened[1]).lstrip("/")

    def _attempt(self, what: str, function: Callable[[], T], *, is_transfer: bool = False) -> T:
        """Return what a request returns, after up to four attempts.

        Raises:
            FileNotFoundError: as raised.
            RefusedError: credentials, permissions.
            RemoteError: the last attempt failed too.
        """
        seconds = TRANSFER_SECONDS if is_transfer else REQUEST_SECONDS
        _ = self._filesystem  # a missing package is an error of its own
        for wait in (*WAITS_SECONDS, None):
            try:
                return TimeoutRunner(seconds)(what, function)
            except FileNotFoundError:
                raise
            except Exception as error:
                if refusal := _refusal(error):
                    # the next request reads the credentials again: those of a long training expire and are renewed
                    type(self._filesystem).clear_instance_cache()
                    self.__dict__.pop("_opened", None)
                    raise RefusedError(f"{what} at {self.shown} was refused: {_brief(error)}; {refusal}") from error
                if wait is None:
                    reason = f"no answer in {seconds:g} s" if isinstance(error, TimeoutError) else _brief(error)
                    raise RemoteError(
                        f"{what} at {self.shown} failed {len(WAITS_SECONDS) + 1} times: {reason}; check the "
                        "connection, then repeat the command"
                    ) from error
                time.sleep(wait * random.uniform(1, 1.25))
        raise AssertionError("the last attempt returns or raises")

    def _missing(self, error: Exception) -> RefusedError:
        return RefusedError(
            f"expected an existing bucket or repository at {self.shown}, got: {_brief(error)}; create it, or check "
            "the URL"
        )


def is_shared(name: str) -> bool:
    """Return whether a file of a store, by its name, is kept remotely too: rows, probes and what runs are.

    >>> is_shared("run/step000000008-probe-metrics.parquet"), is_shared("probes/3f2a.safetensors")
    (True, True)
    >>> is_shared("run/alerts.yaml"), is_shared("run/kept_states/ab/layer003.safetensors"), is_shared("../rows.parquet")
    (False, False, False)
    """
    folder, _, file = name.partition("/")
    if folder.startswith(".") or "/" in file:
        return False
    return file.endswith(".safetensors") if folder == "probes" else file == RUN_FILE or bool(ROW_FILE.fullmatch(file))


def in_parallel(function: Callable[[str], None], names: Sequence[str], what: str) -> None:
    """Call a function with each name, several at a time, and show a progress bar where there are many.

    Raises:
        Exception: the first error, once all names have been tried.
    """
    if not names:
        return
    from tqdm import tqdm

    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="repdyn-transfer") as pool:
        futures = [pool.submit(function, name) for name in names]
        try:
            shown = None if len(names) >= _FILES_WITH_PROGRESS_BAR else True
            errors = [future.exception() for future in tqdm(futures, what, unit="file", disable=shown, leave=False)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if error := next(filter(None, errors), None):
        raise error


def _state(path: Path) -> list[int] | None:
    """Return what changes when a file of the copy is written again; None if there is none."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return [stat.st_mtime_ns, stat.st_size]


def _version(info: Mapping[str, Any]) -> str:
    version = next((info[field] for field in _VERSIONS if info.get(field)), "")
    # as the filesystem in memory lists what it describes as an object
    return f"{int(info.get('size') or 0)} {version.timestamp() if isinstance(version, datetime) else version}"


def _refusal(error: BaseException) -> str | None:
    """Return what to do about an error that repeating does not help; None for any other."""
    text = f"{error} {error.__cause__ or ''}"
    if {type(error).__name__, type(error.__cause__).__name__} & _CREDENTIALS:
        return "set up credentials, such as AWS_PROFILE, gcloud auth application-default login, or hf auth login"
    named = _XET_STATUS.search(text)
    status = int(named[1]) if named else getattr(getattr(error, "response", None), "status_code", None)
    if "(400) when calling the headobject" in text.lower() or status == 401:
        return "the credentials are expired or unknown: renew them, then repeat the command"
    if isinstance(error, PermissionError) or status == 403:
        return (
            "the credentials are expired or unknown: renew them, then repeat the command"
            if _EXPIRED.search(text)
            else "the credentials lack the permission for it"
        )
    return None


def _brief(error: BaseException) -> str:
    """Return the first line of an error, and of its cause where it only says what failed, without secrets."""
    lines = [str(error).strip().partition("\n")[0] or type(error).__name__]
    if type(error) is RuntimeError and error.__cause__ is not None:
        lines.append(_brief(error.__cause__))
    return redacted(": ".join(lines))
