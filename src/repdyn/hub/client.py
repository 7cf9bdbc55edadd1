"""A client of the Hugging Face Hub that lists revisions and files, and downloads them."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path, PurePosixPath
from threading import Event
from typing import TypeAlias, TypeVar

import httpx2
from huggingface_hub import HfApi, constants, get_session, hf_hub_url, try_to_load_from_cache
from huggingface_hub.hf_api import RepoFile, RepoFolder
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from repdyn.hub.errors import CancelledError, CheckpointError, hub_errors
from repdyn.hub.responses import MOST_LISTED_BYTES
from repdyn.hub.transfer import PIECE_BYTES, DownloadMonitor, in_threads, progress_bar, with_retries
from repdyn.utils.attempts import TimeoutRunner

_TRIES = 3
_MOST_FILES = 100_000
ASKING_THE_HUB = "asking the hub"
"""Name of the threads that wait for a listing."""
_COMMIT = re.compile(r"[0-9a-f]{40}")

T = TypeVar("T")


@dataclass(frozen=True)
class RemoteFile:
    """A file on the hub."""

    n_bytes: int
    sha256: str | None
    """Checksum of the content; None for small files, for which the hub gives none."""
    oid: str = ""
    """Name of the file's git blob: equal for equal content, of small files too."""
    date: datetime | None = None
    """Time of the commit that uploaded it, if it was asked for."""

    @property
    def digest(self) -> str:
        """The checksum of the content, or the git blob of a small file."""
        return self.sha256 or self.oid


Files: TypeAlias = Mapping[str, RemoteFile]
"""The files of a commit, by path."""


@dataclass(frozen=True)
class CommitInfo:
    """A commit of a branch."""

    name: str
    """Full hash."""
    title: str
    """First line of its message, without control characters."""


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


def _title(title: object) -> str:
    """Return the title of a commit without control characters and unpaired surrogates."""
    return "".join(filter(_is_plain, str(title)))


def _is_plain(text: str) -> bool:
    """Return whether a text has no control character and no unpaired surrogate."""
    return not any(unicodedata.category(character) in {"Cc", "Cs"} for character in text)


def _validated_size(n_bytes: object) -> int:
    if not isinstance(n_bytes, int) or n_bytes < 0:
        raise CheckpointError(f"expected the size of a file from the hub, got {n_bytes!r:.80}")
    return n_bytes


def _require_intact(path: Path, file: RemoteFile) -> None:
    """Check the content of a file, of which the client checks only the length."""
    if not file.digest:
        raise CheckpointError(f"expected a checksum of {path.name} from the hub, got none, so its content is not used")
    name = "git blob" if file.sha256 is None else "sha256"
    with path.open("rb") as content:
        if file.sha256 is None:
            found = hashlib.sha1(b"blob %d\0" % path.stat().st_size + content.read()).hexdigest()
        else:
            found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != file.digest:
        raise _DamagedError(
            f"{path.name} arrived damaged, twice: its {name} is {found[:12]}, the hub says {file.digest[:12]}"
        )


