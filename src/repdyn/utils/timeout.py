"""Calls that may never return, as those to a network mount that is gone."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class TimeoutRunner:
    """Waits so long for a call, then goes on without it. What it calls runs in a thread that holds up nobody's exit.

    >>> TimeoutRunner(seconds=5)("adding", lambda: 1 + 1)
    2
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waited_for: Thread | None = None

    def __call__(self, what: str, function: Callable[[], T]) -> T:
        """What ``function()`` returns or raises.

        Args:
            what: names the call in messages.

        Raises:
            TimeoutError: it took too long, or an earlier call, which still has not returned, stands in its way.
        """
        if self._waited_for is not None and self._waited_for.is_alive():
            raise TimeoutError(f"{what} was not tried: {self._waited_for.name} still has not returned")
        outcome: dict[str, Any] = {}

        def call() -> None:
            try:
                outcome["value"] = function()
            except BaseException as error:
                outcome["error"] = error

        thread = self._waited_for = Thread(target=call, name=what, daemon=True)
        thread.start()
        thread.join(self.seconds)
        if thread.is_alive():
            raise TimeoutError(f"{what} took more than {self.seconds:g} s; is the disk or the network mount there?")
        if "error" in outcome:
            raise outcome["error"]
        return outcome["value"]
