"""The Hugging Face Hub, through its own client: lists revisions and files, reads parts of them, downloads weights."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from glob import escape
from pathlib import Path, PurePosixPath
from threading import Event, Lock, Thread
from typing import Any, TypeAlias, TypeVar

import httpx2
from huggingface_hub import HfApi, hf_hub_url, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff
from tqdm.auto import tqdm

from repdyn.checkpoints.errors import CancelledError, CheckpointError, hub_errors
from repdyn.utils.attempts import TimeoutRunner
from repdyn.utils.files import write_atomically

ASKING, DOWNLOADING = "repdyn-ask", "repdyn-download"
"""Names of the threads that wait for the hub; those that were given up go on until it answers."""
_WAITS_SECONDS = (1, 4, 8)
_LONGEST_WAIT_SECONDS = 300
_POLL_SECONDS = 0.2
_LOOKUPS = 8
_COMMIT = re.compile(r"[0-9a-f]{40}")
# The first format that a commit has is used. Pickles are only read with weights_only=True.
_FORMATS = (
    re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?"),
    re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?"),
)
_CONFIG_FILES = ("config.json", "generation_config.json")

T = TypeVar("T")
Result = TypeVar("Result")
log = logging.getLogger(__name__)


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


def total_bytes(files: Files) -> int:
    """Return the size of files on disk."""
    return sum(file.n_bytes for file in files.values())


class Hub:
    """A hub; see :func:`repdyn.checkpoints.errors.hub_errors` for the errors it raises.

    Args:
        endpoint: its address, by default that of HF_ENDPOINT.
        timeout_seconds: limit for each listing and each download.
        budget_bytes: limit for the size of the files of a tokenizer; None for none.
    """

    def __init__(
        self, endpoint: str | None = None, timeout_seconds: float = 3600, budget_bytes: int | None = None
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self.budget_bytes = budget_bytes
        self._api = HfApi(endpoint=endpoint, library_name="repdyn")
        self._listed: dict[tuple[str, str, bool], Files] = {}

    @property
    def endpoint(self) -> str:
        return self._api.endpoint

    def refs(self, repository: str) -> dict[str, str]:
        """Return the commit of each branch and tag; a branch takes precedence over a tag of the same name."""
        refs = self._ask(repository, lambda: self._api.list_repo_refs(repository))
        return {_validated_ref(ref.name): _validated_commit(ref.target_commit) for ref in [*refs.tags, *refs.branches]}

    def commit(self, repository: str, revision: str) -> str:
        """Return the commit of a branch or tag."""
        info = self._ask(f"{repository}@{revision}", lambda: self._api.repo_info(repository, revision=revision))
        return _validated_commit(info.sha)

    def commits(self, repository: str, branch: str = "main") -> list[CommitInfo]:
        """List the commits of a branch, the newest first; the hub is asked once for each page of them."""
        listed = self._ask(f"{repository}@{branch}", lambda: self._api.list_repo_commits(repository, revision=branch))
        return [CommitInfo(_validated_commit(each.commit_id), _plain(str(each.title))) for each in listed]

    def files(self, repository: str, commit: str, *, with_dates: bool = False, folder: Path | None = None) -> Files:
        """List every file of a commit; a commit never changes, so that this hub is asked once for each.

        Args:
            repository: its name.
            commit: full commit hash.
            with_dates: ask for the date of each file too, which makes the hub answer more slowly.
            folder: keeps the lists for other processes; None for none.
        """
        key = (repository, commit, with_dates)
        if key not in self._listed:
            kept = self._kept_list(folder, *key) if folder else None
            self._listed[key] = files = (kept and _read_list(kept)) or self._list(*key)
            if kept and not kept.exists():
                text = json.dumps({name: asdict(file) for name, file in files.items()}, default=datetime.isoformat)
                write_atomically(kept, lambda temporary: temporary.write_text(text))
        return self._listed[key]

    def _kept_list(self, folder: Path, repository: str, commit: str, with_dates: bool) -> Path:
        digest = hashlib.sha256(f"{self.endpoint} {repository} {with_dates}".encode()).hexdigest()[:16]
        return folder / digest / f"{commit}.json"

    def _list(self, repository: str, commit: str, with_dates: bool) -> Files:
        tree = partial(self._api.list_repo_tree, repository, revision=commit, recursive=True, expand=with_dates)
        entries = self._ask(f"{repository}@{commit}", lambda: [one for one in tree() if isinstance(one, RepoFile)])
        return {
            _validated_path(entry.path): RemoteFile(
                _validated_size(entry.size),
                entry.lfs.sha256 if entry.lfs else None,
                entry.blob_id,
                entry.last_commit.date if entry.last_commit else None,
            )
            for entry in entries
        }

    def read_range(self, repository: str, commit: str, path: str, start: int, stop: int) -> bytes:
        """Return the bytes of a file from ``start`` to ``stop``, which may be the whole; the rest of it is not sent."""
        url = hf_hub_url(repository, path, revision=commit, endpoint=self.endpoint)
        headers = {**build_hf_headers(library_name="repdyn"), "Range": f"bytes={start}-{stop - 1}"}

        def request() -> bytes:
            response = http_backoff("GET", url, headers=headers, follow_redirects=True)
            hf_raise_for_status(response)
            return response.content

        content = self._ask(f"{repository}@{commit}", request)
        if len(content) != stop - start:
            raise CheckpointError(f"expected {stop - start:,} bytes of {path} from the hub, got {len(content):,}")
        return content

    def cached(self, repository: str, commit: str, files: Iterable[str]) -> Path | None:
        """Return the folder of the local hub cache that has all of the files, or None if one is missing."""
        found = [(name, try_to_load_from_cache(repository, name, revision=commit)) for name in files]
        if not found or not all(isinstance(path, str) for _, path in found):
            return None
        name, path = found[0]
        return Path(str(path)).parents[name.count("/")]

    def download(
        self,
        repository: str,
        commit: str,
        files: Files,
        folder: Path,
        cancelled: Event | None = None,
        arrived: Callable[[int], None] = lambda n_bytes: None,
    ) -> None:
        """Download files of a commit into a folder, under their own paths, and compare their checksums.

        What arrives damaged is downloaded a second time. The time and the size are bounded by what arrives, not by what
        the hub announces.

        Args:
            repository: its name.
            commit: full commit hash.
            files: to download, from :meth:`files`.
            folder: which need not exist.
            cancelled: set to end the download with CancelledError.
            arrived: called a few times a second with the number of bytes on the disk.
        """
        stopped = Event()

        class Stoppable(tqdm):
            """A progress bar that shows nothing, and ends the download of a file once it is given up."""

            monitor_interval = 0  # any other starts a thread for each class, which never ends

            def __init__(self, *args: Any, **settings: Any) -> None:
                super().__init__(*args, **{**settings, "disable": True})

            def update(self, n: float | None = 1) -> None:
                if stopped.is_set():
                    raise CancelledError

        def fetch(*, force: bool = False) -> None:
            snapshot_download(
                repository,
                revision=commit,
                allow_patterns=[escape(name) for name in files],
                local_dir=folder,
                max_workers=4,
                force_download=force,
                tqdm_class=Stoppable,
                endpoint=self.endpoint,
                library_name="repdyn",
            )

        def damaged() -> list[str]:
            found = self._api.verify_repo_checksums(repository, revision=commit, local_dir=folder)
            return [f"{one['path']} ({one['algorithm']} {one['actual'][:12]})" for one in found.mismatches]

        def complete(*, force: bool = False) -> list[str]:
            """Download, and return what is wrong with what arrived."""
            try:
                with_retries(partial(fetch, force=force))
            except OSError as error:
                if "Consistency check failed" not in str(error):  # the size is not the one that was announced
                    raise
                return [str(error)]
            return with_retries(damaged)

        def work() -> None:
            if complete() and (wrong := complete(force=True)):
                raise CheckpointError(f"arrived damaged, twice: {', '.join(wrong)}")

        with hub_errors(f"{repository}@{commit}", self.endpoint):
            try:
                self._watch(_Call(work, DOWNLOADING), folder, total_bytes(files), cancelled or Event(), arrived)
            finally:
                stopped.set()

    def _watch(self, call: _Call, folder: Path, limit: int, cancelled: Event, arrived: Callable[[int], None]) -> None:
        end, before = time.monotonic() + self.timeout_seconds, _bytes_in(folder)
        while not call.ended.wait(_POLL_SECONDS):
            if cancelled.is_set():
                raise CancelledError
            if time.monotonic() > end:
                raise CheckpointError(f"the download took longer than --timeout {self.timeout_seconds:g} seconds")
            n_bytes = _bytes_in(folder) - before
            if n_bytes > limit + _MARGIN_BYTES:
                raise CheckpointError(
                    f"its files are larger than the hub lists: {n_bytes:,} bytes arrived of {limit:,}; nothing is kept"
                )
            arrived(min(n_bytes, limit))
        if call.error is not None:
            raise call.error
        arrived(limit)

    def _ask(self, what: str, request: Callable[[], T]) -> T:
        """Return the answer to a request for metadata, asked again while the hub is busy, within the time limit."""
        with hub_errors(what, self.endpoint):
            try:
                return TimeoutRunner(self.timeout_seconds)(ASKING, lambda: with_retries(request))
            except TimeoutError as error:
                raise CheckpointError(
                    f"the hub did not complete its answer within --timeout {self.timeout_seconds:g} seconds"
                ) from error


_MARGIN_BYTES = 4_000_000
"""Of the client's own notes beside the files that it downloads."""


