"""A client of the Hugging Face Hub that lists revisions and files, and downloads them."""

from __future__ import annotations

import hashlib
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any, TypeAlias, TypeVar

import httpx2
from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoFile
from tqdm import tqdm

from repdyn.hub.errors import CancelledError, CheckpointError, hub_errors

_CONNECTIONS = 4
_TRIES = 3
_PIECE_BYTES = 1 << 18
_BUSY = {408, 429, 500, 502, 503, 504}
_WAITS_SECONDS = (1, 2, 4, 8, 8)
_LONGEST_WAIT_SECONDS = 300
_RETRY_AFTER_DIGITS = 9
_POLL_SECONDS = 0.2
_COMMIT = re.compile(r"[0-9a-f]{40}")

T = TypeVar("T")


class DownloadMonitor:
    """A callback for every chunk of a download that counts bytes and stops a cancelled or slow download."""

    def __init__(self, timeout_seconds: float, cancelled: Event, on_bytes: Callable[[int], None]) -> None:
        self._timeout_seconds = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._cancelled = cancelled
        self._on_bytes = on_bytes

    def __call__(self, n_bytes: int) -> None:
        if self._cancelled.is_set():
            raise CancelledError
        if time.monotonic() > self._deadline:
            raise CheckpointError(f"the download took longer than --timeout {self._timeout_seconds:g} seconds")
        self._on_bytes(n_bytes)


@dataclass(frozen=True)
class RemoteFile:
    """A file on the hub."""

    n_bytes: int
    sha256: str | None
    """Checksum of the content; None for small files, for which the hub gives none."""


Files: TypeAlias = Mapping[str, RemoteFile]
"""The files of a commit, by path."""


class _DamagedError(CheckpointError):
    """A file arrived damaged; a second download may succeed."""


def total_bytes(files: Files) -> int:
    """Return the size of files on disk."""
    return sum(file.n_bytes for file in files.values())


# Names from a hub become paths and terminal output, so they are validated first.


def _validated_commit(commit: object) -> str:
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise CheckpointError(f"expected a commit of 40 hexadecimal digits from the hub, got {commit!r:.80}")
    return commit


def _validated_ref(name: object) -> str:
    if not isinstance(name, str) or not _is_plain(name):
        raise CheckpointError(f"expected the name of a branch or tag from the hub, got {name!r:.80}")
    return name


def _validated_path(path: object) -> str:
    if isinstance(path, str) and _is_plain(path):
        whole = PurePosixPath(path)
        if str(whole) == path and path != "." and not whole.is_absolute() and ".." not in whole.parts:
            return path
    raise CheckpointError(
        f"expected a path inside the repository from the hub, got {path!r:.80}; nothing is downloaded"
    )


def _is_plain(text: str) -> bool:
    """Return whether a text has no control character and no unpaired surrogate."""
    return not any(unicodedata.category(character) in {"Cc", "Cs"} for character in text)


def _validated_size(n_bytes: object) -> int:
    if not isinstance(n_bytes, int) or n_bytes < 0:
        raise CheckpointError(f"expected the size of a file from the hub, got {n_bytes!r:.80}")
    return n_bytes


def _require_intact(path: Path, sha256: str | None) -> None:
    """Check the content of a file, of which the client checks only the length."""
    if sha256 is None:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise _DamagedError(
            f"{path.name} arrived damaged, twice: its sha256 is {found[:12]}, the hub says {sha256[:12]}"
        )


def _with_retries(request: Callable[[], T], monitor: DownloadMonitor) -> T:
    """Repeat a request while the hub is busy; its client does so for listings, but not for refs and contents."""
    for wait_seconds in _WAITS_SECONDS:
        try:
            return request()
        except HfHubHTTPError as error:
            if error.response.status_code not in _BUSY:
                raise
            _wait(_requested_wait(error, wait_seconds), monitor)
    return request()


def _requested_wait(error: HfHubHTTPError, default: float) -> float:
    """Return the seconds to wait after a refused request.

    Raises:
        CheckpointError: the hub names a longer time than a sweep waits for.
    """
    named = error.response.headers.get("Retry-After", "")
    if not (named.isascii() and named.isdecimal()):
        return default
    if len(named) > _RETRY_AFTER_DIGITS or int(named) > _LONGEST_WAIT_SECONDS:
        raise CheckpointError(
            f"the hub asks to wait {named:.12}{'...' if len(named) > 12 else ''} seconds before the next request "
            f"({error.response.status_code}), longer than the {_LONGEST_WAIT_SECONDS} that a sweep waits; try later"
        ) from error
    return int(named)


