"""The rows of a store as a data frame: the newest of repeated measurements, without failures that
were made good.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from repdyn.store.files import is_constant
from repdyn.store.schema import COLUMNS

IDENTITY = [
    "run",
    "step",
    "layers",
    "stack",
    "layer",
    "head",
    "metric",
    "subset",
    "settings",
    "probe",
]
"""Columns that identify a measurement; the newest of several rows that agree in them counts."""
_FIRST = ("run", "step", "layer", "metric", "subset", "value", "low", "high", "reason")
READ_FIRST = (*_FIRST, *(name for name in COLUMNS if name not in _FIRST))
"""The columns in the order in which a person reads them: pandas hides those in the middle."""
BY_METRIC = ("run", "step", "stack", "metric", "subset", "layer", "head")
BY_LAYER = ("run", "kind", "step", "stack", "layer", "metric", "subset", "head")
"""Orders of rows. By layer, the values of layers come first in a run, then those of heads, then
scalars and failures: the rows that views are drawn from need not be copied."""
_CHECKPOINT = ["run", "step", "probe"]
_JUDGED = ["measured_at", "same_as", "mixed_with", "value", "reason", "reason_code"]
"""Columns that tell which rows count."""
# Nullable integers and booleans keep their type; NaN remains a value in float columns.
_PANDAS_TYPES = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


def columns_to_read(columns: Sequence[str]) -> list[str]:
    """Return the columns that :func:`as_frame` needs for a frame of some columns, in the order of
    the schema.
    """
    if unknown := [name for name in columns if name not in COLUMNS]:
        raise ValueError(
            f"expected columns of a store, got {unknown[0]!r}; there are {', '.join(COLUMNS)}"
        )
    return [name for name in COLUMNS if name in {*columns, *IDENTITY, *_JUDGED}]


def as_frame(
    table: pa.Table, columns: Sequence[str] = COLUMNS, order: Sequence[str] = BY_METRIC
) -> pd.DataFrame:
    """Return rows as views use them, sorted; texts are ordered categoricals, whose categories are
    sorted.

    Args:
        table: rows with the columns of :func:`columns_to_read`. Of several of the same measurement
            the newest counts. The failure of a metric that was measured later at the checkpoint is
            left out. A checkpoint that was found to be a copy or a mixture after it was measured
            loses its values.
        columns: of the frame; one of a single value takes the memory of one row, and cannot be
            written to.
        order: :data:`BY_METRIC` or :data:`BY_LAYER`.
    """
    table = table.unify_dictionaries()
    keys = pd.DataFrame({name: _column(table, name) for name in (*IDENTITY, *_JUDGED)}, copy=False)
    # columns of one value would take time and memory
    varied = [name for name in IDENTITY if not is_constant(table[name])]
    keys = _newest(_without_replaced(keys), varied or ["run"])
    keys["kind"] = np.where(keys["layer"].isna(), 2, keys["head"].notna())
    by = [name for name in order if name in {*varied, "kind"}]
    places = keys.loc[:, by].sort_values(by, kind="stable").index.to_numpy()
    del keys
    frame = {}
    for name in columns:  # one by one, so that the table shrinks as the frame grows
        is_one = is_constant(table[name])
        column = _column(table, name)
        frame[name] = column[: len(places)] if is_one else column.take(places)
        table = table.drop_columns([name])
    pa.default_memory_pool().release_unused()
    return pd.DataFrame(frame, copy=False)


def _column(table: pa.Table, name: str) -> Any:
    """Return a column of a table as an array; one of a single value takes the memory of one row,
    and cannot be written to.
    """
    column = table[name]
    if not is_constant(column):
        return _array(column)
    if pa.types.is_dictionary(column.type):
        texts = () if column.null_count else (column[0].as_py(),)
        codes = np.broadcast_to(np.int8(len(texts) - 1), len(table))
        of_texts, _ = _sorted_categories(texts)
        return pd.Categorical.from_codes(codes, dtype=of_texts, validate=False)
    one = _array(column.slice(0, 1))
    if isinstance(one.dtype, pd.Int64Dtype | pd.BooleanDtype):
        plain = one.to_numpy(one.dtype.numpy_dtype, na_value=0)
        return type(one)(
            np.broadcast_to(plain, len(table)), np.broadcast_to(one.isna(), len(table))
        )
    return np.broadcast_to(one, len(table))


def _array(column: pa.ChunkedArray) -> Any:
    """Return a column as pandas holds it: texts, which are dictionaries, as ordered categoricals.

    This takes a tenth of the time of Arrow's conversion of a table, which counts in a store of
    hundreds of short runs.
    """
    if column.type in _PANDAS_TYPES:
        return _PANDAS_TYPES[column.type].__from_arrow__(column)
    whole = pa.concat_arrays(column.chunks)
    if not pa.types.is_dictionary(column.type):
        return whole.to_numpy(zero_copy_only=False)
    codes = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    # np.unique would sort all rows
    places = np.flatnonzero(np.bincount(codes + 1, minlength=1 + len(whole.dictionary))[1:])
    texts, order = _sorted_categories(tuple(whole.dictionary.take(pa.array(places)).to_pylist()))
    # the last one is that of no text, whose code is -1
    ranks = np.full(len(whole.dictionary) + 1, -1)
    ranks[places[order]] = np.arange(len(order))
    return pd.Categorical.from_codes(ranks[codes], dtype=texts, validate=False)


@lru_cache(maxsize=256)
def _sorted_categories(texts: tuple[str, ...]) -> tuple[pd.CategoricalDtype, np.ndarray]:
    """Return the type of a column of some texts, and their places in its order.

    Most columns have the same few texts in every run, and pandas takes longer to make the type than
    for the rows of a short run.
    """
    index = pd.Index(texts, dtype=str)
    order = index.argsort()
    return pd.CategoricalDtype(index[order], ordered=True), order


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Convert a table of rows to the data frame that every view works on.

    Dictionaries become ordered categoricals, whose categories are sorted.
    """
    frame = table.unify_dictionaries().to_pandas(types_mapper=_PANDAS_TYPES.get)
    for name in frame.select_dtypes("category"):
        texts = frame[name].cat
        used = texts.categories[
            np.bincount(texts.codes + 1, minlength=len(texts.categories) + 1)[1:] > 0
        ]
        frame[name] = texts.set_categories(used.astype(str).sort_values(), ordered=True)
    return frame


