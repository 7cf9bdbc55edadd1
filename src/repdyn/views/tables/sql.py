"""SQL over stores, run by DuckDB: the views ``rows``, ``runs`` and ``profiles``.

``repdyn query "select run, max(step) from rows group by run" sweeps`` prints a table;
``repdyn.query(store, ...)`` returns a data frame.
"""

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd
import pyarrow as pa

from repdyn.store import Store, StoreLike, stores_of
from repdyn.store.files import encoded_schema
from repdyn.store.schema import SCHEMA
from repdyn.utils.extras import install_line

VIEWS = {
    "rows": "a row for each value: the columns of the store, and store, its path",
    "runs": "a row for each run and probe: model, design, steps, tokens, metrics, failures",
    "profiles": "a row for each layer and subset of a checkpoint, with a column for each metric",
}
"""What the views contain, by their names."""
_SCHEMA = encoded_schema(
    pa.schema([pa.field("store", pa.string()), *(field.with_nullable(True) for field in SCHEMA)])
)
_METRICS = (
    "select distinct metric::text as metric from rows where layer is not null and head is null "
    "order by 1"
)


def query(stores: StoreLike | Iterable[StoreLike], sql: str) -> pd.DataFrame:
    """Return the result of a query in DuckDB's SQL over the measurements of stores.

    Args:
        stores: one or several with measurements, or the folders they are in.
        sql: one statement; its tables are :data:`VIEWS`. Repeated and superseded measurements are
            left out, as in :meth:`repdyn.store.Store.to_pandas`. An undefined value is NULL, with
            its ``reason``.

    Raises:
        TypeError: something else than stores and a text.
        ValueError: no store has measurements, a file cannot be read, DuckDB is not installed, or
            the query is wrong.

    Example:
        >>> from repdyn import open_store
        >>> frame = query(open_store("docs/runs/decoder"), "select max(step) as last from rows")
        >>> int(frame["last"][0])
        4000
    """
    if not isinstance(sql, str):
        raise TypeError(
            f"expected stores and then a text, got {type(sql).__name__} as the second; write "
            'repdyn.query(store, "select * from rows")'
        )
    try:
        import duckdb
    except ImportError as error:
        raise ValueError(f"expected DuckDB, which runs queries; {install_line('query')}") from error
    rows = pa.concat_tables(map(_rows, stores_of(stores)))
    # a database in memory of its own, which ends with the query
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        connection.execute(_RUNS)
        connection.execute(_profiles(connection.execute(_METRICS).df()["metric"]))
        try:
            if (number := len(connection.extract_statements(sql))) != 1:
                raise ValueError(
                    f"expected one statement such as select run from runs, got {number}: {sql!r}"
                )
            return connection.execute(sql).df()
        except duckdb.Error as error:
            # the views that DuckDB suggests are its own
            message = " ".join(re.sub(r"\nDid you mean .*|\n *\^+", "", str(error)).split())
            raise ValueError(
                f"expected a query over {', '.join(VIEWS)} in the SQL of DuckDB: {message}"
            ) from error


def _rows(store: Store) -> pa.Table:
    if not store.runs():
        raise store.empty_error()
    frame = store.to_pandas(categorical=True)
    # undefined values become NULL, so that aggregates leave them out
    table = pa.Table.from_pandas(frame, preserve_index=False)
    names = pa.DictionaryArray.from_arrays(np.zeros(len(frame), np.int32), [str(store.path)])
    return table.add_column(0, "store", names).cast(_SCHEMA)


# Without aggregates of distinct values, which DuckDB computes even where a query has no use for
# them.
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
            layer is null and value is null and reason is not null
            and same_as is null and mixed_with is null
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
    """Return the SQL that creates the view ``profiles``: a column for each of these metrics of
    whole layers.

    A metric that was measured with several settings at one checkpoint has no value there: which one
    is meant is not known. Values of single attention heads are in ``rows`` alone.
    """
    names = [(name.replace("'", "''"), name.replace('"', '""')) for name in metrics]
    columns = [
        f"any_value(value) filter (metric = '{text}' and n = 1) as \"{title}\""
        for text, title in names
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
