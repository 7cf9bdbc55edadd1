"""Lines that ``repdyn sweep`` prints beside its progress."""

from __future__ import annotations

from rich.console import Console

from repdyn.utils.redaction import redacted


def print_line(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is, without markup, colours of numbers or secrets."""
    console.print(redacted(text), style=style, markup=False, highlight=False, soft_wrap=True)
