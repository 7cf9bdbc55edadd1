"""Attempts that may fail: several, all made before the first failure is raised, and calls with a
timeout.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from typing import Any, TypeAlias, TypeVar

_POLL_SECONDS = 0.2
Attempt: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Returns a context that may hold a failure back; ``contextlib.nullcontext`` raises it at once."""


@contextmanager
def attempts(outer: Attempt | None = None) -> Iterator[Attempt]:
    """Yield a function that returns a context for each of several parts, so that all run even if
    one fails.

    >>> with attempts() as attempt:
    ...     for text in ("1", "two", "three", "4"):
    ...         with attempt():
    ...             print(int(text))
    Traceback (most recent call last):
    ValueError: invalid literal for int() with base 10: 'two'

    What the first failing part raised is raised at the end: at that of ``outer``, the function of
    the attempts that these are a part of, if given.
    """
    failures: list[Exception] = []

    @contextmanager
    def attempt() -> Iterator[None]:
        try:
            yield
        except Exception as failure:
            failures.append(failure)

    yield outer or attempt
    if failures:
        raise failures[0]


T = TypeVar("T")


class TimeoutRunner:
    """Runs calls with a timeout, in a thread that does not delay the exit of the process.

    >>> TimeoutRunner(seconds=5)("adding", lambda: 1 + 1)
    2
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._running: tuple[str, Future[Any]] | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a call that took too long is still running."""
        return self._running is not None and not self._running[1].done()

    def __call__(
        self, what: str, function: Callable[[], T], watch: Callable[[], None] | None = None
    ) -> T:
        """Return what ``function()`` returns, or raise what it raises; TimeoutError where it takes
        too long, or an earlier call has not returned. ``what`` names it; ``watch`` is called
        meanwhile, and gives it up by what it raises."""
        if self._running is not None and self.is_busy:
            raise TimeoutError(f"{what} was not tried: {self._running[0]} still has not returned")
        outcome: Future[T] = Future()
        self._running = what, outcome

        def call() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:
                outcome.set_exception(error)

        Thread(target=call, name=what, daemon=True).start()
        deadline = time.monotonic() + self.seconds
        while not outcome.done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"{what} took more than {self.seconds:g} s; is the disk or the network mount "
                    "there?"
                )
            wait([outcome], left if watch is None else _POLL_SECONDS)
            if watch is not None:
                watch()
        return outcome.result()

    def wait(self, seconds: float) -> None:
        """Wait for a call that took too long."""
        if self._running is not None:
            wait([self._running[1]], seconds)
