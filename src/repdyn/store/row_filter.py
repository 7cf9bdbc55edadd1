"""Conditions on rows, and what the names of folders and files say of them before anything is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import and_
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from repdyn.store.keys import parse_step, run_of
from repdyn.store.schema import SCHEMA


class RowFilter:
    """A condition on the rows of a store.

    Args:
        expression: of Arrow; None for a condition that every row meets.
        schema: of the rows; that of a store unless given.
    """

    def __init__(self, expression: pc.Expression | None = None, schema: pa.Schema = SCHEMA) -> None:
        self._expression = expression
        self._schema = schema
        text = "" if expression is None else str(expression)
        # an expression tells its columns as text alone; a name within a literal adds a column, which is no harm
        self.columns = [name for name in schema.names if re.search(rf"\b{name}\b", text)]
        """The columns that the condition is about."""

    def possible(self, known: Sequence[Mapping[str, object]]) -> list[int]:
        """Return the places of those values of some columns with which a row may meet the condition."""
        if self._expression is None:
            return list(range(len(known)))
        import pyarrow.dataset as ds  # which no tracker waits for
        from pyarrow.fs import LocalFileSystem

        # Arrow leaves out files whose rows all have values that contradict a condition; none is opened
        written, where = ds.ParquetFileFormat(), LocalFileSystem()
        files = [
            written.make_fragment(str(place), where, partition_expression=_equal(values))
            for place, values in enumerate(known)
        ]
        left = ds.FileSystemDataset(files, self._schema, written, where).get_fragments(self._expression)
        return sorted(int(fragment.path) for fragment in left)

    def apply(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table that meet the condition."""
        return table if self._expression is None else table.filter(self._expression)


EVERY_ROW = RowFilter()


def of_metrics(names: Sequence[str] | None) -> RowFilter:
    """Return the condition that a row's metric is one of these; that of every row if none are given."""
    return EVERY_ROW if names is None else RowFilter(pc.field("metric").isin(pa.array(names, pa.string())))


def folders_left(folders: Iterable[Path], condition: RowFilter) -> list[Path]:
    """Return the folders of those runs that may have rows that meet a condition."""
    listed = list(folders)
    return [listed[place] for place in condition.possible([_run_in(folder) for folder in listed])]


def files_left(folder: Path, names: Sequence[str], condition: RowFilter) -> list[str]:
    """Return the names of those files and parts of a run that may have rows that meet a condition."""
    if "step" not in condition.columns:
        return list(names)
    known = [_run_in(folder) | _step_in(name) for name in names]
    return [names[place] for place in condition.possible(known)]


def _run_in(folder: Path) -> dict[str, object]:
    run = run_of(folder.name)
    return {} if run is None else {"run": run}


def _step_in(name: str) -> dict[str, object]:
    with suppress(ValueError):
        return {"step": parse_step(Path(name))}
    return {}


def _equal(values: Mapping[str, object]) -> pc.Expression:
    return reduce(and_, (pc.field(name) == value for name, value in values.items()), pc.scalar(True))
