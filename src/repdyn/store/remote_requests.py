"""Requests to remote filesystems, with time limits and repetitions."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TypeVar

from repdyn.store.remote_errors import ConflictError, RefusedError, RemoteError, brief, refusal_of, requested_wait
from repdyn.utils.attempts import TimeoutRunner

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

LONGEST_WAIT_SECONDS = 10.0
"""The longest wait that a busy server may ask for before a request is repeated rather than given up."""

_UNCHANGED = (FileNotFoundError, FileExistsError, ConflictError)


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
            FileNotFoundError, FileExistsError, ConflictError: as raised.
            RefusedError: credentials, permissions.
            RemoteError: the last attempt failed too, or the server asks for a long wait.
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
                    asked = requested_wait(error)
                    if asked > LONGEST_WAIT_SECONDS:
                        raise self._put_off(what, asked) from error
                    if (wait := next(waits, None)) is None:
                        raise self._failed(what, error, seconds) from error
                    time.sleep(max(asked, wait) * random.uniform(1, 1.25))

    def _put_off(self, what: str, seconds: float) -> RemoteError:
        error = RemoteError(
            f"{what} at {self._shown} was put off by the server, which is busy or limits the requests in an hour and "
            f"asks to wait {seconds:g} s; repeat the command then"
        )
        error.wait_seconds = seconds
        return error

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
