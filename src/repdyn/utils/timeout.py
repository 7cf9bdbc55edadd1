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
        self._running: tuple[str, Event] | None = None

    def __call__(self, what: str, function: Callable[[], T]) -> T:
        """Return what ``function()`` returns, or raise what it raises.

        Args:
            what: names the call in messages.

        Raises:
            TimeoutError: it took too long, or an earlier call still has not returned.
        """
        if self._running is not None and not self._running[1].is_set():
            raise TimeoutError(f"{what} was not tried: {self._running[0]} still has not returned")
        outcome: dict[str, Any] = {}
        ended = Event()
        self._running = what, ended

        def call() -> None:
            try:
                outcome["value"] = function()
            except BaseException as error:
                outcome["error"] = error
            finally:
                ended.set()

        Thread(target=call, name=what, daemon=True).start()
        # Not with join(): before Python 3.13, a thread whose join() is interrupted counts as ended.
        if not ended.wait(self.seconds):
            raise TimeoutError(f"{what} took more than {self.seconds:g} s; is the disk or the network mount there?")
        if "error" in outcome:
            raise outcome["error"]
        return outcome["value"]
