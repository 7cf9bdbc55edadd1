"""The rows of several files as one data frame: the newest of repeated measurements, without replaced failures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from repdyn.store.row_filter import EVERY_ROW, RowFilter, folders_left
from repdyn.store.run_files import RunFiles, with_run_files
from repdyn.store.schema import COLUMNS, HAS_FOREIGN_WEIGHTS, SCHEMA, too_few_distinct

IDENTITY = ["run", "step", "layers", "stack", "layer", "head", "metric", "subset", "settings", "probe"]
"""Columns that identify a measurement; the newest of several rows that agree in them counts."""
_ORDER = ["run", "step", "stack", "metric", "subset", "layer", "head"]
_CHECKPOINT = ["run", "step", "probe"]
_METRIC = [*_CHECKPOINT, "metric"]
# Columns by which rows of early versions are found that have too few distinct vectors for a value.
_SAMPLE = ["value", "design", "on_distinct", "n_unique", "n_vectors"]
_LARGEST_KEY = 2**62
_LARGE = 2**18
"""Rows of a table that is large enough for the system to take back the memory of a single column."""
# Nullable integers and booleans keep their type; NaN remains a value in float columns.
_PANDAS_TYPES = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


def columns_to_read(columns: Sequence[str]) -> list[str]:
    """Return the columns that :func:`as_frame` needs for a frame of some columns, in the order of the schema.

    Raises:
        ValueError: a name is not a column of :class:`repdyn.store.schema.Row`.
    """
    if unknown := [name for name in columns if name not in COLUMNS]:
        raise ValueError(f"expected columns of a store, got {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    judged = _SAMPLE if {"value", "std", "reason"}.intersection(columns) else []
    needed = {*columns, *IDENTITY, "measured_at", "same_as", "mixed_with", *judged}
    return [name for name in COLUMNS if name in needed]


def read_frame(
    folders: Iterable[Path], columns: Sequence[str], condition: RowFilter = EVERY_ROW
) -> pd.DataFrame | None:
    """Return the rows in the folders of runs as :func:`as_frame` does; None if there is no file to be read.

    Files of runs and steps that contradict the condition are not read. Rows that do not meet it may be among those
    returned, unless the condition is about :data:`IDENTITY` alone.

    Raises:
        ValueError: a name is not a column, or a file cannot be read.
    """
    needed = columns_to_read(columns)
    found: list[tuple[bool, pa.Table]] = []

    def read(files: RunFiles) -> list[tuple[bool, pa.Table]]:
        files.keep(condition)
        return [(fails, encoded(rows)) for fails, rows in files.blocks(needed)]

    for folder in folders_left(folders, condition):
        found += with_run_files(folder, read)
    if not found:
        return None
    failed = [table for fails, table in found if fails]
    measured = [table for fails, table in reversed(found) if not fails]
    del found  # each is forgotten as soon as it is joined to the others
    return as_frame((measured.pop() for _ in range(len(measured))), failed, columns=columns, condition=condition)


def as_frame(
    measured: Iterable[pa.Table],
    failed: Iterable[pa.Table] = (),
    *,
    columns: Sequence[str] = COLUMNS,
    condition: RowFilter = EVERY_ROW,
) -> pd.DataFrame:
    """Return rows as views use them, sorted by run, step, stack, metric, subset, layer and head.

    Texts are ordered categoricals, whose categories are sorted.

    Args:
        measured: tables of measurements; if two hold the same measurement, the newer one counts. A generator can be
            given, so that each table is reduced before the next is read.
        failed: tables of failed measurements, copies and mixtures. The failure of a metric that was measured later at
            the checkpoint is left out. A checkpoint that was found to be a copy or a mixture after it was measured
            loses its values.
        columns: of the frame; the tables need those of :func:`columns_to_read`.
        condition: on the rows to keep; one that is about other columns than :data:`IDENTITY` is disregarded, since it
            may hold for a row and not for the newer one that takes its place.
    """
    if not set(condition.columns).issubset(IDENTITY):
        condition = EVERY_ROW
    failures, times, parts = list(failed), [], _Joined()
    for table in measured:
        if failures:
            times.append(_measurement_times(table))
        parts.add(condition.apply(table))
    if failures:
        left = _not_replaced(pa.concat_tables(map(_decoded, failures)), times)
        parts.remove(left.filter(HAS_FOREIGN_WEIGHTS).select(_CHECKPOINT).to_pandas())
        parts.add(condition.apply(left))
    return _in_order(to_pandas(parts.table()), columns)


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Convert a table of rows to the data frame that every view works on; the table must not be used afterwards.

    Dictionaries become categoricals, whose categories are sorted. :func:`too_few_distinct` is applied to rows of early
    versions, which did not apply it when measuring.
    """
    left = dict(zip(table.column_names, table.columns, strict=True))
    del table
    # column by column, each freed before the next is made, if nothing else holds it
    frame = pd.DataFrame({name: _as_series(left.pop(name)) for name in list(left)}, copy=False)
    return frame if "value" not in frame else _without_few_distinct(frame)


def _as_series(column: pa.ChunkedArray) -> pd.Series:
    if len(column) >= _LARGE:
        pa.default_memory_pool().release_unused()  # of the column before
    series = column.to_pandas(types_mapper=_PANDAS_TYPES.get)
    if not isinstance(series.dtype, pd.CategoricalDtype):
        # numbers of Arrow cannot be written to
        return series.copy() if isinstance(series.dtype, np.dtype) else series
    # without values they have no type
    series = series.cat.rename_categories(series.cat.categories.astype(str))
    return series.cat.reorder_categories(series.cat.categories.sort_values(), ordered=True)


