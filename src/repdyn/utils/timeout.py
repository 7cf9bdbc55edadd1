"""Calls with a timeout, for those that may never return, such as access to a lost network mount."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Any, TypeVar

T = TypeVar("T")


class TimeoutRunner:
    """Runs calls with a timeout, in a thread that does not delay the exit of the process.

    >>> TimeoutRunner(seconds=5)("adding", lambda: 1 + 1)
    2
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._thread: Thread | None = None

    def __call__(self, what: str, function: Callable[[], T]) -> T:
        """Return what ``function()`` returns, or raise what it raises.

        Args:
            what: names the call in messages.

        Raises:
            TimeoutError: it took too long, or an earlier call still has not returned.
        """
        if self._thread is not None and self._thread.is_alive():
            raise TimeoutError(f"{what} was not tried: {self._thread.name} still has not returned")
        outcome: dict[str, Any] = {}
        ended = Event()

        def call() -> None:
            try:
                outcome["value"] = function()
            except BaseException as error:
                outcome["error"] = error
            finally:
                ended.set()

        thread = self._thread = Thread(target=call, name=what, daemon=True)
        thread.start()
        # Not with join(): before Python 3.13, a thread whose join() is interrupted counts as ended.
        if not ended.wait(self.seconds):
            raise TimeoutError(f"{what} took more than {self.seconds:g} s; is the disk or the network mount there?")
        if "error" in outcome:
            raise outcome["error"]
        return outcome["value"]
