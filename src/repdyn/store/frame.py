"""The rows of a store as a data frame of pandas."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from repdyn.store.counting import BY_METRIC, counted
from repdyn.store.files import is_constant
from repdyn.store.schema import COLUMNS

# Nullable integers and booleans keep their type; NaN remains a value in float columns.
_PANDAS_TYPES = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


def as_frame(
    table: pa.Table, columns: Sequence[str] = COLUMNS, order: Sequence[str] = BY_METRIC
) -> pd.DataFrame:
    """Return the rows that count as views use them, sorted; texts are ordered categoricals, whose
    categories are sorted.

    Args:
        table: rows with the columns of :func:`repdyn.store.counting.columns_to_read`.
        columns: of the frame; one of a single value takes the memory of one row, and cannot be
            written to.
        order: as for :func:`repdyn.store.counting.counted`.
    """
    table = table.unify_dictionaries()
    places = counted(table, order)
    left = dict(zip(table.column_names, table.columns, strict=True))
    del table
    frame = {}
    for name in columns:
        column = left.pop(name)  # so that the table shrinks as the frame grows
        is_one = is_constant(column)
        frame[name] = _repeated(column, len(places)) if is_one else _array(column).take(places)
    pa.default_memory_pool().release_unused()
    return pd.DataFrame(frame, copy=False)


def _repeated(column: pa.ChunkedArray, n_rows: int) -> Any:
    """Return an array of a column of a single value, which takes the memory of one row and cannot
    be written to.
    """
    # most columns of a large store have one value: a view of it repeats without memory
    if pa.types.is_dictionary(column.type):
        texts = () if column.null_count else (column[0].as_py(),)
        codes = np.broadcast_to(np.int8(len(texts) - 1), n_rows)
        of_texts, _ = _sorted_categories(texts)
        return pd.Categorical.from_codes(codes, dtype=of_texts, validate=False)
    first = _array(column.slice(0, 1))
    if isinstance(first.dtype, pd.Int64Dtype | pd.BooleanDtype):
        value = first.to_numpy(first.dtype.numpy_dtype, na_value=0)
        return type(first)(np.broadcast_to(value, n_rows), np.broadcast_to(first.isna(), n_rows))
    return np.broadcast_to(first, n_rows)


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
        # the code of no text is -1
        counts = np.bincount(texts.codes + 1, minlength=len(texts.categories) + 1)[1:]
        used = texts.categories[np.flatnonzero(counts)]
        frame[name] = texts.set_categories(used.astype(str).sort_values(), ordered=True)
    return frame


def with_strings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with strings in place of categoricals."""
    texts = frame.select_dtypes("category").columns
    return frame.astype({name: frame[name].cat.categories.dtype for name in texts})
