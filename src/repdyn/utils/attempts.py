"""Attempts that may fail: several, all made before the first failure is raised, and calls with a
timeout.

Both keep one broken thing (a logger, a figure, a network mount) from costing the others.
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
    """Run several blocks, all of them even if one fails, and raise the first failure at the end.

    It yields a function that returns the context of a block.

    >>> with attempts() as attempt:
    ...     for text in ("1", "two", "three", "4"):
    ...         with attempt():
    ...             print(int(text))
    Traceback (most recent call last):
    ValueError: invalid literal for int() with base 10: 'two'

    Args:
        outer: the function that surrounding attempts have yielded; failures are then raised at
            their end.
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

    A call that takes too long cannot be stopped: it goes on in its thread, and no other call is
    made until it has returned.

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
        """Return what ``function()`` returns, or raise what it raises.

        Args:
            what: names the call in an error.
            function: the call.
            watch: called several times a second meanwhile; what it raises gives the call up.

        Raises:
            TimeoutError: it takes too long, or an earlier call has not returned.
        """
        if self._running is not None and self.is_busy:
            raise TimeoutError(f"{what} was not tried: {self._running[0]} still has not returned")
        outcome: Future[T] = Future()
        self._running = (what, outcome)

        def call() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:
                outcome.set_exception(error)

        # not a pool, whose threads Python joins at exit: one that hangs would hold the process
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
        """Wait some seconds for a call that took too long."""
        if self._running is not None:
            wait([self._running[1]], seconds)
