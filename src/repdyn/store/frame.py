"""The rows of several files as one data frame: the newest of repeated measurements, without replaced failures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import union_categoricals

from repdyn.store.row_filter import EVERY_ROW, RowFilter, folders_left
from repdyn.store.run_files import run_blocks
from repdyn.store.schema import COLUMNS, HAS_FOREIGN_WEIGHTS, SCHEMA, too_few_distinct

IDENTITY = ["run", "step", "layers", "stack", "layer", "head", "metric", "subset", "settings", "probe"]
"""Columns that identify a measurement; the newest of several rows that agree in them counts."""
BY_METRIC = ("run", "step", "stack", "metric", "subset", "layer", "head")
BY_LAYER = ("run", "kind", "step", "stack", "layer", "metric", "subset", "head")
"""Orders of rows. By layer, the values of layers come first in a run, then those of heads, then scalars and failures:
the rows that views are drawn from need not be copied."""
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
    folders: Iterable[Path],
    columns: Sequence[str],
    condition: RowFilter = EVERY_ROW,
    order: Sequence[str] = BY_METRIC,
) -> pd.DataFrame | None:
    """Return the rows in the folders of runs as :func:`as_frame` does; None if there is no file to be read.

    Files of runs and steps that contradict the condition are not read. Rows that do not meet it may be among those
    returned, unless the condition is about :data:`IDENTITY` alone.

    Raises:
        ValueError: a name is not a column, or a file cannot be read.
    """
    needed = columns_to_read(columns)
    blocks = chain.from_iterable(run_blocks(folder, needed, condition) for folder in folders_left(folders, condition))
    first = next(blocks, None)
    if first is None:
        return None
    return as_frame(chain([first], blocks), columns=columns, condition=condition, order=order)


def as_frame(
    blocks: Iterable[tuple[bool, pa.Table]],
    *,
    columns: Sequence[str] = COLUMNS,
    condition: RowFilter = EVERY_ROW,
    order: Sequence[str] = BY_METRIC,
) -> pd.DataFrame:
    """Return rows as views use them, sorted.

    Texts are ordered categoricals, whose categories are sorted.

    Args:
        blocks: tables, each with whether it holds failed measurements, copies and mixtures; those of a run come before
            its measurements. The failure of a metric that was measured later at the checkpoint is left out. A
            checkpoint that was found to be a copy or a mixture after it was measured loses its values. If two tables
            hold the same measurement, the newer one counts. A generator can be given, so that each table is reduced
            before the next is read.
        columns: of the frame; the tables need those of :func:`columns_to_read`.
        condition: on the rows to keep; one that is about other columns than :data:`IDENTITY` is disregarded, since it
            may hold for a row and not for the newer one that takes its place.
        order: :data:`BY_METRIC` or :data:`BY_LAYER`.
    """
    if not set(condition.columns).issubset(IDENTITY):
        condition = EVERY_ROW
    failures, times, parts = [], [], _Joined()
    for is_failed, table in blocks:
        if is_failed:
            failures.append(_decoded(table))
            continue
        if failures:
            times.append(_measurement_times(table))
        parts.add(condition.apply(encoded(table)))
    if failures:
        left = _not_replaced(pa.concat_tables(failures), times)
        parts.remove(left.filter(HAS_FOREIGN_WEIGHTS).select(_CHECKPOINT).to_pandas())
        parts.add(condition.apply(encoded(left)))
    return _in_order(parts.frame(), columns, order)


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
    if pa.types.is_dictionary(column.type):
        return pd.Series(_categories_in_order(column.combine_chunks()), copy=False)
    series = column.to_pandas(types_mapper=_PANDAS_TYPES.get)
    # numbers of Arrow cannot be written to
    return series.copy() if isinstance(series.dtype, np.dtype) else series


def _categories_in_order(texts: pa.DictionaryArray) -> pd.Categorical:
    # in one step: to convert, to name and to reorder categories copies the codes each time
    categories = pd.Index(texts.dictionary.to_pandas()).astype(str)  # without values they have no type
    order = categories.argsort()
    codes = np.empty(len(order) + 1, np.min_scalar_type(-len(order) - 1))
    codes[order], codes[-1] = np.arange(len(order)), -1  # of a missing text
    in_order = pd.CategoricalDtype(categories[order], ordered=True)
    return pd.Categorical.from_codes(codes.take(texts.indices.fill_null(-1)), dtype=in_order, validate=False)


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
    """Tables that are joined as they come to few large ones, each converted before the next is read."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._frames: list[pd.DataFrame] = []

    def add(self, table: pa.Table) -> None:
        """Add a table whose texts are encoded."""
        self._tables.append(table)
        if sum(map(len, self._tables)) >= _LARGE:
            self._convert()

    def _convert(self) -> None:
        if not self._tables:
            return
        table = pa.concat_tables(self._tables).unify_dictionaries()
        self._tables.clear()
        self._frames.append(to_pandas(table))

    def remove(self, checkpoints: pd.DataFrame) -> None:
        """Remove the rows of checkpoints."""
        if len(checkpoints):
            self._convert()
            self._frames = [_without(frame, checkpoints) for frame in self._frames]

    def frame(self) -> pd.DataFrame:
        """Return the rows of all tables, and forget them."""
        self._convert()
        frames = self._frames or [to_pandas(encoded(SCHEMA.empty_table()))]
        # column by column, so that none is there twice
        joined = {name: _concatenated([frame.pop(name) for frame in frames]) for name in list(frames[0])}
        return pd.DataFrame(joined, copy=False)


def _concatenated(columns: Sequence[pd.Series]) -> pd.Series:
    if len(columns) == 1 or not isinstance(columns[0].dtype, pd.CategoricalDtype):
        return pd.concat(columns, ignore_index=True)
    return pd.Series(union_categoricals(columns, sort_categories=True, ignore_order=True).as_ordered(), copy=False)


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


def _without(frame: pd.DataFrame, checkpoints: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of other checkpoints."""
    here = pd.MultiIndex.from_frame(with_strings(frame.loc[:, _CHECKPOINT]))
    return frame.loc[~here.isin(pd.MultiIndex.from_frame(checkpoints))].reset_index(drop=True)


def _in_order(frame: pd.DataFrame, columns: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """Return columns of the rows sorted by others, the newest alone of those of one measurement."""
    ordering = _numbered(frame, names)
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
        column = _kinds(frame) if name == "kind" else _codes(pd.Series(frame[name]))
        number = int(column.max(initial=0)) + 1
        if size * number > _LARGEST_KEY:
            distinct, found = np.unique(found, return_inverse=True)
            size = len(distinct)
        found, size = found * number + column, size * number
    return found


def _kinds(frame: pd.DataFrame) -> np.ndarray:
    """Return 0 for values of layers, 1 for those of heads, and 2 for scalars and failures."""
    return np.where(frame["layer"].isna(), 2, frame["head"].notna()).astype(np.int64)


def _codes(column: pd.Series) -> np.ndarray:
    """Return integers that sort as the values of a column do, missing ones last."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, number = column.cat.codes.to_numpy(), len(column.cat.categories)
    else:
        codes, values = pd.factorize(column, sort=True)
        number = len(values)
    return np.where(codes < 0, number, codes).astype(np.int64)
