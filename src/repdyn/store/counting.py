"""Which rows of a store count, and in which order they are read: the newest of repeated
measurements, without failures that were made good.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from repdyn.store.files import is_constant
from repdyn.store.schema import COLUMNS

IDENTITY = (
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
)
"""Columns that identify a measurement; the newest of several rows that agree in them counts."""
BY_METRIC = ("run", "step", "stack", "metric", "subset", "layer", "head")
BY_LAYER = ("run", "kind", "step", "stack", "layer", "metric", "subset", "head")
"""Orders of rows. By layer, the values of layers come first in a run, then those of heads, then
scalars and failures: the rows that views are drawn from need not be copied."""
_FIRST = ("run", "step", "layer", "metric", "subset", "value", "low", "high", "reason")
READ_FIRST = (*_FIRST, *(name for name in COLUMNS if name not in _FIRST))
"""The columns in the order in which a person reads them: pandas hides those in the middle."""
_CHECKPOINT = ("run", "step", "probe")
_JUDGED = ("measured_at", "same_as", "mixed_with", "value", "reason", "reason_code")
"""Columns that tell which rows count."""
# in place of a missing number, so that it is sorted last
_LAST = np.iinfo(np.int64).max
# keys are products of small numbers in int64, renumbered before they leave it
_LARGEST_KEY = 2**62


def columns_to_read(columns: Sequence[str]) -> list[str]:
    """Return the columns that :func:`counted` needs of a table of some columns, with these, in the
    order of the schema.
    """
    if unknown := [name for name in columns if name not in COLUMNS]:
        raise ValueError(
            f"expected columns of a store, got {unknown[0]!r}; there are {', '.join(COLUMNS)}"
        )
    return [name for name in COLUMNS if name in {*columns, *IDENTITY, *_JUDGED}]


def counted(table: pa.Table, order: Sequence[str] = BY_METRIC) -> np.ndarray:
    """Return the places of the rows that count, in an order.

    Of several rows of the same measurement the newest counts. The failure of a metric that was
    measured later at the checkpoint is left out. A checkpoint that was found to be a copy or a
    mixture after it was measured loses its values.

    Args:
        table: rows with the columns of :func:`columns_to_read`, whose dictionaries are unified.
        order: :data:`BY_METRIC` or :data:`BY_LAYER`; missing values come last.
    """
    # columns of one value would take time and memory
    ranks = {name: _ranks(table[name]) for name in IDENTITY if not is_constant(table[name])}
    places = _without_replaced(table)
    of_places = {name: of_column[places] for name, of_column in ranks.items()}
    places = places[_newest(table, of_places, places)]
    # values of layers, then of heads, then scalars and failures
    is_of_head = table["head"].is_valid().to_numpy()
    ranks["kind"] = np.where(table["layer"].is_null().to_numpy(), 2, is_of_head)
    keys = [ranks[name][places] for name in order if name in ranks]
    # the last key is the first to sort by; equal rows stay in the order of their files
    return places[np.lexsort([np.arange(len(places)), *keys[::-1]])]


def _ranks(column: pa.ChunkedArray) -> np.ndarray:
    """Return the place of each value among the sorted distinct ones; a missing one is the last."""
    whole = pa.concat_arrays(column.chunks)
    if not pa.types.is_dictionary(column.type):
        plain = whole.fill_null(_LAST).to_numpy(zero_copy_only=False)
        return np.unique(plain, return_inverse=True)[1]
    texts = whole.dictionary.to_pylist()
    ranks = np.full(len(texts) + 1, len(texts))
    ranks[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
    return ranks[whole.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)]


def _newest(table: pa.Table, ranks: dict[str, np.ndarray], places: np.ndarray) -> np.ndarray:
    """Return which of some rows are left without older ones of the same ``ranks``, ascending."""
    keys = _keys(ranks.values(), len(places))
    # most stores repeat nothing: the times are not looked at
    if len(np.unique(keys)) == len(keys):
        return np.arange(len(keys))
    measured_at = _ranks(table["measured_at"])[places]
    by_key = np.lexsort([measured_at, keys])
    # the last one of each key
    is_newest = np.append(np.diff(keys[by_key]) != 0, True)
    return np.sort(by_key[is_newest])


def _keys(ranks: Iterable[np.ndarray], n_rows: int) -> np.ndarray:
    """Return a number of each row, which two rows share where they agree in all of their ranks."""
    keys = np.zeros(n_rows, np.int64)
    n_keys = 1
    for of_column in ranks:
        n_ranks = int(of_column.max(initial=0)) + 1
        # there are no more distinct keys than rows
        if n_keys * n_ranks > _LARGEST_KEY:
            distinct, keys = np.unique(keys, return_inverse=True)
            n_keys = len(distinct)
        keys = keys * n_ranks + of_column
        n_keys *= n_ranks
    return keys


def _without_replaced(table: pa.Table) -> np.ndarray:
    """Return the places of the rows without failures that a later measurement replaced, and without
    the values of foreign weights.
    """
    is_foreign = table["same_as"].is_valid().to_numpy() | table["mixed_with"].is_valid().to_numpy()
    is_scalar = table["layer"].is_null().to_numpy()
    has_reason = table["reason"].is_valid().to_numpy()
    is_failure = is_scalar & np.isnan(table["value"].to_numpy()) & has_reason | is_foreign
    if not is_failure.any():
        return np.arange(len(table))
    of_checkpoint = [_ranks(table[name]) for name in _CHECKPOINT]
    checkpoints = _keys(of_checkpoint, len(table))
    metrics = _keys([*of_checkpoint, _ranks(table["metric"])], len(table))
    _, of_metric = np.unique(metrics, return_inverse=True)
    # a failure is made good by values of layers of its metric that are not older
    measured_at = _ranks(table["measured_at"])
    last_measured_at = np.full(of_metric.max() + 1, -1)
    np.maximum.at(last_measured_at, of_metric[~is_scalar], measured_at[~is_scalar])
    counts = ~(is_failure & (last_measured_at[of_metric] >= measured_at))
    # the mark alone is left of a checkpoint with weights of another one
    is_foreign &= counts
    if is_foreign.any():
        counts &= is_foreign | ~np.isin(checkpoints, checkpoints[is_foreign])
    return np.flatnonzero(counts)
