"""Reading of the Parquet files of a store, checked against the schema; files of early versions are converted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from repdyn.store.content_digest import content_with_digest, is_intact
from repdyn.store.schema import COLUMNS, RENAMED_METRICS, SCHEMA, Row
from repdyn.utils.files import write_atomically


def read_rows(path: Path) -> list[Row]:
    """Return the rows of one file of a store.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read.
    """
    return to_rows(read_table(path))


def write_single(path: Path, table: pa.Table) -> None:
    """Write the table of one checkpoint to a file atomically."""
    content = content_with_digest(table)
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def is_readable(path: Path) -> bool:
    """Return whether a file of one checkpoint is there and undamaged, or can be read if it states no digest."""
    try:
        intact = None if path.is_fifo() else is_intact(path.read_bytes())  # whoever writes to a pipe is not waited for
        if intact is None:
            read_table(path, encoded=True)
    except (OSError, ValueError):
        return False
    return intact is not False


def to_rows(table: pa.Table) -> list[Row]:
    """Return the rows of a table with all columns."""
    return [Row(**record) for record in table.to_pylist()]


def read_table(
    path: Path, columns: Sequence[str] = COLUMNS, *, row_group: int | None = None, encoded: bool = False
) -> pa.Table:
    """Return the table of one file of a store, with the columns, types and names of the current schema.

    Args:
        path: of the file.
        columns: those to read, in this order; all unless given.
        row_group: index of the row group to read; all unless given.
        encoded: leave texts as the dictionaries of the file, which takes a quarter of the time.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read, or has other columns, types or missing values than the schema allows.
    """
    if path.is_fifo():
        raise ValueError(f"expected a Parquet file of measurements, cannot read {path}: it is a named pipe")
    try:
        # ParquetFile rather than read_table, which given a folder reads every file in it
        texts = [name for name in columns if encoded and pa.types.is_string(SCHEMA.field(name).type)]
        with _opened(path, texts) as file:
            # files are small: threads would cost more than they save
            names = file.schema_arrow.names
            groups = range(file.metadata.num_row_groups) if row_group is None else [row_group]
            table = file.read_row_groups(groups, [name for name in names if name in columns], use_threads=False)
        table.validate(full=True)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"expected a Parquet file of measurements, cannot read {path}: {error}") from error
    missing = [name for name in COLUMNS if name not in names]
    unknown = [name for name in names if name not in COLUMNS]
    # files of earlier versions lack nullable columns added since, but have no unknown ones
    if any(not SCHEMA.field(name).nullable for name in missing) or (missing and unknown):
        also = f", and unknown ones: {', '.join(map(repr, unknown))}" if unknown else ""
        raise ValueError(
            f"expected the columns of a measurement in {path}, missing {', '.join(missing)}{also}; move it away"
        )
    for name in set(missing).intersection(columns):
        table = table.append_column(SCHEMA.field(name), pa.nulls(len(table), SCHEMA.field(name).type))
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    if len(table) == 0:
        raise ValueError(f"expected measurements in {path}, got none; move it away")
    required = [field.name for field in schema if not field.nullable]
    as_expected = encoded_schema(schema) if encoded else schema
    if not table.schema.equals(as_expected) or any(table[name].null_count for name in required):
        table = _cast(_decoded(table), schema, path).cast(as_expected)
    return _with_current_names(table)


def _opened(path: Path, dictionaries: Sequence[str]) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=dictionaries)
    except KeyError:  # a file of an early version lacks one of these columns
        return pq.ParquetFile(path, page_checksum_verification=True)


def encoded_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with dictionaries in place of texts."""
    texts = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([field.with_type(texts) if pa.types.is_string(field.type) else field for field in schema])


def _decoded(table: pa.Table) -> pa.Table:
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(field.type.value_type))
    return table


def _cast(table: pa.Table, schema: pa.Schema, path: Path) -> pa.Table:
    """Cast the columns to the types of the schema; the large and small variants of a type are interchangeable."""
    for field in schema:
        indices = table.schema.get_all_field_indices(field.name)
        column = table.column(indices[0])
        if len(indices) > 1:
            raise ValueError(f"expected one column {field.name} in {path}, got {len(indices)}; move it away")
        if not _same_kind(column.type, field.type):
            raise ValueError(
                f"expected {field.type} in the column {field.name} of {path}, got {column.type}; move it away"
            )
        if column.null_count and not field.nullable:
            raise ValueError(f"expected a value in each row of {field.name} in {path}, got none in some; move it away")
    try:
        return table.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise ValueError(f"expected values of the schema's types in {path}: {error}; move it away") from error


def _with_current_names(table: pa.Table) -> pa.Table:
    if "metric" not in table.column_names:
        return table
    metric = table.column("metric")
    if RENAMED_METRICS.keys().isdisjoint(metric.unique().to_pylist()):
        return table
    names = [RENAMED_METRICS.get(name, name) for name in metric.to_pylist()]
    place = table.column_names.index("metric")
    return table.set_column(place, table.schema.field(place), pa.array(names, pa.string()).cast(metric.type))


def _same_kind(found: pa.DataType, expected: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, _is_string)
    return pa.types.is_null(found) or any(is_kind(found) and is_kind(expected) for is_kind in kinds)


def _is_string(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_large_string(type_)
