"""Lists of names in a line."""

from __future__ import annotations

from collections.abc import Sequence

MAX_LISTED = 6


def shorten_list(names: Sequence[str]) -> str:
    """Join names with commas, leaving out the middle of a long list.

    >>> shorten_list(["a", "b"]), shorten_list([str(n) for n in range(20)])
    ('a, b', '0, 1, 2, 3, 4 .. 19 (20)')
    """
    if len(names) <= MAX_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[: MAX_LISTED - 1])} .. {names[-1]} ({len(names)})"