def _wait(seconds: float, monitor: DownloadMonitor) -> None:
    """Sleep, but end with the monitor's error once it is cancelled or out of time."""
    end = time.monotonic() + seconds
    monitor(0)
    while (rest := end - time.monotonic()) > 0:
        time.sleep(min(rest, _POLL_SECONDS))
        monitor(0)


def unmonitored() -> DownloadMonitor:
    """Return a monitor that neither counts nor stops, for small downloads."""
    return DownloadMonitor(float("inf"), Event(), lambda n: None)


class Hub:
    """A hub, by default that of HF_ENDPOINT; see :func:`repdyn.hub.errors.hub_errors` for the errors it raises."""

    def __init__(self, endpoint: str | None = None) -> None:
        self._api = HfApi(endpoint=endpoint, library_name="repdyn")
        # The other protocol, xet, keeps a cache of its own outside the disk budget, and cannot be cancelled.
        constants.HF_HUB_DISABLE_XET = True
        # Cancelling and timing out take effect with the next piece, and one of 10 MB can be minutes away.
        constants.DOWNLOAD_CHUNK_SIZE = min(constants.DOWNLOAD_CHUNK_SIZE, _PIECE_BYTES)

    @property
    def endpoint(self) -> str:
        return self._api.endpoint

    def refs(self, repository: str) -> dict[str, str]:
        """Return the commit of each branch and tag; a branch takes precedence over a tag of the same name."""
        with hub_errors(repository, self.endpoint):
            refs = _with_retries(lambda: self._api.list_repo_refs(repository), unmonitored())
            return {
                _validated_ref(ref.name): _validated_commit(ref.target_commit) for ref in [*refs.tags, *refs.branches]
            }

    def commit(self, repository: str, revision: str) -> str:
        """Return the commit of a branch or tag."""
        with hub_errors(f"{repository}@{revision}", self.endpoint):
            info = _with_retries(lambda: self._api.repo_info(repository, revision=revision), unmonitored())
            return _validated_commit(info.sha)

    def files(self, repository: str, commit: str) -> Files:
        """List every file of a commit."""
        with hub_errors(f"{repository}@{commit}", self.endpoint):
            tree = self._api.list_repo_tree(repository, revision=commit, recursive=True)
            return {
                _validated_path(entry.path): RemoteFile(
                    _validated_size(entry.size), entry.lfs.sha256 if entry.lfs else None
                )
                for entry in tree
                if isinstance(entry, RepoFile)
            }

    def cached(self, repository: str, commit: str, files: Iterable[str]) -> Path | None:
        """Return the folder of the local hub cache that has all of the files, or None if one is missing."""
        found = [(name, try_to_load_from_cache(repository, name, revision=commit)) for name in files]
        if not found or not all(isinstance(path, str) for _, path in found):
            return None
        name, path = found[0]
        return Path(str(path)).parents[name.count("/")]

    def download(self, repository: str, commit: str, files: Files, folder: Path, monitor: DownloadMonitor) -> None:
        """Download files of a commit into a folder, under their own paths.

        A request that the hub is too busy to answer is repeated, a broken connection is resumed; a file that arrives
        incomplete or damaged is downloaded a second time.
        """

        class Monitored(tqdm):
            def __init__(self, *args: Any, **settings: Any) -> None:
                settings.pop("name", None)
                super().__init__(*args, **{**settings, "disable": True})

            def update(self, n: float | None = 1) -> None:
                monitor(int(n or 0))

        def fetch(name: str, tries: int = _TRIES, force: bool = False) -> None:
            def request() -> str:
                return self._api.hf_hub_download(
                    repository, name, revision=commit, local_dir=folder, tqdm_class=Monitored, force_download=force
                )

            try:
                _with_retries(request, monitor)
                _require_intact(folder / name, files[name].sha256)
            except httpx2.ReadError:
                if tries == 1:
                    raise
                fetch(name, tries - 1)  # resumes where the connection broke
            except (_DamagedError, OSError) as error:
                damaged = isinstance(error, _DamagedError) or "Consistency check failed" in str(error)
                if tries == 1 or not damaged:
                    raise
                fetch(name, tries=1, force=True)

        with hub_errors(f"{repository}@{commit}", self.endpoint), ThreadPoolExecutor(_CONNECTIONS) as pool:
            futures = [pool.submit(fetch, name) for name in files]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
