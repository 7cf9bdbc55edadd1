"""Several attempts of which all are made before the first failure is raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

Attempt: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Returns a context that may hold a failure back; ``contextlib.nullcontext`` raises it at once."""


@contextmanager
def attempts(outer: Attempt | None = None) -> Iterator[Attempt]:
    """Yield a function that returns a context for each of several parts, so that all run even if one fails.

    >>> with attempts() as attempt:
    ...     for text in ("1", "two", "three", "4"):
    ...         with attempt():
    ...             print(int(text))
    Traceback (most recent call last):
    ValueError: invalid literal for int() with base 10: 'two'

    Args:
        outer: the function of the attempts that these are a part of, which then raise the failures at their end.

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