def _without_few_distinct(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows, those of early versions without the values that rest on too few distinct vectors."""
    few = frame["on_distinct"].astype(bool) & (2 * frame["n_unique"] < frame["n_vectors"])
    old = (frame["design"].isna() & few & frame["value"].notna()).astype(bool)
    if bool(old.any()):
        frame.loc[old, [name for name in ("value", "std") if name in frame]] = math.nan
        if "reason" in frame:
            counts = zip(frame.loc[old, "n_unique"], frame.loc[old, "n_vectors"], strict=True)
            reasons = frame["reason"].astype(object)
            reasons.loc[old] = [too_few_distinct(True, n_unique, n_vectors) for n_unique, n_vectors in counts]
            frame["reason"] = reasons.astype(frame["reason"].dtype.name)
    return frame


def with_strings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with strings in place of categoricals."""
    texts = frame.select_dtypes("category").columns
    return frame.astype({name: frame[name].cat.categories.dtype for name in texts})


class _Joined:
    """Tables that are encoded as they come, and joined to few large ones, whose memory can be freed by the column."""

    def __init__(self) -> None:
        self._small: list[pa.Table] = []
        self._large: list[pa.Table] = [encoded(SCHEMA.empty_table())]

    def add(self, table: pa.Table) -> None:
        self._small.append(encoded(table))
        if sum(map(len, self._small)) >= _LARGE:
            self._join()

    def _join(self) -> None:
        self._large.append(pa.concat_tables(self._small).unify_dictionaries().combine_chunks())
        self._small.clear()

    def remove(self, checkpoints: pd.DataFrame) -> None:
        """Remove the rows of checkpoints."""
        if len(checkpoints):
            self._small = [_without(table, checkpoints) for table in self._small]
            self._large = [_without(table, checkpoints) for table in self._large]

    def table(self) -> pa.Table:
        """Return the rows of all tables, and forget them."""
        if self._small:
            self._join()
        tables = [table.select(self._large[-1].column_names) for table in self._large]
        self._large.clear()
        return pa.concat_tables(tables).unify_dictionaries()


def encoded(table: pa.Table) -> pa.Table:
    """Return the table with its texts as dictionaries, which take a tenth of the memory."""
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            texts = table.column(place).dictionary_encode()
            table = table.set_column(place, field.with_type(texts.type), texts)
    return table


def _decoded(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([SCHEMA.field(name) for name in table.column_names]))


def _measurement_times(table: pa.Table) -> pa.Table:
    """Return the time of the last measurement of each metric at each checkpoint."""
    of_layers = _decoded(table.select([*_METRIC, "layer", "measured_at"])).filter(table["layer"].is_valid())
    return of_layers.group_by(_METRIC).aggregate([("measured_at", "max")])


def _not_replaced(failures: pa.Table, times: Sequence[pa.Table]) -> pa.Table:
    """Return the failures of metrics that were not measured later at the same checkpoint."""
    if not times:
        return failures
    found = pa.concat_tables(times).to_pandas().groupby(_METRIC)["measured_at_max"].max().rename("replaced_at")
    rows = failures.select([*_METRIC, "measured_at"]).to_pandas()
    replaced = rows.join(found, on=_METRIC)["replaced_at"].fillna("") >= rows["measured_at"]
    return failures.filter(pa.array(~replaced.to_numpy(bool)))


def _without(table: pa.Table, checkpoints: pd.DataFrame) -> pa.Table:
    """Return the rows of other checkpoints."""
    here = pd.MultiIndex.from_frame(table.select(_CHECKPOINT).to_pandas().astype({"run": str, "probe": str}))
    return table.filter(pa.array(~here.isin(pd.MultiIndex.from_frame(checkpoints))))


def _in_order(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return columns of the sorted rows, the newest alone of those of one measurement."""
    ordering = _numbered(frame, _ORDER)
    order = np.argsort(ordering, kind="stable")
    if bool((np.diff(ordering[order]) == 0).any()):
        # in several files, or of several probes or settings
        identity, time = _numbered(frame, IDENTITY), _codes(pd.Series(frame["measured_at"]))
        newest = ~pd.Series(identity).loc[by_time := np.argsort(time, kind="stable")].duplicated(keep="last")
        kept = np.sort(by_time[newest.to_numpy()])
        order = kept[np.argsort(ordering[kept], kind="stable")]
    # column by column, so that none is there twice
    taken = {name: frame.pop(name).array.take(order) for name in dict.fromkeys(columns)}
    return pd.DataFrame(taken, copy=False)


def _numbered(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Return integers that sort as the rows do by these columns, missing values last, and are equal where they are."""
    found, size = np.zeros(len(frame), np.int64), 1
    for name in names:
        column = _codes(pd.Series(frame[name]))
        number = int(column.max(initial=0)) + 1
        if size * number > _LARGEST_KEY:
            distinct, found = np.unique(found, return_inverse=True)
            size = len(distinct)
        found, size = found * number + column, size * number
    return found


def _codes(column: pd.Series) -> np.ndarray:
    """Return integers that sort as the values of a column do, missing ones last."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, number = column.cat.codes.to_numpy(), len(column.cat.categories)
    else:
        codes, values = pd.factorize(column, sort=True)
        number = len(values)
    return np.where(codes < 0, number, codes).astype(np.int64)
