"""What a study produces: tables as CSV, figures as PNG and SVG, and a summary in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from repdyn.figures.files import save
from repdyn.utils.atomic_files import write_atomically


@dataclass(frozen=True)
class Output:
    """Tables and figures by their path in the output folder, without a suffix."""

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)

    def write(self, folder: Path) -> list[Path]:
        """Write everything below a folder; return the files."""
        files = [folder / f"{name}.csv" for name in self.tables]
        for file, table in zip(files, self.tables.values(), strict=True):
            write_atomically(file, lambda path, rows=table: rows.to_csv(path, index=False))
        for name in self.figures:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        return [*files, *save(self.figures, folder)]


def print_title(name: str, details: str = "") -> None:
    """Print a bold title, with details behind it."""
    Console().print(Text.assemble((name, "bold"), f"  {details}" if details else ""), soft_wrap=True)


def print_line(text: str) -> None:
    """Print a line as it is, markup included."""
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def print_table(
    columns: Sequence[str], rows: Iterable[Iterable[str]], *, left: Collection[str] = (), gap: int = 2
) -> None:
    """Print a table without lines.

    Args:
        columns: their headings.
        rows: cells of each row, fewer than columns where the last ones are empty.
        left: columns that are aligned to the left and may wrap; numbers stand to the right.
        gap: spaces between columns.
    """
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", no_wrap=column not in left)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float], None]]:
    """Show a bar in the terminal that follows the share, in [0, 1], that it is called with."""
    with tqdm(total=1.0, desc=title, leave=False, bar_format="{desc} {percentage:3.0f}% {bar} {elapsed}") as bar:

        def progress(share: float) -> None:
            bar.update(share - bar.n)

        yield progress
