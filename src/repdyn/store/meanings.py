"""What each column of a store means, as the docstrings of a row's fields tell it."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from functools import cache
from itertools import pairwise

import pyarrow as pa

from repdyn.store import schema

MEANING_KEY = b"meaning"
"""Key of a column's meaning in the metadata of its field in a Parquet file."""
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


@cache
def column_meanings() -> dict[str, str]:
    """Return what each column means, by its name and in the order of the file.

    Empty texts where the source of the package is not installed, which docstrings of fields are
    read from.
    """
    try:
        source = inspect.getsource(schema)
    except OSError:
        return dict.fromkeys(schema.COLUMNS, "")
    texts: dict[str, str] = {}
    parts_of_a_row = {field.type for field in fields(schema.Row)}
    for definition in ast.parse(source).body:
        if isinstance(definition, ast.ClassDef) and definition.name in parts_of_a_row:
            texts |= _texts_of_fields(definition)
    return {name: texts[name] for name in schema.COLUMNS}


@cache
def _described_schema() -> pa.Schema:
    """Return the schema of a file, whose fields have the meaning of their columns as metadata."""
    meanings = column_meanings()
    return pa.schema(
        [field.with_metadata({MEANING_KEY: meanings[field.name]}) for field in schema.SCHEMA]
    )


def with_meanings(table: pa.Table) -> pa.Table:
    """Return a table of rows whose columns carry their meanings into the file it is written to."""
    described = _described_schema().with_metadata(table.schema.metadata)
    return pa.Table.from_arrays(table.columns, schema=described)


def _texts_of_fields(definition: ast.ClassDef) -> dict[str, str]:
    # Python keeps no docstring of a field: it is the text that follows its line in the source
    texts = {}
    for statement, after in pairwise(definition.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            texts[statement.target.id] = _text(after)
    return texts


def _text(statement: ast.stmt) -> str:
    """Return the docstring that a statement is, on one line and without markup; "" of another."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return ""
    words = " ".join(str(statement.value.value).split())
    return _ROLE.sub(r"`\1`", words).replace("``", "`")
