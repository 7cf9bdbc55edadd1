"""What a study returns: tables as data frames, figures, and a summary, to look at or to save."""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from repdyn.utils.files import write_atomically
from repdyn.views.charts.on_matplotlib import save
from repdyn.views.tables.style import styled

T = TypeVar("T")


class ByPath(Mapping[str, T], Generic[T]):
    """Maps the paths of the files of a study, without a suffix, to the tables or figures in them.

    Looked up is a path, or its last part where a single one ends in it: ``figures["rank"]`` is
    ``figures["gpt2/rank"]`` where the study is of one model.
    """

    def __init__(self, items: Mapping[str, T]) -> None:
        self._items = dict(items)

    def __getitem__(self, name: str) -> T:
        if name in self._items:
            return self._items[name]
        paths = self.paths_of(name)
        # of one model the folder need not be written
        if len(paths) == 1:
            return self._items[paths[0]]
        kept = ", ".join(paths or self._items) or "none"
        raise KeyError(f"expected one of {kept}, got {name!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def paths_of(self, name: str) -> list[str]:
        """Return the paths that end in a name."""
        return [path for path in self._items if PurePosixPath(path).name == name]


class StudyResult:
    """The tables, figures and summary of a study.

    ``result.NAME`` is the table of that name, of all models, which a first column ``model`` tells
    apart where the study makes a table for each.

    Example:
        >>> result = repdyn.lab.tokens("gpt2")  # doctest: +SKIP
        >>> result.nearest.query("place == 1")  # doctest: +SKIP
        >>> result.figures["rank"]  # doctest: +SKIP
        >>> result.save("studies")  # doctest: +SKIP
    """

    tables: ByPath[pd.DataFrame]
    """Tables, such as "gpt2/nearest"; of studies that compare models, such as "profiles"."""
    figures: ByPath[Figure]
    """Figures of matplotlib, by path as the tables."""
    summary: str
    """What ``repdyn study`` prints."""

    def __init__(
        self, tables: Mapping[str, pd.DataFrame], figures: Mapping[str, Figure], summary: str
    ) -> None:
        self.tables = ByPath(tables)
        self.figures = ByPath(figures)
        self.summary = summary

    @property
    def names(self) -> list[str]:
        """Return the names of the tables, each once."""
        return list(dict.fromkeys(PurePosixPath(path).name for path in self.tables))

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name.startswith("_"):  # asked for by copy and pickle, before there are tables
            raise AttributeError(name)
        paths = self.tables.paths_of(name)
        if not paths:
            raise AttributeError(f"expected a table of {', '.join(self.names)}, got {name!r}")
        # a table that the study makes once, of all models
        if paths == [name]:
            return self.tables[name]
        of_models = {str(PurePosixPath(path).parent): self.tables[path] for path in paths}
        return join_tables(of_models, "model")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.names]

    def __repr__(self) -> str:
        shapes = [
            f"  {path}: {len(table):,} rows, {', '.join(map(str, table.columns))}"
            for path, table in self.tables.items()
        ]
        return "\n".join(["Tables:", *shapes, f"Figures: {', '.join(self.figures) or 'none'}"])

    @styled
    def save(self, folder: str | Path) -> list[Path]:
        """Write the tables as CSV, and the figures as PNG and SVG; return the files."""
        folder = Path(folder)
        files = [folder / f"{path}.csv" for path in self.tables]
        for file, table in zip(files, self.tables.values(), strict=True):
            write_atomically(file, lambda path, rows=table: rows.to_csv(path, index=False))
        for path in self.figures:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        return files + save(self.figures, folder)


def join_tables(tables: Mapping[Any, pd.DataFrame], *names: str) -> pd.DataFrame:
    """Concatenate tables, their keys as the first columns, of these names; empty if there is no
    table.
    """
    if not tables:
        return pd.DataFrame()
    joined = pd.concat(tables, names=[*names])
    return joined.reset_index([*names]).reset_index(drop=True)
