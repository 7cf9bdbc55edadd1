"""A console of rich that shows names which others chose without obeying them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from repdyn.utils.printing import printable


class PrintableConsole(Console):
    """A rich console that writes control characters of a text as escape sequences; its own styles are kept.

    In an encoding other than Unicode it writes "?" in place of what is not ASCII, where rich would raise.
    """

    def on_broken_pipe(self) -> None:
        """Leave a reader that has seen enough, such as head, to the caller, where rich would exit with status 1."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            if not text.isascii() and self.options.ascii_only:
                text = text.encode("ascii", "replace").decode()
            yield segment if text is segment.text else Segment(text, segment.style)
