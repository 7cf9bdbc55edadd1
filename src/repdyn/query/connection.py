"""A DuckDB connection with the rows of stores, reading no more columns than the query names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType

import pandas as pd
import pyarrow as pa

from repdyn.query import views
from repdyn.store import Store
from repdyn.store.schema import COLUMNS
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
_WITHOUT_COLUMNS = r"(^|\()\s*(from|describe|summarize|show|table)\b"


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
    duckdb = _duckdb()
    with duckdb.connect() as connection:
        try:
            n_statements = len(connection.extract_statements(sql))
            if n_statements != 1:
                raise ValueError(f"expected one statement such as select run from runs, got {n_statements}: {sql!r}")
            connection.register("rows", _rows(stores, _columns_in(sql)))
            for name, create in {"runs": views.RUNS, "profiles": views.profiles}.items():
                if _names(sql, name):
                    connection.execute(create if isinstance(create, str) else create(connection))
            return connection.execute(sql).df()
        except duckdb.Error as error:
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


def _rows(stores: Sequence[Store], columns: Sequence[str]) -> pa.Table:
    tables = []
    for store in stores:
        # undefined values become NULL, so that aggregates leave them out
        table = pa.Table.from_pandas(store.to_pandas(columns=columns, categorical=True), preserve_index=False)
        name = pa.array([str(store.path)] * len(table)).dictionary_encode()
        tables.append(table.add_column(0, _STORE, name))
    return pa.concat_tables(tables, promote_options="permissive")


def _columns_in(sql: str) -> list[str]:
    """Return the columns that a query may need: those it names, or all if it has a star or only names of views."""
    # a star but that of count(*), a product's among them, and what begins without a list of columns
    if "*" in re.sub(r"\(\s*\*\s*\)", "", sql) or re.search(_WITHOUT_COLUMNS, sql, re.IGNORECASE):
        return list(COLUMNS)
    needed = {name for name in COLUMNS if _names(sql, name)}
    for view, used in views.USED_COLUMNS.items():
        needed |= used if _names(sql, view) else set()
    return [name for name in COLUMNS if name in needed] or ["run"]


def _names(sql: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", sql, re.IGNORECASE) is not None


def _duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError as error:
        raise ValueError(
            "expected DuckDB, which runs queries, but it is not installed; pip install 'repdyn[query]'"
        ) from error
    return duckdb