def with_strings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with strings in place of categoricals."""
    texts = frame.select_dtypes("category").columns
    return frame.astype({name: frame[name].cat.categories.dtype for name in texts})


def _newest(frame: pd.DataFrame, cell: list[str]) -> pd.DataFrame:
    """Return the rows without older ones that agree in the columns of ``cell``."""
    if pd.MultiIndex.from_frame(
        frame.loc[:, cell]
    ).is_unique:  # takes half the time of duplicated()
        return frame
    by_time = frame.loc[:, [*cell, "measured_at"]].sort_values("measured_at", kind="stable")
    return frame.loc[~by_time.duplicated(cell, keep="last").sort_index()]


def _without_replaced(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without failures that a later measurement replaced, and without the values of
    foreign weights.
    """
    is_foreign = frame["same_as"].notna() | frame["mixed_with"].notna()
    is_failure = (
        frame["layer"].isna() & frame["value"].isna() & frame["reason"].notna() | is_foreign
    )
    if not bool(is_failure.any()):
        return frame
    metric = [*_CHECKPOINT, "metric"]
    texts = with_strings(frame.loc[:, [*metric, "measured_at", "layer"]])
    found = (
        texts.loc[texts["layer"].notna()].groupby(metric)["measured_at"].max().rename("replaced_at")
    )
    replaced = texts.join(found, on=metric)["replaced_at"].fillna("") >= texts["measured_at"]
    frame, is_foreign = (
        frame.loc[~(is_failure & replaced)],
        is_foreign.loc[~(is_failure & replaced)],
    )
    if not bool(is_foreign.any()):
        return frame
    checkpoints = pd.MultiIndex.from_frame(with_strings(frame.loc[:, _CHECKPOINT]))
    return frame.loc[is_foreign.to_numpy() | ~checkpoints.isin(checkpoints[is_foreign.to_numpy()])]
