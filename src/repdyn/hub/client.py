"""The Hugging Face hub: which revisions a repository has, what files a commit holds, and getting them."""

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
_COMMIT = re.compile(r"[0-9a-f]{40}")

T = TypeVar("T")


class Watch:
    """Told of each piece of a download: counts it, and ends a download that is cancelled or takes too long."""

    def __init__(self, timeout_seconds: float, cancelled: Event, on_bytes: Callable[[int], None]) -> None:
        self._timeout_seconds = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._cancelled = cancelled
        self._on_bytes = on_bytes

    def __call__(self, n_bytes: int) -> None:
        if self._cancelled.is_set():
            raise CancelledError
        if time.monotonic() > self._deadline:
            raise CheckpointError(f"its download took longer than --timeout {self._timeout_seconds:g} seconds")
        self._on_bytes(n_bytes)


@dataclass(frozen=True)
class RemoteFile:
    """A file on the hub."""

    n_bytes: int
    sha256: str | None
    """Of its content; None for small files, for which the hub does not tell."""


Files: TypeAlias = Mapping[str, RemoteFile]
"""Files of a commit by path."""


class _DamagedError(CheckpointError):
    """A file did not arrive as it was sent; it may the second time."""


def total_bytes(files: Files) -> int:
    """What files take on disk."""
    return sum(file.n_bytes for file in files.values())


# What a hub tells becomes folders, file names and lines in a terminal, so it is looked at before it is believed.


def _commit_id(told: object) -> str:
    if not isinstance(told, str) or not _COMMIT.fullmatch(told):
        raise CheckpointError(f"the hub told no commit, 40 hexadecimal digits, but {told!r:.80}")
    return told


def _ref_name(name: object) -> str:
    if not isinstance(name, str) or not _is_plain(name):
        raise CheckpointError(f"the hub told no name of a branch or tag, but {name!r:.80}")
    return name


def _path_inside(path: object) -> str:
    if isinstance(path, str) and _is_plain(path):
        whole = PurePosixPath(path)
        if str(whole) == path and path != "." and not whole.is_absolute() and ".." not in whole.parts:
            return path
    raise CheckpointError(f"the hub listed no file inside of the repository, but {path!r:.80}; nothing is fetched")


def _is_plain(text: str) -> bool:
    """Whether there is neither a control character nor half of a surrogate pair in a text."""
    return not any(unicodedata.category(character) in {"Cc", "Cs"} for character in text)


def _size(n_bytes: object) -> int:
    if not isinstance(n_bytes, int) or n_bytes < 0:
        raise CheckpointError(f"the hub told no size of a file, but {n_bytes!r:.80}")
    return n_bytes


def _require_intact(path: Path, sha256: str | None) -> None:
    """The client checks a file's length, not its content."""
    if sha256 is None:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise _DamagedError(
            f"{path.name} arrived damaged, twice: its sha256 is {found[:12]}, the hub says {sha256[:12]}"
        )


def _patiently(ask: Callable[[], T]) -> T:
    """Ask again where the hub is busy, as the client does for files and listings but not for branches and commits."""
    for wait_seconds in _WAITS_SECONDS:
        try:
            return ask()
        except HfHubHTTPError as error:
            if error.response.status_code not in _BUSY:
                raise
            said = error.response.headers.get("Retry-After", "")
            time.sleep(float(said) if said.isdecimal() else wait_seconds)
    return ask()


def no_progress() -> Watch:
    """For downloads of a moment: nobody counts, nobody cancels."""
    return Watch(float("inf"), Event(), lambda n: None)


class Hub:
    """A hub, by default the one that HF_ENDPOINT names; every method raises what ``hub_errors`` makes of a failure."""

    def __init__(self, endpoint: str | None = None) -> None:
        self._api = HfApi(endpoint=endpoint, library_name="repdyn")
        # The other protocol, xet, keeps a cache of its own that no disk budget knows of, and cannot be cancelled.
        constants.HF_HUB_DISABLE_XET = True
        # Cancelling and timing out take effect with the next piece, and one of 10 MB can be minutes away.
        constants.DOWNLOAD_CHUNK_SIZE = min(constants.DOWNLOAD_CHUNK_SIZE, _PIECE_BYTES)

    @property
    def endpoint(self) -> str:
        return self._api.endpoint

    def refs(self, repository: str) -> dict[str, str]:
        """The commit of each branch and tag; a branch comes before a tag of the same name."""
        with hub_errors(repository, self.endpoint):
            refs = _patiently(lambda: self._api.list_repo_refs(repository))
            return {_ref_name(ref.name): _commit_id(ref.target_commit) for ref in [*refs.tags, *refs.branches]}

    def commit(self, repository: str, revision: str) -> str:
        """The commit a branch or tag is at."""
        with hub_errors(f"{repository}@{revision}", self.endpoint):
            return _commit_id(_patiently(lambda: self._api.repo_info(repository, revision=revision)).sha)

    def files(self, repository: str, commit: str) -> Files:
        """Every file of a commit."""
        with hub_errors(f"{repository}@{commit}", self.endpoint):
            tree = self._api.list_repo_tree(repository, revision=commit, recursive=True)
            return {
                _path_inside(entry.path): RemoteFile(_size(entry.size), entry.lfs.sha256 if entry.lfs else None)
                for entry in tree
                if isinstance(entry, RepoFile)
            }

    def cached(self, repository: str, commit: str, files: Iterable[str]) -> Path | None:
        """Where the hub's own cache on this machine holds all of the files; None where one is missing."""
        found = [(name, try_to_load_from_cache(repository, name, revision=commit)) for name in files]
        if not found or not all(isinstance(path, str) for _, path in found):
            return None
        name, path = found[0]
        return Path(str(path)).parents[name.count("/")]

    def download(self, repository: str, commit: str, files: Files, folder: Path, watch: Watch) -> None:
        """Fetch files of a commit into a folder, under their own paths.

        The client resumes broken connections. A file that arrives incomplete or damaged is fetched a second time.
        """

        class Told(tqdm):
            def __init__(self, *args: Any, **settings: Any) -> None:
                settings.pop("name", None)
                super().__init__(*args, **{**settings, "disable": True})

            def update(self, n: float | None = 1) -> None:
                watch(int(n or 0))

        def fetch(name: str, tries: int = _TRIES, anew: bool = False) -> None:
            try:
                self._api.hf_hub_download(
                    repository, name, revision=commit, local_dir=folder, tqdm_class=Told, force_download=anew
                )
                _require_intact(folder / name, files[name].sha256)
            except httpx2.ReadError:
                if tries == 1:
                    raise
                fetch(name, tries - 1)  # goes on where the connection broke
            except (_DamagedError, OSError) as error:
                damaged = isinstance(error, _DamagedError) or "Consistency check failed" in str(error)
                if tries == 1 or not damaged:
                    raise
                fetch(name, tries=1, anew=True)

        with hub_errors(f"{repository}@{commit}", self.endpoint), ThreadPoolExecutor(_CONNECTIONS) as pool:
            futures = [pool.submit(fetch, name) for name in files]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
