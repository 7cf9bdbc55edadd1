"""What the fuzzing tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attempt(
    act: Callable[[], Any], refusals: type[Exception] | tuple[type[Exception], ...] = ValueError
) -> tuple[Any, str | None]:
    """The result and None, or None and the message of a refusal; any other error goes through."""
    try:
        return act(), None
    except refusals as error:
        return None, str(error)
