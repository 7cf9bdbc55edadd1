"""Logging on one rank alone, by Lightning's own rule and without importing Lightning."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")


def rank_zero_only(function: Callable[P, None]) -> Callable[P, None]:
    """Return a function that does nothing on the ranks on which Lightning's ``rank_zero_only`` does nothing.

    Without Lightning imported there is none of its loggers either, and callers alone determine the rank.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        lightning: Any = sys.modules.get("lightning_utilities.core.rank_zero")
        if not getattr(getattr(lightning, "rank_zero_only", None), "rank", None):
            function(*args, **kwargs)

    return call
