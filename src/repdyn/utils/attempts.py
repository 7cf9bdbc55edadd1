"""Doing all that can be done where one part fails: the others are served first, then the failure is raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

Attempt: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Called for a context in which a failure may be kept for later; ``contextlib.nullcontext`` lets it out at once."""


@contextmanager
def attempts(outer: Attempt | None = None) -> Iterator[Attempt]:
    """Several parts, each in a context of its own, of which one that fails keeps none of the others from being done.

    >>> with attempts() as attempt:
    ...     for text in ("1", "two", "three", "4"):
    ...         with attempt():
    ...             print(int(text))
    Traceback (most recent call last):
    ValueError: invalid literal for int() with base 10: 'two'

    Args:
        outer: from the attempts that these are a part of: failures are kept there, and raised at their end.

    Raises:
        Exception: what the first failing part raised, once all have been tried.
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
