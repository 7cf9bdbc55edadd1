"""Names that others chose, of metrics, runs and folders, made safe for terminals and files, and lists of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence


def printable(text: str) -> str:
    """Return a text with every control or invisible character but line breaks and tabs written as its escape sequence.

    A terminal would obey some of them: move the cursor, set the title, or reverse the direction of writing.

    >>> printable("run\\x1b[2J")
    'run\\\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in "\n\t\N{NO-BREAK SPACE}" else ascii(character)[1:-1]
        for character in text
    )


def in_one_line(text: str) -> str:
    """Return a text as :func:`printable` does, its line breaks and tabs as escape sequences too.

    A name with a line break would print a line of its own, which looks like one of the program.

    >>> in_one_line("run\\nerror: disk full")
    'run\\\\nerror: disk full'
    """
    return "".join(ascii(character)[1:-1] if character in "\n\t" else character for character in printable(text))


_LONGEST_STEM = 200
_DIGEST_DIGITS = 12
_NOT_IN_FILES = re.compile(r"[^\w .,=@+()\[\]-]|^\.", re.ASCII)


def safe_file_name(name: str) -> str:
    """Return a name as one part of a path, without separators, at most 200 characters long; most stay as they are.

    >>> safe_file_name("profile_two_nn[discard=0.8]"), safe_file_name("x/../../y")
    ('profile_two_nn[discard=0.8]', 'x%2F..%2F..%2Fy')
    """
    stem = _NOT_IN_FILES.sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass")), name
    )
    if len(stem) <= _LONGEST_STEM:
        return stem or "%"
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
    return f"{stem[: _LONGEST_STEM - 1 - _DIGEST_DIGITS]}+{digest}"


MAX_LISTED = 6


def shorten_list(names: Sequence[str]) -> str:
    """Join names with commas, leaving out the middle of a long list.

    >>> shorten_list(["a", "b"]), shorten_list([str(n) for n in range(20)])
    ('a, b', '0, 1, 2, 3, 4 .. 19 (20)')
    """
    if len(names) <= MAX_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[: MAX_LISTED - 1])} .. {names[-1]} ({len(names)})"
