"""The store: a folder of Parquet files with one row per measured value, the source of every view.

store        ``Store``: what is measured, written by run and read by history
runs         ``Run``: one start of a training; the paths through runs that views show
files        Parquet files with rows, written atomically
frame        rows as a data frame
schema       ``Row``: one value with everything needed to interpret it
scalars      names of the training's own values that are stored beside them
keys         ``MeasurementKey``: what a measurement is stored under
find         ``open_store``; ``find_store``, ``find_stores``: the store in the folder of a run, or those below a folder
remote       ``RemoteStore``: a store at a URL, read from a local copy and uploaded in the background
state_cache  ``StateCache``: hidden states of the previous checkpoint on disk, for metrics that compare checkpoints
"""

from repdyn.store.files import read_rows
from repdyn.store.find import find_store, find_stores, open_store
from repdyn.store.keys import MeasurementKey
from repdyn.store.runs import Run
from repdyn.store.store import Store

__all__ = ["MeasurementKey", "Run", "Store", "find_store", "find_stores", "open_store", "read_rows"]
