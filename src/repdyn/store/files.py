"""The files of a store: Parquet files with one row per value, written atomically and read together."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from repdyn.store.schema import COLUMNS, SCHEMA, Row
from repdyn.utils.files import cache_directory, write_atomically
from repdyn.utils.redaction import redacted

ROW_FILE = re.compile(r"(step[0-9]|rows).*\.parquet", re.DOTALL)
"""Names of files with rows: ``step000000008-PROBE-METRICS.parquet`` of one measurement, ``rows.parquet`` of many."""
_WITH_THREADS = 64
"""Number of files from which on they are read by several threads."""
_TEXTS = [field.name for field in SCHEMA if pa.types.is_string(field.type)]
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
    try:
        return _read(paths, columns)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        for path in paths if len(paths) > 1 else ():
            read_tables([path], columns)
        raise ValueError(f"expected a Parquet file of measurements, cannot read {paths[0]}: {error}") from error


def _read(paths: Sequence[Path], columns: Sequence[str]) -> pa.Table:
    import pyarrow.dataset as ds  # which no training waits for

    for path in paths:
        if path.exists() and not path.is_file():  # a named pipe would be waited for, a folder read as a whole
            raise ValueError("it is not a file")
    options = ds.ParquetReadOptions(dictionary_columns=_TEXTS)
    checks = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    written = ds.ParquetFileFormat(read_options=options, default_fragment_scan_options=checks)
    dataset = ds.dataset([str(path) for path in paths], schema=encoded_schema(), format=written)
    # a file of something else lacks these columns, which are then null
    needed = list(dict.fromkeys([*columns, *_REQUIRED[:3]]))
    table = dataset.to_table(columns=needed, use_threads=len(paths) >= _WITH_THREADS)
    table.validate(full=True)
    if len(paths) == 1 and len(table) == 0:
        raise ValueError("it has no rows; move it away")
    if missing := [name for name in needed if name in _REQUIRED and table[name].null_count]:
        raise ValueError(f"expected a value in each row of {', '.join(missing)}, got none in some; move it away")
    return table.select(list(columns)).unify_dictionaries()
