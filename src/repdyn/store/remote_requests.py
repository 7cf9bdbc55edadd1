"""Requests to remote filesystems, with time limits and repetitions."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TypeVar

from repdyn.store.remote_errors import RefusedError, RemoteError, brief, refusal_of
from repdyn.utils.timeout import TimeoutRunner

T = TypeVar("T")

log = logging.getLogger(__name__)

REQUEST_SECONDS = 100.0
"""How long one request may take, such as a listing of all files."""
TRANSFER_SECONDS = 300.0
"""How long the transfer of one file may take, or a commit."""
NOTICE_SECONDS = 10.0
"""How long nothing is said of a request without an answer."""
WAITS_SECONDS = (0.5, 2.0, 8.0)
"""Pauses before a failed request is repeated; up to a quarter longer, so that many workers do not return at once."""

_UNCHANGED = (FileNotFoundError, FileExistsError)


class Requests:
    """Makes the requests for one remote folder.

    Args:
        shown: the folder in messages.
        reopen: called after a request that was refused, so that the next one reads the credentials again.
    """

    def __init__(self, shown: str, reopen: Callable[[], object]) -> None:
        self._shown = shown
        self._reopen = reopen
        self._is_slow = False

    def __call__(self, what: str, function: Callable[[], T], *, is_transfer: bool = False) -> T:
        """Return what ``function()`` returns, after up to four attempts.

        Args:
            what: names it in messages.
            function: makes the request.
            is_transfer: whether it takes as long as the content of a file does.

        Raises:
            FileNotFoundError, FileExistsError: as raised.
            RefusedError: credentials, permissions.
            RemoteError: the last attempt failed too.
        """
        seconds = TRANSFER_SECONDS if is_transfer else REQUEST_SECONDS
        waits = iter(WAITS_SECONDS)
        with self._noticed(what, seconds):
            while True:
                try:
                    return TimeoutRunner(seconds)(what, function)
                except _UNCHANGED:
                    raise
                except Exception as error:
                    if refusal := refusal_of(error):
                        self._reopen()
                        raise RefusedError(f"{what} at {self._shown} was refused: {brief(error)}; {refusal}") from error
                    if (wait := next(waits, None)) is None:
                        raise self._failed(what, error, seconds) from error
                    time.sleep(wait * random.uniform(1, 1.25))

    def _failed(self, what: str, error: Exception, seconds: float) -> RemoteError:
        reason = f"no answer in {seconds:g} s" if isinstance(error, TimeoutError) else brief(error)
        return RemoteError(
            f"{what} at {self._shown} failed {len(WAITS_SECONDS) + 1} times: {reason}; check the connection, then "
            "repeat the command"
        )

    @contextmanager
    def _noticed(self, what: str, seconds: float) -> Iterator[None]:
        """Log that a request takes long, once until another one is answered in time."""

        def say() -> None:
            if not self._is_slow:
                self._is_slow = True
                log.warning(
                    "%s at %s: no answer for %g s; it is tried up to %d times, for %g s each",
                    *(what, self._shown, NOTICE_SECONDS, len(WAITS_SECONDS) + 1, seconds),
                )

        timer = Timer(NOTICE_SECONDS, say)
        timer.daemon = True
        timer.start()
        start = time.monotonic()
        try:
            yield
            self._is_slow &= time.monotonic() - start > NOTICE_SECONDS
        finally:
            timer.cancel()
