"""The files of one run, single and compact, by the names under which they were written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from repdyn.store.compact_files import (
    ROWS_PER_FILE,
    TEMPORARY,
    check_content,
    compact_parts,
    generation_of,
    is_compact,
    read_blocks,
    read_parts,
    write_compact,
)
from repdyn.store.keys import MeasurementKey, is_failure, measured_name, quoted, step_name
from repdyn.store.parquet_files import read_table, write_single
from repdyn.store.row_filter import EVERY_ROW, RowFilter, files_left
from repdyn.store.schema import COLUMNS, HAS_FOREIGN_WEIGHTS

_LISTINGS = 5
"""Largest number of times that files are listed because some of them went away."""

Value = TypeVar("Value")


def has_files(folder: Path) -> bool:
    """Return whether a folder has files of a run; it is read no further than to the first of them."""
    with suppress(OSError), os.scandir(folder) as entries:
        return any(entry.name.startswith("step") and entry.name.endswith(".parquet") for entry in entries)
    return False


def run_name(folder: Path) -> str | None:
    """Return the name of the run with files in a folder, as its rows have it; None if it has no files.

    Raises:
        ValueError: the first file cannot be read.
    """
    for _ in range(_LISTINGS):
        path = min(folder.glob("step*.parquet"), default=None)
        with suppress(FileNotFoundError):  # made compact since
            return None if path is None else read_table(path, ["run"], row_group=0)["run"][0].as_py()
    return None


class RunFiles:
    """The files of a run, as they are listed when it is created.

    Args:
        folder: of the run; it may be missing.
        condition: files and parts whose names tell that none of their rows meets it are left out.

    Raises:
        ValueError: a compact file cannot be read.
    """

    def __init__(self, folder: Path, condition: RowFilter = EVERY_ROW) -> None:
        self.folder = folder
        listed = sorted(folder.glob("step*.parquet"))
        self.files = {path.name for path in listed}
        """The names of the files."""
        self.single = {path.name: path for path in listed if not is_compact(path.name)}
        """The files of one checkpoint each, by their names."""
        self.compact: dict[Path, list[str]] = {}
        """The compact files with the names of their parts, but for those that were written again since."""
        known = set(self.single)
        for path in sorted((path for path in listed if is_compact(path.name)), key=generation_of, reverse=True):
            self.compact[path] = [name for name in compact_parts(path) if name not in known]
            known.update(self.compact[path])
        self.single = {name: self.single[name] for name in files_left(folder, list(self.single), condition)}
        self.compact = {path: files_left(folder, names, condition) for path, names in self.compact.items()}

    @property
    def names(self) -> list[str]:
        """The names of all single files and parts, in ascending order."""
        return sorted(chain(self.single, *self.compact.values()))

    def distinct(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the distinct values of columns in the measured rows; unreadable single files are skipped."""
        found: dict[tuple, dict[str, Any]] = {}
        for _, table in self.tables(["layer", *columns], skip_unreadable=True):
            measured = table.filter(table["layer"].is_valid()).group_by(list(columns)).aggregate([])
            found |= {tuple(row.values()): row for row in measured.to_pylist()}
        return list(found.values())

    def tables(
        self, columns: Sequence[str] = COLUMNS, *, skip_unreadable: bool = False
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield the name and the table of each single file and part.

        Raises:
            ValueError: one cannot be read; single files that cannot are left out if ``skip_unreadable``.
            FileNotFoundError: one is gone since they were listed; see :func:`with_run_files`.
        """
        for name, path in self.single.items():
            try:
                yield name, read_table(path, columns)
            except ValueError:
                if not skip_unreadable:
                    raise
        for path, names in self.compact.items():
            yield from read_parts(path, names, columns)

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[bool, pa.Table]]:
        """Yield all rows as few and large tables, with texts as dictionaries or not, and whether these are failed
        measurements, which come first.

        Failures for which the measurement of the same key exists are left out: a process may be killed before it
        deletes their file. Columns must include ``same_as`` and ``mixed_with``, by which copies and mixtures are kept.

        Raises:
            ValueError, FileNotFoundError: as :meth:`tables`.
        """
        names = set(self.names)
        for name in sorted(self.single, key=lambda name: (not is_failure(name), name)):
            table = read_table(self.single[name], columns, encoded=True)
            if is_failure(name) and measured_name(name) in names:
                table = table.filter(HAS_FOREIGN_WEIGHTS)
            yield is_failure(name), table
        for path, names in self.compact.items():
            yield from ((False, table) for table in read_blocks(path, names, columns))


def find_file(folder: Path, name: str) -> Path | None:
    """Return the single or compact file of a run that has the rows written under a name; None if there is none.

    Raises:
        ValueError: a compact file cannot be read.
    """
    if (folder / name).exists():
        return folder / name
    # far quicker than pathlib's glob in a folder with a thousand files
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        compact = [folder / entry.name for entry in entries if is_compact(entry.name)]
        for path in sorted(compact, key=generation_of, reverse=True):
            if name in compact_parts(path):
                check_content(path)
                return path
    return None


def find_failures(folder: Path, key: MeasurementKey) -> list[Path]:
    """Return the files of failed measurements at the step and on the probe of a key."""
    step, probe = f"{step_name(key.step)}-", f"-{quoted(key.probe)}-"
    # called after each measurement, hence no glob either
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(step) and is_failure(entry.name)]
        return [folder / name for name in names if probe in name]
    return []


def read_file(folder: Path, name: str) -> pa.Table | None:
    """Return the rows of a run that were written under a name; None if there are none.

    Raises:
        ValueError: they cannot be read.
    """
    for _ in range(_LISTINGS):
        path = find_file(folder, name)
        with suppress(FileNotFoundError):
            if path is None or path.name == name:
                return None if path is None else read_table(path)
            return next(read_parts(path, [name], COLUMNS))[1]
    return None


def run_blocks(folder: Path, columns: Sequence[str], condition: RowFilter) -> Iterator[tuple[bool, pa.Table]]:
    """Yield :meth:`RunFiles.blocks` of a run, but for files and parts without rows that meet a condition.

    Where another process makes the files compact meanwhile, rows may come twice.
    """
    for _ in range(_LISTINGS - 1):
        with suppress(FileNotFoundError):
            yield from RunFiles(folder, condition).blocks(columns)
            return
    yield from RunFiles(folder, condition).blocks(columns)


def with_run_files(folder: Path, read: Callable[[RunFiles], Value]) -> Value:
    """Return what a function reads of a run's files; they are listed anew if another process makes them compact."""
    for _ in range(_LISTINGS - 1):
        with suppress(FileNotFoundError):
            return read(RunFiles(folder))
    return read(RunFiles(folder))


def split_run(folder: Path) -> None:
    """Write each part of the compact files of a run to a file of its own again, then delete the compact files.

    A process killed meanwhile loses nothing: a single file counts in place of the part of its name.

    Raises:
        ValueError: a compact file cannot be read.
        OSError: the disk is full, for example.
    """
    for path, names in RunFiles(folder).compact.items():
        for name, table in read_parts(path, names, COLUMNS):
            write_single(folder / name, table)
        path.unlink()


@dataclass(frozen=True)
class Compaction:
    """The sizes of a run before and after its files were made compact."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    unreadable: tuple[str, ...]
    """Why files were left as they are."""


def compact_run(
    folder: Path, progress: Callable[[int, int], object] = lambda done, total: None, at_least: int = 2
) -> Compaction | None:
    """Join the single files of a run, and compact files that are not complete; None if there is nothing to join.

    Failures stay single, since a later measurement deletes them. A process killed meanwhile loses nothing: a file is
    deleted when its rows are in a compact file that was written completely, and counts in its place until then.

    Args:
        folder: of the run. Two processes must not do this at the same time; one that writes or reads is no harm.
        progress: called with the number of files and parts that were read and of all of them.
        at_least: smallest number of files to join.

    Raises:
        ValueError: a compact file cannot be read.
        OSError: the disk is full, for example; everything is as it was.
    """
    for left_over in folder.glob(f"{TEMPORARY}*"):
        left_over.unlink(missing_ok=True)
    files, unreadable, joined = RunFiles(folder), [], set()
    for path in files.compact:
        check_content(path)
    single = {name: path for name, path in files.single.items() if not is_failure(name)}
    incomplete = {path: names for path, names in files.compact.items() if _n_rows(path) < ROWS_PER_FILE}
    total = len(single) + sum(map(len, incomplete.values()))
    if not single or len(single) + len(incomplete) < max(2, at_least):
        return None
    before = {path: _state(path) for path in (*single.values(), *files.compact)}

    def parts() -> Iterator[tuple[str, pa.Table]]:
        of_single = ((name, _table_or_reason(path, unreadable)) for name, path in single.items())
        of_compact = (part for path, names in incomplete.items() for part in read_parts(path, names, COLUMNS))
        for done, (name, table) in enumerate(chain(of_single, of_compact), start=1):
            progress(done, total)
            if table is not None:
                yield name, table

    generation = 1 + max(map(generation_of, files.compact), default=0)
    remaining, written = parts(), []
    while (first := next(remaining, None)) is not None:
        path, names = write_compact(folder, chain([first], remaining), generation)
        written.append(path)
        joined.update(names)
    superseded = [*(path for name, path in single.items() if name in joined), *incomplete]
    for path in superseded:
        # one that was written again while it was read is newer than its part
        if _state(path) == before[path]:
            path.unlink(missing_ok=True)
    after = {path: _state(path) for path in before.keys() - set(superseded) | set(written)}
    return Compaction(len(before), len(after), _bytes(before), _bytes(after), tuple(unreadable))


def _table_or_reason(path: Path, unreadable: list[str]) -> pa.Table | None:
    try:
        return read_table(path)
    except ValueError as error:
        unreadable.append(str(error))
        return None


def _n_rows(path: Path) -> int:
    return sum(map(len, compact_parts(path).values()))


def _state(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written again; None for one that is gone."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _bytes(states: dict[Path, tuple[int, int, int] | None]) -> int:
    return sum(state[2] for state in states.values() if state)
