"""The files of a store: their names, which are the keys of measurements, and their rows, written
atomically.

- :class:`MeasurementKey`: run, step, probe and metrics, and the name of the file that has their
  rows: whether something is measured is seen from a name.
- :func:`write_table`, :func:`is_whole`: a Parquet file with a checksum over every byte.
- :func:`read_tables`: many files as one table, with equal texts and columns of one value kept once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from repdyn.store.schema import COLUMNS, DESCRIPTIONS, METRICS_KEY, SCHEMA, Row, code_of_text
from repdyn.utils.files import AT_ITS_ENDS, cache_directory, escaped, shortened, write_atomically
from repdyn.utils.redaction import redacted

ROW_FILE = re.compile(r"(step[0-9]|rows).*\.parquet", re.DOTALL)
"""Names of files with rows: ``step000000008-PROBE-METRICS.parquet`` of one measurement,
``rows.parquet`` of many.
"""
# files whose rows are in memory before they are packed: see _combined
_FILES_AT_ONCE = 128
_REQUIRED = {field.name for field in SCHEMA if not field.nullable}
STATES_FOLDER = "kept_states"
"""Name of the folder of cached states within a run's folder."""
_FAILED = "failed"
"""Suffix of the name of a file with the rows of a failed measurement."""
_STEP = re.compile(r"step([0-9]+)(?:-.*)?\.parquet", re.DOTALL)
_CHECKPOINT_DIGITS = 12
_CHECKSUM_KEY = "repdyn.checksum"
"""Metadata of a file with rows, in its footer: what :func:`_with_checksum` computes."""
_CHECKSUM_MARK = b"crc32-7d0fe25b6a914c38:"
"""What the checksum stands behind: no text of a row is likely to have it."""
_NO_CHECKSUM = b"--------"
_CHECKSUM_BYTES = len(_NO_CHECKSUM)
# Common file systems limit names to 255 bytes.
_MAX_NAME_BYTES = 255


@dataclass(frozen=True)
class MeasurementKey:
    """The key of one file of a store: a checkpoint, a probe and a set of metrics."""

    run: str
    """Id of the run."""
    step: int
    probe: str
    metrics: str
    checkpoint: str = ""
    """Commit of a published checkpoint, since a step may be published twice; "" for a live run."""

    @property
    def failed(self) -> MeasurementKey:
        """Return the key under which a failed measurement is stored."""
        return replace(self, metrics=f"{self.metrics}-{_FAILED}")

    @property
    def filename(self) -> str:
        """Return the path relative to the store: FOLDER/FILE, whatever characters a key has."""
        if self.step < 0:
            raise ValueError(f"expected a step >= 0, got {self.step}")
        parts = [
            f"step{self.step:09d}",
            *map(quoted, (self.checkpoint[:_CHECKPOINT_DIGITS], self.probe, self.metrics)),
        ]
        return f"{folder_name(self.run)}/{'-'.join(filter(None, parts))}.parquet"


def folder_name(run: str) -> str:
    """Return a folder name that is unique to a run: without separators, leading dot or device name,
    not too long.
    """
    if not run:
        raise ValueError("expected a run name, got an empty string")
    # quoted names contain no plus sign, so no other run has a folder with one
    return shortened(escaped(quoted(run), AT_ITS_ENDS), run, _MAX_NAME_BYTES)


def run_of(folder: str) -> str | None:
    """Return the id of the run whose folder has this name; None if the id was too long to be kept
    whole.

    >>> run_of(folder_name("lab/a")), run_of(folder_name("a" * 300))
    ('lab/a', None)
    """
    run = unquote(folder)
    return run if run and folder_name(run) == folder else None


def quoted(name: str) -> str:
    """Percent-encode a name for use in a file name: ASCII without separators."""
    return quote(name, safe=" ")


def is_failure(name: str) -> bool:
    """Return whether the file of a name holds a failed measurement."""
    return name.endswith(f"-{_FAILED}.parquet")


def own_folder(folder: Path) -> Path:
    """Return the folder of a run to write to, or raise ValueError if it is another run's.

    Where upper and lower case are one, as on macOS and Windows, the folder of "a" is that of "A".
    """
    names = os.listdir(folder.parent) if folder.exists() else [folder.name]
    # it exists, and none is called so: the file system means another one
    if folder.name not in names:
        other = next(unquote(name) for name in names if name.casefold() == folder.name.casefold())
        raise ValueError(
            f"expected a run with a folder of its own in {folder.parent}, got "
            f"{unquote(folder.name)!r}, and {other!r} is there, which this file system does not "
            "tell apart; give another store=, or another name="
        )
    return folder


