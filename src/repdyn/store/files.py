"""The files of a store: Parquet files with one row per value, written atomically and read together."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from repdyn.store.schema import COLUMNS, SCHEMA, Row
from repdyn.utils.files import cache_directory, write_atomically
from repdyn.utils.redaction import redacted

ROW_FILE = re.compile(r"(step[0-9]|rows).*\.parquet", re.DOTALL)
"""Names of files with rows: ``step000000008-PROBE-METRICS.parquet`` of one measurement, ``rows.parquet`` of many."""
_WITH_THREADS, _THREADS = 64, 4
"""Number of files from which on they are read by several threads, and of these."""
_REQUIRED = [field.name for field in SCHEMA if not field.nullable]


def copy_folder(url: str) -> Path:
    """Return the folder in which the local copy of the store at a URL lies."""
    url = url.rstrip("/")
    digest = hashlib.sha256(url.encode()).hexdigest()[:20]
    name = PurePosixPath(redacted(url).partition("://")[2]).name or "store"
    return cache_directory() / "stores" / digest / name


def encoded_schema(schema: pa.Schema = SCHEMA) -> pa.Schema:
    """Return a schema with dictionaries in place of texts, which take a tenth of the memory."""
    texts = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([field.with_type(texts) if pa.types.is_string(field.type) else field for field in schema])


def row_files(folder: Path) -> list[str]:
    """Return the names of the files with rows in a folder, in ascending order; none if the folder is missing."""
    # far quicker than pathlib's glob in a folder with a thousand files
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if ROW_FILE.fullmatch(entry.name))
    return []


def has_row_files(folder: Path) -> bool:
    """Return whether a folder has files with rows; it is read no further than to the first of them."""
    with suppress(OSError), os.scandir(folder) as entries:
        return any(ROW_FILE.fullmatch(entry.name) for entry in entries)
    return False


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table to a file atomically, with checksums by which damage is found when it is read."""
    write_atomically(path, lambda temporary: pq.write_table(table, temporary, write_page_checksum=True))


def read_rows(path: Path) -> list[Row]:
    """Return the rows of one file of a store.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read.
    """
    return [Row(**record) for record in read_tables([path]).cast(SCHEMA).to_pylist()]


def read_tables(paths: Sequence[Path], columns: Sequence[str] = COLUMNS) -> pa.Table:
    """Return the rows of several files as one table, with texts as dictionaries.

    Args:
        paths: of the files, at least one.
        columns: those to read, in this order; all unless given. Nullable ones that a file lacks are null.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file cannot be read, or has other columns or types than the schema, or no rows.
    """
    wanted = encoded_schema(pa.schema([SCHEMA.field(name) for name in columns]))
    if len(paths) < _WITH_THREADS:
        tables = [_read(path, wanted) for path in paths]
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            tables = list(pool.map(partial(_read, wanted=wanted), paths))
    return pa.concat_tables(tables).unify_dictionaries()


def _read(path: Path, wanted: pa.Schema) -> pa.Table:
    try:
        if path.exists() and not path.is_file():  # a named pipe would be waited for, a folder read as a whole
            raise ValueError("it is not a file")
        with _opened(path, [field.name for field in wanted if pa.types.is_dictionary(field.type)]) as file:
            names = file.schema_arrow.names
            if missing := [name for name in _REQUIRED if name not in names]:
                raise ValueError(f"it lacks the columns {', '.join(missing)}; move it away")
            # files are small: threads would cost more than they save
            table = file.read([name for name in wanted.names if name in names], use_threads=False)
        table.validate(full=True)
        if not table.schema.equals(wanted):
            plain = [table[name] if name in names else pa.nulls(len(table)) for name in wanted.names]
            schema = pa.schema([SCHEMA.field(name) for name in wanted.names])
            table = pa.Table.from_arrays(plain, wanted.names).cast(schema).cast(wanted)
        if len(table) == 0:
            raise ValueError("it has no rows; move it away")
        if empty := [name for name in _REQUIRED if name in wanted.names and table[name].null_count]:
            raise ValueError(f"some rows have no {', '.join(empty)}; move it away")
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"expected a Parquet file of measurements, cannot read {path}: {error}") from error
    return table


def _opened(path: Path, texts: Sequence[str]) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=texts)
    except KeyError:  # one of these columns is missing
        return pq.ParquetFile(path, page_checksum_verification=True)