class Hub:
    """A hub; see :func:`repdyn.hub.errors.hub_errors` for the errors it raises.

    Args:
        endpoint: its address, by default that of HF_ENDPOINT.
        timeout_seconds: limit for each listing and for the files of a tokenizer.
        budget_bytes: limit for the size of these files; None for none.
    """

    def __init__(
        self, endpoint: str | None = None, timeout_seconds: float = 3600, budget_bytes: int | None = None
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self.budget_bytes = budget_bytes
        self._listed: dict[tuple[str, str, bool], Files] = {}
        self._api = HfApi(endpoint=endpoint, library_name="repdyn")
        # The other protocol, xet, keeps a cache of its own outside the disk budget, and cannot be cancelled.
        constants.HF_HUB_DISABLE_XET = True
        # Cancelling and timing out take effect with the next piece, and one of 10 MB can be minutes away.
        constants.DOWNLOAD_CHUNK_SIZE = min(constants.DOWNLOAD_CHUNK_SIZE, PIECE_BYTES)

    @property
    def endpoint(self) -> str:
        return self._api.endpoint

    def refs(self, repository: str) -> dict[str, str]:
        """Return the commit of each branch and tag; a branch takes precedence over a tag of the same name."""
        with hub_errors(repository, self.endpoint):
            refs = self._ask(lambda: self._api.list_repo_refs(repository))
            return {
                _validated_ref(ref.name): _validated_commit(ref.target_commit) for ref in [*refs.tags, *refs.branches]
            }

    def commit(self, repository: str, revision: str) -> str:
        """Return the commit of a branch or tag."""
        with hub_errors(f"{repository}@{revision}", self.endpoint):
            info = self._ask(lambda: self._api.repo_info(repository, revision=revision))
            return _validated_commit(info.sha)

    def commits(self, repository: str, branch: str = "main") -> list[CommitInfo]:
        """List the commits of a branch, the newest first; the hub is asked once for each page of them."""
        with hub_errors(f"{repository}@{branch}", self.endpoint):
            listed = self._ask(lambda: self._api.list_repo_commits(repository, revision=branch))
            return [CommitInfo(_validated_commit(each.commit_id), _title(each.title)) for each in listed]

    def files(self, repository: str, commit: str, *, with_dates: bool = False) -> Files:
        """List every file of a commit; a commit never changes, so that this hub is asked once for each.

        Args:
            repository: its name.
            commit: full commit hash.
            with_dates: ask for the date of each file too, which makes the hub answer more slowly.
        """
        key = (repository, commit, with_dates)
        if key not in self._listed:
            self._listed[key] = self._list_files(repository, commit, with_dates)
        return self._listed[key]

    def _list_files(self, repository: str, commit: str, with_dates: bool) -> Files:
        with hub_errors(f"{repository}@{commit}", self.endpoint):

            def pages() -> Iterable[RepoFile | RepoFolder]:
                return self._api.list_repo_tree(repository, revision=commit, recursive=True, expand=with_dates)

            tree = self._ask(lambda: list(islice(pages(), _MOST_FILES + 1)))
            if len(tree) > _MOST_FILES:
                raise CheckpointError(f"expected at most {_MOST_FILES:,} files in {repository}, the hub lists more")
            return {
                _validated_path(entry.path): RemoteFile(
                    _validated_size(entry.size),
                    entry.lfs.sha256 if entry.lfs else None,
                    entry.blob_id,
                    entry.last_commit.date if entry.last_commit else None,
                )
                for entry in tree
                if isinstance(entry, RepoFile)
            }

    def read_range(self, repository: str, commit: str, path: str, start: int, stop: int) -> bytes:
        """Return the bytes of a file from ``start`` to ``stop``, which may be the whole; the rest of it is not sent."""
        url = hf_hub_url(repository, path, revision=commit, endpoint=self.endpoint)
        headers = {**build_hf_headers(library_name="repdyn"), "Range": f"bytes={start}-{stop - 1}"}

        def request() -> tuple[int, bytes]:
            with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
                # a server that knows no ranges sends the whole file
                is_whole = start == 0 and response.headers.get("Content-Length") == str(stop)
                content = response.read() if response.is_error or is_whole or response.status_code == 206 else b""
                hf_raise_for_status(response)
                return response.status_code, content

        with hub_errors(f"{repository}@{commit}", self.endpoint):
            code, content = self._ask(request)
            if len(content) != stop - start:
                raise CheckpointError(
                    f"expected {stop - start:,} bytes of {path} from the hub, got {len(content):,} (status {code})"
                )
            return content

    def timed_monitor(self) -> DownloadMonitor:
        """Return a monitor that ends a small download when the timeout of this hub is over."""
        return DownloadMonitor(self.timeout_seconds, Event(), lambda n: None)

    def _ask(self, request: Callable[[], T]) -> T:
        """Return the answer to a request for metadata, asked again while the hub is busy.

        Raises:
            CheckpointError: it is not complete in time, however steadily it arrives.
        """
        monitor = self.timed_monitor()

        def ask(tries: int = _TRIES) -> T:
            try:
                return with_retries(request, monitor, MOST_LISTED_BYTES)
            except (httpx2.ReadError, httpx2.RemoteProtocolError):  # the connection broke off
                if tries == 1:
                    raise
                return ask(tries - 1)

        try:
            return TimeoutRunner(self.timeout_seconds)(ASKING_THE_HUB, ask)
        except TimeoutError as error:
            raise CheckpointError(
                f"the hub did not complete its answer within --timeout {self.timeout_seconds:g} seconds"
            ) from error

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

        stopped = Event()

        def fetch(name: str, tries: int = _TRIES, force: bool = False) -> None:
            bar = progress_bar(name, files[name].n_bytes, monitor, stopped)

            def request() -> str:
                if stopped.is_set():
                    raise CancelledError
                return self._api.hf_hub_download(
                    repository, name, revision=commit, local_dir=folder, tqdm_class=bar, force_download=force
                )

            try:
                with_retries(request, monitor)
                _require_intact(folder / name, files[name])
            except httpx2.ReadError:
                if tries == 1:
                    raise
                fetch(name, tries - 1)  # resumes where the connection broke
            except (_DamagedError, OSError) as error:
                damaged = isinstance(error, _DamagedError) or "Consistency check failed" in str(error)
                if tries == 1 or not damaged:
                    raise
                fetch(name, tries=1, force=True)

        with hub_errors(f"{repository}@{commit}", self.endpoint):
            in_threads(fetch, list(files), monitor, stopped)
