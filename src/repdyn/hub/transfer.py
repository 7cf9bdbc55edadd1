"""Transfers from a hub: repeated while it is busy, bounded in time and size, and ended at once when cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from threading import Event, Lock, Semaphore, Thread
from typing import Any, TypeVar

import httpx2
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from tqdm import tqdm

from repdyn.hub.errors import CancelledError, CheckpointError
from repdyn.hub.responses import checked_responses, is_busy, requested_wait

_CONNECTIONS = 4
_LOOKUPS = 8
_WAITS_SECONDS = (1, 2, 4, 8, 8)
_POLL_SECONDS = 0.2
_LAST_PIECE_SECONDS = 1.0
PIECE_BYTES = 1 << 18
"""Cancelling and timing out take effect with the next piece."""
DOWNLOAD_THREAD = "repdyn-download"
"""Prefix of the names of threads that download or list files."""

T = TypeVar("T")
Result = TypeVar("Result")


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


def with_retries(request: Callable[[], T], monitor: DownloadMonitor, most_bytes: int | None = None) -> T:
    """Repeat a request while the hub is busy; its client does so for listings, but not for refs and contents.

    Args:
        request: to be made.
        monitor: ends it.
        most_bytes: as for :func:`repdyn.hub.responses.checked_responses`.
    """
    for wait_seconds in _WAITS_SECONDS:
        try:
            with checked_responses(monitor, most_bytes):
                return request()
        except (HfHubHTTPError, LocalEntryNotFoundError) as error:
            if (response := _busy_response(error)) is None:
                raise
            named = requested_wait(response)
            _wait(wait_seconds if named is None else named, monitor)
    with checked_responses(monitor, most_bytes):
        return request()


def _busy_response(error: BaseException | None) -> httpx2.Response | None:
    """Return the response of a busy hub that caused an error, if one did."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, httpx2.Response) and is_busy(response.status_code):
            return response
        error = error.__cause__
    return None


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


def progress_bar(name: str, n_bytes: int, monitor: DownloadMonitor, stopped: Event) -> type[tqdm]:
    """Return the progress bar of a file, which reports each piece to the monitor and shows nothing.

    It counts the bytes to be written, after decompression, and ends the download before they exceed ``n_bytes``.
    """
    received = 0

    class Monitored(tqdm):
        monitor_interval = 0  # any other starts a thread for each class, which never ends

        def __init__(self, *args: Any, **settings: Any) -> None:
            nonlocal received
            settings.pop("name", None)
            received = settings.get("initial", 0)  # bytes from before the connection broke
            super().__init__(*args, **{**settings, "disable": True})

        def update(self, n: float | None = 1) -> None:
            nonlocal received
            if stopped.is_set():
                raise CancelledError
            received += int(n or 0)
            if received > n_bytes:
                raise CheckpointError(
                    f"{name} is larger than the hub lists: {received:,} bytes arrived of {n_bytes:,}; nothing is kept"
                )
            monitor(int(n or 0))

    return Monitored


def map_concurrently(look_up: Callable[[T], Result], items: Iterable[T]) -> list[Result]:
    """Apply a function to each item in several threads, and return the results in order.

    Ctrl-C does not wait for a thread that waits for a slow server.
    """
    given = list(items)
    found: dict[int, Result] = {}

    def fill(number: int) -> None:
        found[number] = look_up(given[number])

    in_threads(fill, range(len(given)), unmonitored(), Event(), n_threads=_LOOKUPS)
    return [found[number] for number in range(len(given))]


def in_threads(
    fetch: Callable[[T], None],
    names: Sequence[T],
    monitor: DownloadMonitor,
    stopped: Event,
    n_threads: int = _CONNECTIONS,
) -> None:
    """Fetch files in a few threads, and raise the first error, or that of the monitor, at once.

    A thread that waits for a slow server is abandoned; it ends with the next piece and does not delay the exit.
    """
    waiting, errors = iter(names), list[BaseException]()
    lock, ended = Lock(), Semaphore(0)

    def work() -> None:
        try:
            while not stopped.is_set():
                with lock:
                    name = next(waiting, None)
                if name is None:
                    return
                fetch(name)
        except BaseException as error:
            errors.append(error)
            stopped.set()
        finally:
            ended.release()

    threads = [Thread(target=work, name=f"{DOWNLOAD_THREAD}-{number}", daemon=True) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    try:
        # Not with join(): before Python 3.13, a thread whose join() is interrupted counts as ended.
        for _ in threads:
            while not stopped.is_set() and not ended.acquire(timeout=_POLL_SECONDS):
                monitor(0)
    finally:
        stopped.set()
        end = time.monotonic() + _LAST_PIECE_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
    if errors:
        raise errors[0]
