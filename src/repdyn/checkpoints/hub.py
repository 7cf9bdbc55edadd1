"""The Hugging Face Hub, through its own client.

:class:`Hub` lists revisions and files and downloads weights; offline it answers from the client's
cache. Requests are bounded in time and repeated while the hub is busy.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from glob import escape
from pathlib import Path
from threading import Event
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import httpx2
from huggingface_hub import (
    CachedRepoInfo,
    CachedRevisionInfo,
    HfApi,
    constants,
    get_session,
    scan_cache_dir,
    try_to_load_from_cache,
)
from huggingface_hub.errors import CacheNotFound, HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.hf_api import RepoFile
from tqdm.auto import tqdm

from repdyn.checkpoints.errors import (
    CheckpointError,
    NoConnectionError,
    SweepStoppedError,
    cause_of,
    hub_errors,
)
from repdyn.checkpoints.weight_files import Files, ListedFile, total_bytes
from repdyn.utils.attempts import TimeoutRunner
from repdyn.utils.files import cache_directory

ASKING = "repdyn-ask"
DOWNLOADING = "repdyn-download"
PREFETCHING = "repdyn-prefetch"
"""Names of the threads that wait for the hub; those that were given up go on until it answers."""
# before each repetition of a request, unless the hub names another time
_WAITS_SECONDS = (1, 4, 8)
_LONGEST_WAIT_SECONDS = 300
_CONNECT_SECONDS = 8
# requests for metadata at once
_LOOKUPS = 8
_MARGIN_BYTES = 4_000_000
"""Of the client's own notes beside the files that it downloads."""
_BUSY = {408, 429, *range(500, 600)}
_ADDRESSES = ("https://huggingface.co", "https://hf.co")
"""Those of the hub itself, of which another endpoint may be a mirror."""
_PAGE = re.compile(r"/(?:tree|blob|resolve|commits?)/")
"""What stands between repository and revision in the address of a page."""
_COMMIT = re.compile(r"[0-9a-f]{40}")

T = TypeVar("T")
Result = TypeVar("Result")


def repository_and_revision(name: str, endpoint: str = "") -> tuple[str, str | None]:
    """Split "REPOSITORY@REVISION", or the address of a page that a browser shows, into the two; the
    revision is None where none is named.

    ``endpoint`` is the address of the hub, by default that of HF_ENDPOINT.

    >>> repository_and_revision("https://huggingface.co/lab/model/tree/step8")
    ('lab/model', 'step8')
    >>> repository_and_revision("lab/model@step8"), repository_and_revision("gpt2")
    (('lab/model', 'step8'), ('gpt2', None))
    """
    for address in (endpoint or constants.ENDPOINT, *_ADDRESSES):
        if name.startswith(f"{address}/"):
            path = name.removeprefix(f"{address}/").partition("?")[0].partition("#")[0]
            repository, *page = _PAGE.split(path.rstrip("/"), maxsplit=1)
            # a slash in the name of a branch is quoted
            revision = unquote(page[0].partition("/")[0]) if page else None
            return "/".join(repository.split("/")[:2]), revision
    repository, _, revision = name.partition("@")
    return repository, revision or None


