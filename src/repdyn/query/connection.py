"""A DuckDB connection with the rows of stores, of which it reads what a query needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from repdyn.query import views
from repdyn.store import Store
from repdyn.store.frame import read_frame
from repdyn.store.parquet_files import encoded_schema
from repdyn.store.row_filter import RowFilter
from repdyn.store.run_files import RunFiles, with_run_files
from repdyn.store.schema import COLUMNS, SCHEMA
from repdyn.utils.arguments import closest

VIEWS = {
    "rows": "a row for each value: the columns of the store, and store, its path",
    "runs": "a row for each run and probe: model, design, steps, tokens, metrics, failures",
    "profiles": "a row for each layer and subset of a checkpoint, with a column for each metric",
}
"""What the views contain, by their names."""
_STORE = "store"
_UNKNOWN = {
    r"""Table with name "?(\w+)"? does not exist!(\nDid you mean .*)?""": tuple(VIEWS),
    r"""Referenced column "(\w+)" not found in FROM clause!(\nCandidate bindings: .*)?""": (_STORE, *COLUMNS),
}
_SCHEMA = encoded_schema(pa.schema([pa.field(_STORE, pa.string()), *(field.with_nullable(True) for field in SCHEMA)]))


def query(stores: Sequence[Store], sql: str) -> pd.DataFrame:
    """Return the result of a query in DuckDB's SQL over the measurements of stores.

    Args:
        stores: at least one with measurements.
        sql: one statement; its tables are :data:`VIEWS`. Repeated and superseded measurements are left out, as in
            :meth:`repdyn.store.Store.to_pandas`. An undefined value is NULL, with its ``reason``.

    Raises:
        ValueError: no store has measurements, a file cannot be read, DuckDB is not installed, or the query is wrong.

    Example:
        >>> from repdyn import open_store
        >>> frame = query([open_store("docs/runs/decoder")], "select max(step) as last from rows")
        >>> int(frame["last"][0])
        4000
    """
    duckdb, rows = _duckdb(), _Rows(stores)
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        try:
            n_statements = len(connection.extract_statements(sql))
            if n_statements != 1:
                raise ValueError(f"expected one statement such as select run from runs, got {n_statements}: {sql!r}")
            created = {"runs": lambda: views.RUNS, "profiles": lambda: views.profiles(rows.metrics())}
            for name, create in created.items():
                if re.search(rf"\b{name}\b", sql, re.IGNORECASE):
                    connection.execute(create())
            return connection.execute(sql).df()
        except duckdb.Error as error:
            if rows.error is not None:
                raise rows.error from None
            raise ValueError(
                f"expected a query over {', '.join(VIEWS)} in the SQL of DuckDB: {_suggesting(str(error).strip())}"
            ) from error


def _suggesting(message: str) -> str:
    """Return a message of DuckDB with suggestions from the views and columns that there are, rather than from its own.

    >>> _suggesting('Table with name rnus does not exist!\\nDid you mean "duckdb_indexes"?')
    'Table with name rnus does not exist! Did you mean runs?'
    """
    for pattern, known in _UNKNOWN.items():
        if found := re.search(pattern, message):
            close = closest(found[1], known)
            hint = f" Did you mean {close}?" if close else ""
            return message[: found.start()] + found[0].partition("\n")[0] + hint + message[found.end() :]
    return message


class _Rows(ds.Dataset):
    """The rows of stores as a dataset of Arrow: DuckDB asks it for the columns and rows that a query needs.

    Args:
        stores: each with files of measurements.

    Raises:
        ValueError: one of them has none.
    """

    def __init__(self, stores: Sequence[Store]) -> None:  # that of Arrow is for subclasses in C++ alone
        if empty := [store for store in stores if not store.folders()]:
            raise ValueError(f"expected a store with measurements, found none in {empty[0].path}")
        self.error: Exception | None = None
        """Why files could not be read, which DuckDB tells as text alone."""
        self._stores = stores

    @property
    def schema(self) -> pa.Schema:
        return _SCHEMA

    def scanner(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **options: Any
    ) -> ds.Scanner:
        """Return a scanner over columns of the rows that meet a condition, as any dataset of Arrow does.

        Raises:
            ValueError: a file cannot be read.
        """
        condition = RowFilter(filter, _SCHEMA)
        asked = {*(_SCHEMA.names if columns is None else columns), *condition.columns}
        needed = [name for name in COLUMNS if name in asked] or ["run"]  # rows are counted by some column
        try:
            tables = [self._read(store, needed, condition) for store in self._stores]
        except (ValueError, OSError) as error:
            self.error = error
            raise
        return ds.InMemoryDataset(pa.concat_tables(tables)).scanner(columns=columns, filter=filter, **options)

    def metrics(self) -> list[str]:
        """Return the names of the metrics of whole layers in all stores, sorted.

        Raises:
            ValueError: a file cannot be read.
        """
        folders = (folder for store in self._stores for folder in store.folders())
        return sorted({name for folder in folders for name in with_run_files(folder, _layer_metrics)})

    @staticmethod
    def _read(store: Store, columns: Sequence[str], condition: RowFilter) -> pa.Table:
        schema = pa.schema([_SCHEMA.field(name) for name in (_STORE, *columns)])
        name = {_STORE: str(store.path)}
        frame = read_frame(store.folders(), columns, condition) if condition.possible([name]) else None
        if frame is None:
            return schema.empty_table()
        # undefined values become NULL, so that aggregates leave them out
        table = pa.Table.from_pandas(frame, preserve_index=False)
        store_names = pa.DictionaryArray.from_arrays(np.zeros(len(frame), np.int32), [name[_STORE]])
        return table.add_column(0, _STORE, store_names).cast(schema)


def _layer_metrics(files: RunFiles) -> set[str]:
    """Return the names of the metrics of whole layers in the files of a run, without making a frame of the rows."""
    found: set[str] = set()
    for is_failed, table in files.blocks(["layer", "head", "metric", "same_as", "mixed_with"]):
        if not is_failed:
            # not an expression of Arrow, which starts threads for each table
            of_layers = table.filter(table["layer"].is_valid())
            whole = of_layers.filter(of_layers["head"].is_null())
            found.update(whole.unify_dictionaries()["metric"].unique().to_pylist())
    return found


def _duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError as error:
        raise ValueError(
            "expected DuckDB, which runs queries, but it is not installed; pip install 'repdyn[query]'"
        ) from error
    return duckdb