def step_of(name: str) -> int | None:
    """Return the step that the name of a file begins with; None for a file with rows of many steps.

    >>> step_of("step000000008-3f2a-9c41.parquet"), step_of("rows.parquet")
    (8, None)
    """
    # from the name, so that a store is listed without a file being opened
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def copy_folder(url: str) -> Path:
    """Return the folder in which the local copy of the store at a URL lies."""
    url = url.rstrip("/")
    digest = hashlib.sha256(url.encode()).hexdigest()[:20]
    # for people; the digest tells apart stores of one name
    name = PurePosixPath(redacted(url).partition("://")[2]).name or "store"
    return cache_directory() / "stores" / digest / name


def encoded_schema(schema: pa.Schema = SCHEMA) -> pa.Schema:
    """Return a schema with dictionaries in place of texts, which take a tenth of the memory."""
    texts = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [field.with_type(texts) if pa.types.is_string(field.type) else field for field in schema]
    )


def row_files(folder: Path) -> list[str]:
    """Return the names of the files with rows in a folder, in ascending order; none if the folder
    is missing.
    """
    # far quicker than pathlib's glob in a folder with a thousand files
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(filter(ROW_FILE.fullmatch, os.listdir(folder)))
    return []


def has_row_files(folder: Path) -> bool:
    """Return whether a folder has files with rows; it is read no further than to the first
    of them.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        return any(ROW_FILE.fullmatch(entry.name) for entry in entries)
    return False


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table to a file atomically, with checksums by which damage is found: one of each page
    for whoever reads rows, and one of the whole file for :func:`is_whole`.
    """
    # in memory first: the checksum of the whole file stands within it
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, write_page_checksum=True) as writer:
        writer.write_table(table)
        placeholder = _CHECKSUM_MARK + _NO_CHECKSUM
        writer.add_key_value_metadata({_CHECKSUM_KEY: placeholder.decode()})
    content = _with_checksum(sink.getvalue().to_pybytes())
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def is_whole(path: Path) -> bool:
    """Return whether a file has rows of today's columns and every byte as :func:`write_table` wrote
    it, without reading a row; False as well for a file of another program, which has no checksum,
    or that of the file it was made from.
    """
    try:
        content = path.read_bytes()
        if _with_checksum(content) != content:
            return False
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            return file.metadata.num_rows > 0 and file.schema_arrow.equals(SCHEMA)
    except (pa.ArrowException, OSError, ValueError):
        return False


def _with_checksum(content: bytes) -> bytes:
    """Return the content of a file with the CRC-32 of all other bytes behind the mark.

    The checksum takes the place of eight bytes in the footer, so that it covers the footer too.

    Raises:
        ValueError: there is no mark.
    """
    # the last one: the footer is behind the rows, whose texts may have anything
    start = content.rindex(_CHECKSUM_MARK) + len(_CHECKSUM_MARK)
    before = content[:start]
    after = content[start + _CHECKSUM_BYTES :]
    return before + f"{zlib.crc32(after, zlib.crc32(before)):08x}".encode() + after


def read_rows(path: Path) -> list[Row]:
    """Return the rows of one file of a store; ValueError if it cannot be read."""
    return [Row.of(**record) for record in read_tables([path]).cast(SCHEMA).to_pylist()]


def read_tables(
    paths: Sequence[Path],
    columns: Sequence[str] = COLUMNS,
    damaged: Callable[[ValueError], None] | None = None,
) -> pa.Table:
    """Return the rows of several files as one table, with texts as dictionaries.

    Args:
        paths: of the files.
        columns: those to read, in this order; nullable ones that a file lacks are null.
        damaged: called with the error of each file that cannot be read, or has other columns than
            the schema, or no rows: it is left out. Without it, the ValueError is raised.
    """
    schema = encoded_schema(pa.schema([SCHEMA.field(name) for name in columns]))
    tables: list[pa.Table] = []
    shared: dict[object, pa.Array] = {}
    for start in range(0, len(paths), _FILES_AT_ONCE):
        batch = []
        # not in threads, which would wait for each other: the files are small
        for path in paths[start : start + _FILES_AT_ONCE]:
            try:
                batch.append(_read(path, schema))
            except ValueError as error:
                if damaged is None:
                    raise
                damaged(error)
        if batch:
            # each file has dictionaries of its own texts: equal ones get one code
            tables.append(_combined(pa.concat_tables(batch).unify_dictionaries(), shared))
        del batch  # before the next files are read
    pa.default_memory_pool().release_unused()
    return pa.concat_tables(tables).unify_dictionaries() if tables else schema.empty_table()


