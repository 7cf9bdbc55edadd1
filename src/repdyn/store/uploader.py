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


class Uploader:
    """A thread that uploads what waits in a mirror, started by the first :meth:`wake`."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._changed = Condition()
        self._is_due = False
        self._thread: Thread | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._drains = 0
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
        """Wait until everything is uploaded, an upload is refused, or the time is over; return how many files wait."""
        deadline = time.monotonic() + seconds
        if not self._mirror.waiting():
            return 0
        with self._changed:
            self._drains += 1
            self.error, self._pause = None, FIRST_PAUSE_SECONDS
        self.wake()
        while waiting := len(self._mirror.waiting()):
            left = deadline - time.monotonic()
            if left <= 0 or isinstance(self.error, RefusedError):
                return waiting
            with self._changed:
                self._changed.wait(min(left, 0.2))
        return 0

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_due:
                    # what failed is tried again; without a failure there is nothing to do until the next call
                    if not self._changed.wait(self._pause if self.error else None):
                        break
                self._is_due = False
            self._upload()

    def _upload(self) -> None:
        error: RemoteError | None = None
        drains = self._drains
        for one in self._mirror.waiting():
            try:
                self._mirror.upload(one)
            except RemoteError as failure:
                error = failure
                break
            except Exception as failure:  # a full disk, say: the thread must go on
                error = RemoteError(redacted(str(failure)))
                break
            with self._changed:
                self._changed.notify_all()
        with self._changed:
            if error is not None and self.error is None:
                log.warning("%s; the rows are kept in %s and uploaded later", error, self._mirror.path)
            if drains != self._drains:
                return  # drain() waits for an attempt that begins after it was called, and has asked for one
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS) if error else FIRST_PAUSE_SECONDS
            self.error = error
            self._changed.notify_all()
