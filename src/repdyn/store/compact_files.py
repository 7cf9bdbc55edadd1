"""Compact files: the files of many checkpoints of a run as one Parquet file.

A compact file holds the tables of its parts one after another, and in its metadata the names under which these were
written. Its name has the first and the last step, a generation, and the digest of its content. pandas, DuckDB and
Polars read it like any other file of a store.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from types import MappingProxyType
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from repdyn.store.parquet_files import read_table
from repdyn.store.schema import SCHEMA
from repdyn.utils.files import locked_file

ROWS_PER_FILE = 1_000_000
"""Number of rows from which on a compact file is complete."""
TEMPORARY = ".compact-"
"""Beginning of the name of a file that is being written; it remains if the process is killed, and is locked before."""
_ROWS_PER_GROUP = 100_000
"""Number of rows from which on a row group is complete, the smallest unit that is read."""
_MARK = "-compact-"
_PARTS = "repdyn.parts"
_DIGEST_OF_PARTS = "repdyn.parts.sha256"
"""Name of the digest of the index in the metadata; files of early versions lack it."""
_DIGEST_DIGITS = 32


def is_compact(name: str) -> bool:
    """Return whether the file of a name is compact, and complete."""
    return _MARK in name and not name.startswith(TEMPORARY)


def generation_of(path: Path) -> int:
    """Return the generation of a compact file: a part in several files counts in that of the latest generation."""
    return int(path.stem.rpartition(_MARK)[2].partition("-")[0])


def compact_parts(path: Path) -> Mapping[str, range]:
    """Return the rows of each part of a compact file, by the name of the part.

    Of the content no more is read than the index of the parts, which has a digest of its own.

    Raises:
        FileNotFoundError: the file is gone.
        ValueError: the index cannot be read, or is not what was written.
    """
    return _parts(path, *_state(path))


def check_content(path: Path) -> None:
    """Check the content of a compact file, once in a process for each state of the file.

    Raises:
        FileNotFoundError: the file is gone.
        ValueError: its content is not what was written.
    """
    _check_content(path, *_state(path))


def read_parts(
    path: Path, names: Iterable[str], columns: Sequence[str], *, encoded: bool = False
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the names and the tables of some parts of a compact file; row groups without any are not read.

    Texts are left as dictionaries if they are to be ``encoded``.

    Raises:
        FileNotFoundError: the file is gone.
        ValueError: it cannot be read, or its content is not what was written.
    """
    check_content(path)
    parts, wanted = compact_parts(path), set(names)
    for index, group in enumerate(_row_groups(path)):
        inside = [name for name, rows in parts.items() if name in wanted and rows.start in group]
        if inside:
            table = read_table(path, columns, row_group=index, encoded=encoded)
            yield from ((name, table.slice(parts[name].start - group.start, len(parts[name]))) for name in inside)


def read_blocks(path: Path, names: Sequence[str], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of some parts of a compact file, as few and large tables with texts as dictionaries.

    Raises:
        FileNotFoundError: the file is gone.
        ValueError: it cannot be read, or its content is not what was written.
    """
    if names:
        check_content(path)
    if len(names) == len(compact_parts(path)):
        groups = range(len(_row_groups(path)))
        yield from (read_table(path, columns, row_group=index, encoded=True) for index in groups)
    elif names:
        yield pa.concat_tables(table for _, table in read_parts(path, names, columns, encoded=True))


def write_compact(folder: Path, parts: Iterator[tuple[str, pa.Table]], generation: int) -> tuple[Path, list[str]]:
    """Write parts to a compact file atomically, until there are no more or the file is complete.

    Args:
        folder: of the run.
        parts: names and tables, at least one.
        generation: of the file.

    Returns:
        The path of the file and the names of its parts.
    """
    temporary, sizes = folder / f"{TEMPORARY}{uuid4().hex}.parquet", {}
    with locked_file(temporary):  # otherwise it would be taken for that of a killed process
        with pq.ParquetWriter(temporary, SCHEMA, write_page_checksum=True) as writer:
            waiting: list[pa.Table] = []
            for name, table in parts:
                sizes[name] = len(table)
                waiting.append(table)
                is_complete = sum(sizes.values()) >= ROWS_PER_FILE
                if is_complete or sum(map(len, waiting)) >= _ROWS_PER_GROUP:
                    _write_row_group(writer, waiting)
                if is_complete:
                    break
            _write_row_group(writer, waiting)
            index = json.dumps(list(sizes.items()))
            writer.add_key_value_metadata({_PARTS: index, _DIGEST_OF_PARTS: _digest_of_text(index.encode())})
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        first, last = (name.partition("-")[0].removesuffix(".parquet") for name in (min(sizes), max(sizes)))
        steps = f"{first}-{last.removeprefix('step')}"
        target = folder / f"{steps}{_MARK}{generation:06d}-{_digest(temporary)}.parquet"
        temporary.replace(target)
    return target, list(sizes)


def _write_row_group(writer: pq.ParquetWriter, tables: list[pa.Table]) -> None:
    """Write tables as one row group, so that none is divided, and clear the list."""
    if tables:
        table = pa.concat_tables(tables)
        writer.write_table(table, row_group_size=len(table))
        tables.clear()


# The time and the size of a file are arguments so that a changed file is read again.


@lru_cache(maxsize=4096)
def _parts(path: Path, mtime_ns: int, size: int) -> Mapping[str, range]:
    if path.is_fifo():  # whoever writes to it would be waited for
        raise ValueError(f"expected a compact file of a store, got a named pipe, {path}; move it away")
    try:
        metadata = pq.read_metadata(path).metadata
        index = metadata[_PARTS.encode()]
        if metadata.get(_DIGEST_OF_PARTS.encode(), b"").decode() != _digest_of_text(index):
            _check_content(path, mtime_ns, size)
        sizes = json.loads(index)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        _check_content(path, mtime_ns, size)  # damaged, more often than written by another program
        raise ValueError(f"expected a compact file of a store, cannot read {path}: {error}; move it away") from error
    ends = accumulate((n_rows for _, n_rows in sizes), initial=0)
    return MappingProxyType({name: range(*rows) for (name, _), rows in zip(sizes, pairwise(ends), strict=True)})


@lru_cache(maxsize=4096)
def _check_content(path: Path, mtime_ns: int, size: int) -> None:
    if _digest(path) != path.stem.rpartition("-")[2]:
        raise ValueError(f"expected {path} to have the content that its name states, got another; move it away")


def _state(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def _row_groups(path: Path) -> list[range]:
    metadata = pq.read_metadata(path)
    sizes = (metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
    return [range(*rows) for rows in pairwise(accumulate(sizes, initial=0))]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGEST_DIGITS]


def _digest_of_text(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