def is_constant(column: pa.ChunkedArray) -> bool:
    """Return whether all rows certainly have the same value, or none; dictionaries are those of all
    chunks.
    """
    if column.null_count or len(column) == 0:
        return column.null_count == len(column)
    if pa.types.is_dictionary(column.type):
        return len(column.chunk(0).dictionary) == 1
    # the ends do not tell whether floats are the same: -0.0 equals 0.0
    if pa.types.is_floating(column.type):
        return False
    ends = pc.call_function("min_max", [column]).as_py()
    return ends["min"] == ends["max"]


def _combined(table: pa.Table, shared: dict[object, pa.Array]) -> pa.Table:
    """Return a table in one chunk, since the memory of many small columns would not be given back.

    Columns of one value, which are most of a run, are those ``shared`` with other columns and
    tables.
    """

    def combined(column: pa.ChunkedArray) -> pa.Array:
        if not is_constant(column):
            return pa.concat_arrays(column.chunks)
        key = column.type, column[0].as_py(), len(column)
        if key not in shared:
            shared[key] = pa.repeat(column[0], len(column))
        return shared[key]

    return pa.Table.from_arrays([combined(column) for column in table.columns], schema=table.schema)


def _with_codes(table: pa.Table) -> pa.Table:
    """Return rows with the codes of their reasons, which files written before lack."""
    # files of this version have a code wherever they have a reason
    names = table.column_names
    if not {"reason", "reason_code"} <= {*names} or table["reason_code"].null_count < len(table):
        return table
    codes = {text: code_of_text(text) for text in table["reason"].unique().to_pylist() if text}
    column = pa.array([codes.get(text) for text in table["reason"].to_pylist()], pa.string())
    return table.set_column(names.index("reason_code"), "reason_code", column)


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema in the rows of a file; ValueError says what is wrong with it.

    The descriptions of metrics that the file has are added to :data:`DESCRIPTIONS`.
    """
    try:
        with _opened(path, schema) as file:
            in_file = file.schema_arrow
            names = set(in_file.names)
            missing = _REQUIRED - names
            if missing:
                raise ValueError(f"it lacks the columns {', '.join(sorted(missing))}; move it away")
            present = [name for name in schema.names if name in names]
            # files are small: threads, and looking for every column by its name, would cost more
            # than they save
            to_read = present if len(present) < len(names) else None
            table = file.read(to_read, use_threads=False).select(present)
            _note_descriptions(in_file)
        # a damaged page may decode to texts that are none, and to codes without a text
        table.validate(full=True)
        table = _with_all_columns(table, schema)
        if len(table) == 0:
            raise ValueError("it has no rows; move it away")
        required = [name for name in schema.names if name in _REQUIRED]
        empty = [name for name in required if table[name].null_count]
        if empty:
            raise ValueError(f"some rows have no {', '.join(empty)}; move it away")
    except FileNotFoundError:
        raise  # missing is not damaged
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(
            f"expected a Parquet file of measurements, cannot read {path}: {error}"
        ) from error
    return table


def _opened(path: Path, schema: pa.Schema) -> pq.ParquetFile:
    """Open a file whose texts are read as dictionaries, if it has all of the columns with texts."""
    texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    try:
        return pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=texts)
    except KeyError:  # one of these columns is missing
        return pq.ParquetFile(path, page_checksum_verification=True)


def _note_descriptions(schema: pa.Schema) -> None:
    # none, or damaged: these metrics go by their names
    with suppress(AttributeError, KeyError, ValueError):
        by_name = json.loads((schema.metadata or {})[METRICS_KEY])
        DESCRIPTIONS.update(
            {name: texts for name, texts in by_name.items() if isinstance(texts, dict)}
        )


def _with_all_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema, null where they lack one."""
    if table.schema.equals(schema):
        return table
    present = {*table.column_names}
    columns = [table[name] if name in present else pa.nulls(len(table)) for name in schema.names]
    # the codes of reasons are added to plain texts, before these become dictionaries
    plain = pa.schema([SCHEMA.field(name) for name in schema.names])
    table = pa.Table.from_arrays(columns, schema.names).cast(plain)
    return _with_codes(table).cast(schema)
