"""Names that others chose, of metrics, runs and folders, made safe for terminals."""

from __future__ import annotations


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
