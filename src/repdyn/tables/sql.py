"""SQL over stores, run by DuckDB: the views ``rows``, ``runs`` and ``profiles``.

``repdyn query "select run, max(step) from rows group by run" sweeps`` prints a table; ``repdyn.query(store, ...)``
returns a data frame.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from repdyn.store import Store
from repdyn.store.files import encoded_schema
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


def query(stores: Store | Sequence[Store], sql: str) -> pd.DataFrame:
    """Return the result of a query in DuckDB's SQL over the measurements of stores.

    Args:
        stores: one or several, each with measurements.
        sql: one statement; its tables are :data:`VIEWS`. Repeated and superseded measurements are left out, as in
            :meth:`repdyn.store.Store.to_pandas`. An undefined value is NULL, with its ``reason``.

    Raises:
        ValueError: no store has measurements, a file cannot be read, DuckDB is not installed, or the query is wrong.

    Example:
        >>> from repdyn import open_store
        >>> frame = query(open_store("docs/runs/decoder"), "select max(step) as last from rows")
        >>> int(frame["last"][0])
        4000
    """
    duckdb, rows = _duckdb(), _Rows([stores] if isinstance(stores, Store) else stores)
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        try:
            n_statements = len(connection.extract_statements(sql))
            if n_statements != 1:
                raise ValueError(f"expected one statement such as select run from runs, got {n_statements}: {sql!r}")
            created = {"runs": lambda: _RUNS, "profiles": lambda: _profiles(rows.metrics())}
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
    """The rows of stores as a dataset of Arrow: DuckDB asks it for the columns that a query needs.

    Args:
        stores: each with files of measurements.

    Raises:
        ValueError: one of them has none.
    """

    def __init__(self, stores: Sequence[Store]) -> None:  # that of Arrow is for subclasses in C++ alone
        if empty := [store for store in stores if not store.runs()]:
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
        # an expression tells its columns as text alone; a name within a literal adds a column, which is no harm
        named = re.findall(r"\w+", "" if filter is None else str(filter))
        asked = {*(_SCHEMA.names if columns is None else columns), *named}
        needed = [name for name in COLUMNS if name in asked] or ["run"]  # rows are counted by some column
        try:
            tables = [_read(store, needed) for store in self._stores]
        except (ValueError, OSError) as error:
            self.error = error
            raise
        return ds.InMemoryDataset(pa.concat_tables(tables)).scanner(columns=columns, filter=filter, **options)

    def metrics(self) -> list[str]:
        """Return the names of the metrics of whole layers in all stores, sorted.

        Raises:
            ValueError: a file cannot be read.
        """
        frames = [store.to_pandas(columns=["layer", "head", "metric"], categorical=True) for store in self._stores]
        return sorted(
            {name for f in frames for name in f.loc[f["layer"].notna() & f["head"].isna(), "metric"].unique()}
        )


def _read(store: Store, columns: Sequence[str]) -> pa.Table:
    frame = store.to_pandas(columns=columns, categorical=True)
    # undefined values become NULL, so that aggregates leave them out
    table = pa.Table.from_pandas(frame, preserve_index=False)
    names = pa.DictionaryArray.from_arrays(np.zeros(len(frame), np.int32), [str(store.path)])
    schema = pa.schema([_SCHEMA.field(name) for name in (_STORE, *columns)])
    return table.add_column(0, _STORE, names).cast(schema)


def _duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError as error:
        raise ValueError(
            "expected DuckDB, which runs queries, but it is not installed; pip install 'repdyn[query]'"
        ) from error
    return duckdb


# Without aggregates of distinct values, which DuckDB computes even where a query has no use for them.
_RUNS = """
create view runs as
with checkpoints as (
    select
        store, run, probe, step,
        any_value(model) filter (layer is not null) as model,
        any_value(causal) as causal,
        any_value(parameters) as parameters,
        any_value(design) filter (layer is not null) as design,
        max(tokens_seen) as tokens_seen,
        max(layer) as blocks,
        list_distinct(list(metric) filter (layer is not null)) as metrics,
        count(*) filter (layer is not null and value is null) as undefined,
        count(layer) > 0 as is_measured,
        count(*) filter (
            layer is null and value is null and reason is not null and same_as is null and mixed_with is null
        ) > 0 as is_failed,
        count(same_as) > 0 as is_copied,
        count(mixed_with) > 0 as is_mixed,
        max(measured_at) as measured_at
    from rows
    group by store, run, probe, step
)
select
    store, run, probe,
    any_value(model) as model,
    any_value(causal) as causal,
    any_value(parameters) as parameters,
    any_value(design) as design,
    min(step) filter (is_measured) as first_step,
    max(step) filter (is_measured) as last_step,
    count(*) filter (is_measured) as checkpoints,
    max(tokens_seen) as tokens_seen,
    max(blocks) as blocks,
    list_sort(list_distinct(flatten(list(metrics)))) as metrics,
    sum(undefined)::bigint as undefined,
    count(*) filter (is_failed) as failed_checkpoints,
    count(*) filter (is_copied) as copied_checkpoints,
    count(*) filter (is_mixed) as mixed_checkpoints,
    max(measured_at) as measured_at
from checkpoints
group by store, run, probe
order by store, run, probe
"""

_CHECKPOINT = "store, run, probe, model, step, tokens_seen, stage, layers, stack"


def _profiles(metrics: Iterable[str]) -> str:
    """Return the SQL that creates the view ``profiles``: a column for each of these metrics of whole layers.

    A metric that was measured with several settings at one checkpoint has no value there: which one is meant is not
    known. Values of single attention heads are in ``rows`` alone.
    """
    columns = [
        f"any_value(value) filter (metric = {_literal(name)} and n = 1) as {_identifier(name)}" for name in metrics
    ]
    return f"""
create view profiles as
select {", ".join([_CHECKPOINT, "layer", "any_value(depth) as depth", "subset", *columns])}
from (
    select *, count(*) over (partition by {_CHECKPOINT}, layer, subset, metric) as n
    from rows
    where layer is not null and head is null
)
group by {_CHECKPOINT}, layer, subset
order by {_CHECKPOINT}, subset, layer
"""


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
