"""A console of rich that writes to any encoding and pipe, and tables in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

_FILE_WIDTH = 10_000


class PrintableConsole(Console):
    """A rich console that writes "?" in place of what is not ASCII in an encoding other than
    Unicode.

    Rich would raise an error there.
    """

    def on_broken_pipe(self) -> None:
        """Leave a reader that has seen enough, such as head, to the caller, where rich would exit
        with status 1.
        """
        raise BrokenPipeError

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # the options of a console take longer to make than a segment
            if not segment.text.isascii() and self.options.ascii_only:
                segment = Segment(segment.text.encode("ascii", "replace").decode(), segment.style)
            yield segment


def wide_console() -> PrintableConsole:
    """Return a console that breaks lines in a terminal alone, since a file has no width."""
    return PrintableConsole(width=None if sys.stdout.isatty() else _FILE_WIDTH)


def print_frame(frame: pd.DataFrame) -> None:
    """Print the rows of a data frame."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, column in frame.items():
        table.add_column(Text(str(name)), justify="right" if column.dtype.kind in "iuf" else "left")
    for record in plain_records(frame):
        table.add_row(*(Text(_cell(value)) for value in record.values()))
    wide_console().print(table)


def plain_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows with values of JSON: None for what is missing, lists for arrays, texts
    for times.
    """
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return json.loads(
        json.dumps(records, default=lambda value: getattr(value, "tolist", partial(str, value))())
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