class Hub:
    """A hub; see :func:`repdyn.checkpoints.errors.hub_errors` for the errors it raises.

    Under HF_HUB_OFFLINE it answers from the client's cache: the revisions, commits and files that
    are there.

    Args:
        endpoint: its address, by default that of HF_ENDPOINT.
        timeout_seconds: limit for each listing and each download.
    """

    def __init__(self, endpoint: str | None = None, timeout_seconds: float = 4 * 3600) -> None:
        self.timeout_seconds = timeout_seconds
        self.offline = constants.is_offline_mode()
        self._api = HfApi(endpoint=endpoint, library_name="repdyn")
        self._listed: dict[tuple[str, str], Files] = {}

    @property
    def endpoint(self) -> str:
        return self._api.endpoint

    def refs(self, repository: str) -> dict[str, str]:
        """Return the commit of each branch and tag; a branch takes precedence over a tag of the
        same name.
        """
        if self.offline:
            return {
                name: revision.commit_hash for name, revision in _in_cache(repository).refs.items()
            }
        refs = self._ask(repository, lambda: self._api.list_repo_refs(repository))
        return {ref.name: ref.target_commit for ref in [*refs.tags, *refs.branches]}

    def commit(self, repository: str, revision: str) -> str:
        """Return the commit of a branch or tag, or of its own name."""
        # it never moves: there is nothing to ask
        if _COMMIT.fullmatch(revision):
            return revision
        if self.offline:
            return _cached_revision(repository, revision).commit_hash
        request = partial(self._api.repo_info, repository, revision=revision)
        return str(self._ask(f"{repository}@{revision}", request).sha)

    def commits(self, repository: str, branch: str = "main") -> list[tuple[str, str]]:
        """List the commits of a branch, the newest first, with the first lines of their
        messages.
        """
        listed = self._ask(
            f"{repository}@{branch}",
            lambda: self._api.list_repo_commits(repository, revision=branch),
        )
        return [(commit.commit_id, commit.title) for commit in listed]

    def files(self, repository: str, commit: str) -> Files:
        """List every file of a commit; a commit never changes, so that this hub is asked once for
        each.
        """
        key = (repository, commit)
        if key in self._listed:
            return self._listed[key]
        if self.offline:
            files = _cached_files(_cached_revision(repository, commit))
        else:
            files = self._ask(f"{repository}@{commit}", lambda: self._tree(repository, commit))
        self._listed[key] = files
        return files

    def _tree(self, repository: str, commit: str) -> Files:
        """Ask the hub for the files of a commit."""
        tree = self._api.list_repo_tree(repository, revision=commit, recursive=True)
        files = {}
        for entry in tree:
            if isinstance(entry, RepoFile):
                # large files are in git LFS, whose pointer has the checksum; small ones in git
                digest = (entry.lfs.sha256 if entry.lfs else None) or entry.blob_id
                files[entry.path] = ListedFile(max(0, int(entry.size)), digest)
        return files

    def cached(self, repository: str, commit: str, files: Iterable[str]) -> Path | None:
        """Return the folder of the local hub cache that has all of the files, or None if one is
        missing.

        Online, a branch or tag may have moved since, so that only a commit is looked for.
        """
        if not (_COMMIT.fullmatch(commit) or self.offline):
            return None
        paths = {name: try_to_load_from_cache(repository, name, revision=commit) for name in files}
        # for a file that the cache lacks, the client returns None, or a mark that the hub has none
        if not paths or not all(isinstance(path, str) for path in paths.values()):
            return None
        # as far up as the name has folders
        name, path = next(iter(paths.items()))
        return Path(str(path)).parents[name.count("/")]

    def keep(self, repository: str, revision: str, choose: Callable[[Files], Files]) -> Path:
        """Return the folder with the chosen files of a revision, which stay in this package's
        cache, or the hub's.
        """
        commit = self.commit(repository, revision)
        files = choose(self.files(repository, commit))
        cached = self.cached(repository, commit, files)
        if cached is not None:
            return cached
        folder = cache_directory() / "models" / quote(repository, safe="") / commit
        self.download(repository, commit, files, folder)
        return folder

    def download(
        self,
        repository: str,
        commit: str,
        files: Files,
        folder: Path,
        cancelled: Event | None = None,
        arrived: Callable[[int], None] = lambda n_bytes: None,
    ) -> None:
        """Download files of a commit into a folder, under their own paths, and compare their
        checksums.

        What arrives damaged is downloaded a second time. The time and the size are bounded by what
        arrives, not by what the hub announces. ``arrived`` is called a few times a second with the
        number of bytes on the disk; setting ``cancelled`` ends the download with CancelledError.
        """
        # set at the end, however it comes: the client's threads go on otherwise
        stopped = Event()
        fetch = partial(
            self._api.snapshot_download,
            repository,
            revision=commit,
            # the client takes them for patterns, in which brackets have a meaning
            allow_patterns=[escape(name) for name in files],
            local_dir=folder,
            max_workers=4,
            tqdm_class=_bar_that_stops(stopped),
        )
        verify = partial(
            self._api.verify_repo_checksums, repository, revision=commit, local_dir=folder
        )
        n_bytes_before = _bytes_in(folder)
        n_bytes_listed = total_bytes(files)

        def watch() -> None:
            if cancelled is not None and cancelled.is_set():
                raise CancelledError
            n_bytes = _bytes_in(folder) - n_bytes_before
            # the disk budget has room for what was listed
            if n_bytes > n_bytes_listed + _MARGIN_BYTES:
                raise CheckpointError(
                    f"its files are larger than the hub lists: {n_bytes:,} bytes arrived of "
                    f"{n_bytes_listed:,}; nothing is kept"
                )
            # the client's own notes are among the bytes
            arrived(min(n_bytes, n_bytes_listed))

        with hub_errors(f"{repository}@{commit}", self.endpoint):
            try:
                TimeoutRunner(self.timeout_seconds)(
                    DOWNLOADING, partial(_fetch_undamaged, fetch, verify), watch
                )
            finally:
                stopped.set()
        arrived(n_bytes_listed)

    def _ask(self, what: str, request: Callable[[], T]) -> T:
        """Return the answer to a request for metadata, asked again while the hub is busy, within
        the time limit.
        """
        with hub_errors(what, self.endpoint):
            if not self.offline:
                _reach(self.endpoint)
            # the client limits how long the hub is silent, and not the request
            return TimeoutRunner(self.timeout_seconds)(ASKING, lambda: with_retries(request))


def _bar_that_stops(stopped: Event) -> type[tqdm]:
    """Return a class of progress bars that show nothing, and end the download of a file as soon as
    ``stopped`` is set: the client has no other way to cancel one.
    """

    class Stoppable(tqdm):
        monitor_interval = 0  # any other starts a thread for each class, which never ends

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **{**settings, "disable": True})

        def update(self, n: float | None = 1) -> None:
            if stopped.is_set():
                raise CancelledError

    return Stoppable


