"""The digest of a Parquet file in its own metadata, by which damage is found without decoding the file.

The digest is that of all other bytes. The entry's value repeats its key before the digest: a byte that changes in one
of them leaves the other to be found.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pyarrow.parquet as pq

from repdyn.store.schema import SCHEMA

_DIGITS = 64
_COLUMNS = "".join(f"{field.name} {field.type} {field.nullable}\n" for field in SCHEMA)
# a file with other columns may be whole and not readable: its digest is not looked for
_KEY = f"repdyn.sha256.{hashlib.sha256(_COLUMNS.encode()).hexdigest()[:8]}"


def content_with_digest(table: pa.Table) -> bytes:
    """Return the content of a Parquet file with a table in the columns of :data:`repdyn.store.schema.SCHEMA`."""
    written = pa.BufferOutputStream()
    # without checksums of pages a flipped bit would go unnoticed where only some columns are read
    with pq.ParquetWriter(written, SCHEMA, write_page_checksum=True) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_KEY: f"{_KEY} {'0' * _DIGITS}"})
    content = written.getvalue().to_pybytes()
    before, after = _without_digest(content)
    return before + _digest(before, after) + after


def is_intact(content: bytes) -> bool | None:
    """Return whether the content of a file has the digest that it states; None if it states none.

    Files of early versions have none, and those with other columns than :data:`repdyn.store.schema.SCHEMA` none for
    this version.
    """
    if content.rfind(_KEY.encode()) < 0:
        return None
    before, after = _without_digest(content)
    return content[len(before) : len(content) - len(after)] == _digest(before, after)


def _without_digest(content: bytes) -> tuple[bytes, bytes]:
    """Return what is before the digest in the content, and what is after it."""
    start = content.rfind(_KEY.encode()) + len(_KEY) + 1
    return content[:start], content[start + _DIGITS :]


def _digest(*parts: bytes) -> bytes:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest().encode()