class _Call:
    """A call in a thread that does not delay the exit of the process."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self.error: BaseException | None = None
        self.ended = Event()
        self._work = work
        Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()


def with_retries(request: Callable[[], T]) -> T:
    """Repeat a request while the hub is busy, or its connection breaks; its client does so for some requests alone.

    Raises:
        CheckpointError: the hub asks for a longer wait than a sweep grants.
    """
    for seconds in _WAITS_SECONDS:
        try:
            return request()
        except (HfHubHTTPError, LocalEntryNotFoundError, httpx2.ReadError, httpx2.RemoteProtocolError) as error:
            response = _response(error)
            if response is None and not isinstance(error, httpx2.TransportError):
                raise
            if response is not None and response.status_code not in {408, 429} and response.status_code < 500:
                raise
            wait = _named_wait(response)
            if wait is not None and wait > _POLL_SECONDS:
                log.warning("The hub asks to wait %d seconds before the next request", wait)
            time.sleep(seconds if wait is None else wait)
    return request()


def _response(error: BaseException | None) -> httpx2.Response | None:
    """Return the response that caused an error, if one did."""
    while error is not None:
        if isinstance(response := getattr(error, "response", None), httpx2.Response):
            return response
        error = error.__cause__
    return None


def _named_wait(response: httpx2.Response | None) -> int | None:
    named = "" if response is None else response.headers.get("Retry-After", "").strip()
    if not re.fullmatch(r"[0-9]+", named):
        return None
    if len(named) > 9 or int(named) > _LONGEST_WAIT_SECONDS:
        raise CheckpointError(
            f"the hub asks to wait {named:.12} seconds before the next request, longer than the "
            f"{_LONGEST_WAIT_SECONDS} that a sweep waits; try later"
        )
    return int(named)


def map_concurrently(look_up: Callable[[T], Result], items: Iterable[T]) -> list[Result]:
    """Apply a function to each item in eight threads, and return the results in order; the first error ends it.

    Ctrl-C does not wait for a thread that waits for a slow server.
    """
    given = list(items)
    found: dict[int, Result] = {}
    waiting, lock = iter(range(len(given))), Lock()

    def work() -> None:
        while not any(call.error for call in calls):
            with lock:
                number = next(waiting, None)
            if number is None:
                return
            found[number] = look_up(given[number])

    calls: list[_Call] = []
    calls += [_Call(work, ASKING) for _ in range(min(_LOOKUPS, len(given)))]
    while not all(call.ended.wait(_POLL_SECONDS) for call in calls):
        if any(call.error for call in calls):
            break
    for call in calls:
        if call.error is not None:
            raise call.error
    return [found[number] for number in range(len(given))]


def choose_files(files: Files, subfolder: str = "", *, with_code: bool = False) -> Files:
    """Select the files to download: the weights in one format, and the configuration.

    Args:
        files: all files of the commit.
        subfolder: the checkpoint's folder in the repository.
        with_code: include Python files.

    Raises:
        CheckpointError: no configuration, or no weights in a supported format.
    """
    prefix = f"{subfolder}/" if subfolder else ""
    here = {name.removeprefix(prefix): name for name in files if name.startswith(prefix)}
    if "config.json" not in here:
        raise CheckpointError(f"it has no {prefix}config.json, so the model's architecture is not known")
    for form in _FORMATS:
        weights = [name for name in here if form.fullmatch(name)]
        if any(not name.endswith(".json") for name in weights):
            # a single file rather than shards with the same weights
            whole = [name for name in weights if "-of-" not in name and not name.endswith(".json")]
            code = [name for name in here if with_code and name.endswith(".py")]
            chosen = (whole or weights) + [name for name in _CONFIG_FILES if name in here] + code
            return {here[name]: files[here[name]] for name in chosen}
    others = sorted(name for name in here if "/" not in name)
    raise CheckpointError(
        "it has no weights that can be read, model*.safetensors or pytorch_model*.bin; its files are "
        f"{', '.join(others)}"
    )


def is_weight_file(name: str) -> bool:
    """Return whether a file holds weights, or their index, in a format that can be read."""
    return any(form.fullmatch(name) for form in _FORMATS)


def weight_files(files: Files, subfolder: str = "") -> Files:
    """Return all weights of a checkpoint, in each supported format, by their names within its folder.

    >>> files = {"a/model.safetensors": RemoteFile(8, None), "a/config.json": RemoteFile(2, None)}
    >>> list(weight_files(files, "a"))
    ['model.safetensors']
    """
    prefix = f"{subfolder}/" if subfolder else ""
    here = {name.removeprefix(prefix): file for name, file in files.items() if name.startswith(prefix)}
    return {name: file for name, file in here.items() if not name.endswith(".json") and is_weight_file(name)}


def _read_list(path: Path) -> Files | None:
    """Return a kept list; None if there is none, or it is damaged."""
    try:
        return {name: _kept_file(fields) for name, fields in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        path.unlink(missing_ok=True)
        return None


def _kept_file(fields: dict[str, Any]) -> RemoteFile:
    date = fields["date"] and datetime.fromisoformat(fields["date"])
    return RemoteFile(**{**fields, "n_bytes": int(fields["n_bytes"]), "date": date})


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # moved meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


# Names from a hub become paths and terminal output, so they are validated first.


def _validated_commit(commit: object) -> str:
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise CheckpointError(f"expected a commit of 40 hexadecimal digits from the hub, got {commit!r:.80}")
    return commit


def _validated_ref(name: object) -> str:
    if not isinstance(name, str) or _plain(name) != name:
        raise CheckpointError(f"expected the name of a branch or tag from the hub, got {name!r:.80}")
    return name


def _validated_path(path: object) -> str:
    if isinstance(path, str) and _plain(path) == path:
        whole = PurePosixPath(path)
        if str(whole) == path and path != "." and not whole.is_absolute() and ".." not in whole.parts:
            return path
    raise CheckpointError(
        f"expected a path inside the repository from the hub, got {path!r:.80}; nothing is downloaded"
    )


def _validated_size(n_bytes: object) -> int:
    if not isinstance(n_bytes, int) or n_bytes < 0:
        raise CheckpointError(f"expected the size of a file from the hub, got {n_bytes!r:.80}")
    return n_bytes


def _plain(text: str) -> str:
    """Return a text without control characters and unpaired surrogates."""
    return "".join(character for character in text if unicodedata.category(character) not in {"Cc", "Cs"})
