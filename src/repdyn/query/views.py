"""The views ``runs`` and ``profiles`` of a query, as SQL over the view ``rows``."""

from __future__ import annotations

from collections.abc import Iterable

# Without aggregates of distinct values, which DuckDB computes even where a query has no use for them.
RUNS = """
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


def profiles(metrics: Iterable[str]) -> str:
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