def _fetch_undamaged(fetch: Callable[..., object], verify: Callable[[], Any]) -> None:
    """Download files and compare their checksums; what arrives damaged is downloaded once more.

    Raises:
        CheckpointError: it was damaged both times.
    """
    damage = ""
    for again in (False, True):
        try:
            with_retries(partial(fetch, force_download=again))
            # the client compares lengths alone: wrong bytes of the right number would be loaded
            mismatches = with_retries(verify).mismatches
            damage = ", ".join(
                f"{file['path']} ({file['algorithm']} {file['actual'][:12]})" for file in mismatches
            )
        except OSError as error:
            # the size is not the one that was announced
            if "Consistency check failed" not in str(error):
                raise
            damage = str(error)
        if not damage:
            return
    raise CheckpointError(f"arrived damaged, twice: {damage}")


@cache  # asked once in a process
def _reach(endpoint: str) -> None:
    """Raise an error unless a hub is connected to soon: the client itself waits as long as the
    system does.
    """
    try:
        TimeoutRunner(_CONNECT_SECONDS + 1)(
            ASKING, lambda: get_session().head(endpoint, timeout=_CONNECT_SECONDS)
        )
    except (httpx2.ConnectTimeout, TimeoutError) as error:
        raise NoConnectionError(endpoint, f"no answer in {_CONNECT_SECONDS} seconds") from error
    except httpx2.ReadTimeout:
        pass  # connected to: what follows has the time limit of the sweep


def _in_cache(repository: str) -> CachedRepoInfo:
    """Return what the client's cache has of a repository."""
    with suppress(CacheNotFound):
        for cached in scan_cache_dir(constants.HF_HUB_CACHE).repos:
            if (cached.repo_id, cached.repo_type) == (repository, "model"):
                return cached
    raise SweepStoppedError(
        f"HF_HUB_OFFLINE is set, and the hub's cache in {constants.HF_HUB_CACHE} has nothing of "
        f"{repository}, which is no folder here; unset it, or give a local folder"
    )


def _cached_revision(repository: str, name: str) -> CachedRevisionInfo:
    """Return what the client's cache has of a branch, tag or commit."""
    cached = _in_cache(repository)
    by_name = {revision.commit_hash: revision for revision in cached.revisions} | cached.refs
    if name not in by_name:
        raise CheckpointError(
            f"HF_HUB_OFFLINE is set, and the hub's cache has no {repository}@{name}"
        )
    return by_name[name]


def _cached_files(revision: CachedRevisionInfo) -> Files:
    """Return the files that the client's cache has of a revision."""
    files = {}
    for file in revision.files:
        path = file.file_path.relative_to(revision.snapshot_path).as_posix()
        # the client names a blob by its digest
        files[path] = ListedFile(file.size_on_disk, file.blob_path.name)
    return files


def with_retries(request: Callable[[], T]) -> T:
    """Repeat a request while the hub is busy, or its connection breaks; its client does so for some
    requests alone.
    """
    for seconds in _WAITS_SECONDS:
        try:
            return request()
        except (
            HfHubHTTPError,
            LocalEntryNotFoundError,
            httpx2.ReadError,
            httpx2.RemoteProtocolError,
        ) as error:
            cause = cause_of(error)
            is_busy = isinstance(cause, HfHubHTTPError) and cause.response.status_code in _BUSY
            is_answer = isinstance(error, HfHubHTTPError | LocalEntryNotFoundError)
            # a hub that says no says so again
            if is_answer and not is_busy:
                raise
            time.sleep(_wait_named_by(cause, otherwise=seconds))
    # the last attempt: what it raises is the answer
    return request()


def _wait_named_by(cause: BaseException, *, otherwise: float) -> float:
    """Return the seconds after which a busy hub says to ask again, up to a limit."""
    if isinstance(cause, HfHubHTTPError):
        named = cause.response.headers.get("Retry-After", "").strip()
        if re.fullmatch(r"[0-9]+", named):  # it may also be a date
            return min(float(named), _LONGEST_WAIT_SECONDS)
    return otherwise


def map_concurrently(look_up: Callable[[T], Result], items: Iterable[T]) -> list[Result]:
    """Apply a function to each item in eight threads, and return the results in order; the first
    error ends it.
    """
    pool = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix=ASKING)
    try:
        results = list(pool.map(look_up, items))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for a slow server
        raise
    pool.shutdown()
    return results


def has_abandoned_threads() -> bool:
    """Return whether a thread still waits for the hub, whose answer nobody needs any more."""
    return any(
        thread.name.startswith((PREFETCHING, DOWNLOADING, ASKING))
        for thread in threading.enumerate()
    )


def _bytes_in(folder: Path) -> int:
    total = 0
    # with the client's partial files, which it renames when they are complete
    for path in folder.rglob("*"):
        with suppress(OSError):  # moved meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total
