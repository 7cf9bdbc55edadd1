"""What a study writes: tables as CSV, figures as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console

from repdyn.figures.drawing import save
from repdyn.utils.atomic_files import write_atomically


@dataclass(frozen=True)
class Findings:
    """What is written, by its path in the output folder without a suffix."""

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)

    def write(self, folder: Path) -> list[Path]:
        """Write everything below a folder; returns the files."""
        files = [folder / f"{name}.csv" for name in self.tables]
        for file, table in zip(files, self.tables.values(), strict=True):
            write_atomically(file, lambda path, rows=table: rows.to_csv(path, index=False))
        for name in self.figures:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        return [*files, *save(self.figures, folder)]


def print_written(folder: Path, files: Sequence[Path], console: Console | None = None) -> None:
    """Where everything lies."""
    text = f"tables and figures: {folder} ({len(files)} files)"
    (console or Console()).print(text, markup=False, highlight=False, soft_wrap=True)
