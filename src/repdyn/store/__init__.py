"""The store: a folder of Parquet files with one row per measured value, the source of every view.

store        ``Store``: what is measured, written by run and read by history
find         ``open_store``; ``store_at``, to write; ``find_store``, ``find_stores``,
             ``stores_of``: those in folders of runs or below
files        ``MeasurementKey``: the names of files with rows, which are written atomically
runs         ``Run``: one start of a training; the paths through runs that views show
schema       ``Row``: one value with everything needed to interpret it
frame        rows as a data frame
remote       ``RemoteStore``: a store at a URL, read from a local copy and uploaded in the
             background
state_cache  ``StateCache``: hidden states of the previous checkpoint on disk, for metrics that
             compare checkpoints
"""

from repdyn.store.files import MeasurementKey, read_rows
from repdyn.store.find import StoreLike, find_store, find_stores, open_store, store_at, stores_of
from repdyn.store.runs import Run
from repdyn.store.store import Store

__all__ = [
    "MeasurementKey",
    "Run",
    "Store",
    "StoreLike",
    "find_store",
    "find_stores",
    "open_store",
    "read_rows",
    "store_at",
    "stores_of",
]
