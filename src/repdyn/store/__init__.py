"""The store: a folder of Parquet files with one row per measured value, the source of every view.

store          ``Store``: read and write the measurements of a run
remote         ``RemoteStore``: a store at a URL, read from a local copy
mirror         the copy: what is new is downloaded, what is written is uploaded
uploader       uploads in the background
leases         claims among machines
remote_folder  listing, downloads and uploads through fsspec, with retries
remote_requests  their time limits and repetitions
hub_commits    commits to the Hugging Face hub
waiting_files  what is to be uploaded
published      files without secrets and local paths, with a certificate
find           ``find_store``, ``find_stores``: the store in the folder of a run, or those below a folder
keys           ``MeasurementKey``: what a measurement is stored under
run_files      the files of a run: listed, read, made compact
copied_files   those of a copy of a run, whose rows are in other files now
compact_files  the rows of many checkpoints in one file
parquet_files  one file of a store, checked against the schema
content_digest  the digest of a file in its own metadata
unfinished     temporary files that killed processes left
row_filter     conditions on rows, and what names of folders and files say of them
frame          the rows of several files as one data frame
schema         ``Row``: one value with everything needed to interpret it
state_cache    ``StateCache``: hidden states of the previous checkpoint on disk, for metrics that compare checkpoints
"""

from repdyn.store.find import find_store, find_stores
from repdyn.store.keys import MeasurementKey
from repdyn.store.parquet_files import read_rows
from repdyn.store.store import Store, open_store

__all__ = ["MeasurementKey", "Store", "find_store", "find_stores", "open_store", "read_rows"]
