"""Uploads in the background, so that a slow or dead network delays neither a training nor a measurement."""

from __future__ import annotations

import logging
import time
from threading import Condition, Thread

from repdyn.store.mirror import Mirror
from repdyn.store.remote_errors import RefusedError, RemoteError
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
"""Pauses between attempts while the network is down; they double."""
LONGEST_WAIT_SECONDS = 3600.0
"""Longest pause that is made because a server asks for it."""
COMMIT_SECONDS = 60.0
"""Shortest time between two commits, of which the Hugging Face hub accepts some hundred in an hour."""
_MAX_FAILURES = 3
"""Number of files that fail one after another until the rest waits for the next attempt."""


class Uploader:
    """A thread that uploads what waits in a mirror, started by the first :meth:`wake`."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._changed = Condition()
        self._is_due = False
        self._thread: Thread | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._drains = 0
        self._n_draining = 0
        self._not_before = 0.0
        self._failed: set[str] = set()
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
        """Wait until everything is uploaded, none can be for now, or the time is over; return how many files wait.

        Raises:
            RefusedError: it cannot be read what waits.
        """
        deadline = time.monotonic() + seconds
        if not self._mirror.waiting():
            return 0
        with self._changed:
            self._drains += 1
            self._n_draining += 1
            self.error, self._pause = None, FIRST_PAUSE_SECONDS
        self.wake()
        try:
            while waiting := len(self._mirror.waiting()):
                left = deadline - time.monotonic()
                if left <= 0 or self._is_in_vain(left):
                    return waiting
                with self._changed:
                    self._changed.wait(min(left, 0.2))
            return 0
        finally:
            with self._changed:
                self._n_draining -= 1

    def _is_in_vain(self, seconds: float) -> bool:
        """Return whether no upload can succeed in the next seconds."""
        error = self.error
        return isinstance(error, RefusedError) or (error is not None and error.wait_seconds > seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_due:
                    # what failed is tried again; without a failure there is nothing to do until the next call
                    if not self._changed.wait(self._pause if self.error else None):
                        break
                while not self._n_draining and (left := self._not_before - time.monotonic()) > 0:
                    self._changed.wait(left)
                self._is_due = False
                drains = self._drains
            error: RemoteError | None = None
            try:
                error = self._upload(drains)
            except Exception as failure:  # a full disk, say: the thread must go on
                error = _as_remote(failure)
                self._report(error, drains)
            with self._changed:
                if drains == self._drains:
                    self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS) if error else FIRST_PAUSE_SECONDS
                    self.error = error
                if error and error.wait_seconds:
                    wait = min(error.wait_seconds, LONGEST_WAIT_SECONDS)
                    self._not_before = max(self._not_before, time.monotonic() + wait)
                self._changed.notify_all()

    def _upload(self, drains: int) -> RemoteError | None:
        """Upload what waits, and return the first error of a single file.

        Raises:
            RefusedError: further uploads would be refused as well.
        """
        waiting = self._mirror.waiting()
        if self._mirror.has_commits:
            if waiting:
                self._not_before = time.monotonic() + COMMIT_SECONDS
                self._mirror.upload_all()
            return None
        errors: dict[str, RemoteError] = {}
        n_in_a_row = 0
        # what failed before is in no other's way
        for one in sorted(waiting, key=lambda each: (each.is_deleted, each.name in self._failed)):
            if one.is_deleted and errors:
                break  # what is to take its place may not be uploaded
            try:
                self._mirror.upload(one)
            except RefusedError:
                raise
            except Exception as failure:
                errors[one.name] = _as_remote(failure)
                self._report(errors[one.name], drains)
                n_in_a_row += 1
                if n_in_a_row == _MAX_FAILURES:
                    break
            else:
                n_in_a_row = 0
                with self._changed:
                    self._changed.notify_all()
        self._failed = set(errors)
        return next(iter(errors.values()), None)

    def _report(self, error: RemoteError, drains: int) -> None:
        with self._changed:
            if self.error is None:
                log.warning("%s; the rows are kept in %s and uploaded later", error, self._mirror.path)
            if drains == self._drains:  # otherwise drain() waits for an attempt that began after it was called
                self.error = error
                self._changed.notify_all()


def _as_remote(error: Exception) -> RemoteError:
    return error if isinstance(error, RemoteError) else RemoteError(redacted(str(error)))
