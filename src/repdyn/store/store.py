"""The store: a folder of Parquet files, one for each measured checkpoint or, once they are compact, for many.

Files are written atomically; every view can be rebuilt from them, and pandas, DuckDB and Polars read them directly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from repdyn.store import run_files
from repdyn.store.compact_files import is_compact
from repdyn.store.keys import MeasurementKey, folder_inside, folder_name, is_failure, own_folder, parse_step, quoted
from repdyn.store.leases import Claim
from repdyn.store.parquet_files import is_readable, to_rows, write_single
from repdyn.store.row_filter import of_metrics
from repdyn.store.schema import COLUMNS, Row, to_table
from repdyn.utils.addresses import folder_path, is_url
from repdyn.utils.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

    from repdyn.diagnosis import RunInsights
    from repdyn.plots.accessor import StorePlots
    from repdyn.probe import Probe

COMPACT_FROM = 64
"""Number of files from which on a run is made compact at its end."""
JOINED_SECONDS = 30.0
"""How long other processes are kept from joining the files of a run again until those just joined are uploaded."""


class Store:
    """A folder of measurements; see :func:`open_store`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def location(self) -> str:
        """The path of the store, or the URL of a remote one, as commands accept it."""
        return str(self.path)

    @property
    def output(self) -> Path:
        """The folder for figures, reports and exports of which no other is named."""
        return self.path

    def refresh(self, run: str | None = None) -> None:
        """Download what is new in a remote store, or in one of its runs; a local one is always current."""

    def drain(self, seconds: float = 0.0) -> str | None:
        """Wait for the uploads to a remote store; return what is wrong with them, None for a local store."""

    def __contains__(self, key: MeasurementKey) -> bool:
        """Return whether there are rows under a key; False for an unreadable file, which may be replaced.

        Raises:
            ValueError: a file with the rows of many checkpoints cannot be read.
        """
        path = self.path / key.filename
        found = run_files.find_file(path.parent, path.name)
        return found is not None and (is_compact(found.name) or is_readable(found))

    def write(self, key: MeasurementKey, rows: Sequence[Row]) -> Path:
        """Write the rows of one checkpoint atomically; those under the same key are replaced.

        Raises:
            ValueError: there are no rows, or the folder of the run is a symbolic link.
        """
        if not rows:
            raise ValueError(f"expected at least one row for {key.filename}, got none")
        target = own_folder(self.folder_of(key.run)) / Path(key.filename).name
        write_single(target, to_table(rows))
        return target

    def read(self, key: MeasurementKey) -> list[Row]:
        """Return the rows written under a key.

        Raises:
            ValueError: there are none, or the file cannot be read.
        """
        path = self.path / key.filename
        table = run_files.read_file(path.parent, path.name)
        if table is None:
            raise ValueError(f"expected rows of {key.run} at step {key.step} in {self.path}, found none")
        return to_rows(table)

    def distinct(self, run: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the distinct values of columns in the measured rows of a run; unreadable files are skipped."""
        return run_files.with_run_files(self.folder_of(run), lambda files: files.distinct(columns))

    def discard_failures(self, key: MeasurementKey) -> None:
        """Delete the failures recorded for a step and a probe, for any set of metrics and any commit."""
        for path in self._failure_files(key):
            path.unlink(missing_ok=True)

    def split(self, run: str) -> None:
        """Write the measurements of a run to a file each again, the inverse of :meth:`compact`."""
        with self.replacing_files(run):
            run_files.split_run(own_folder(self.folder_of(run)))

    def replacing_files(self, run: str) -> AbstractContextManager[None]:
        """Return a context in which files of a run are moved, joined or divided: a remote store does the same."""
        return nullcontext()

    def compact_at_end(self, run: str) -> None:
        """Make a run compact at its end if it has many files, unless another process is about to."""
        with suppress(BlockingIOError):
            self.compact(run, at_least=COMPACT_FROM)

    def claim(self, key: MeasurementKey) -> Claim | None:
        """Return a lock on the measurement of a key, to be released afterwards; None if another process holds it.

        The lock of a killed process is released with it.
        """
        return self.claim_name(key.filename)

    def claim_name(self, name: str) -> Claim | None:
        """Return a lock of this name, as :meth:`claim` does."""
        # not thread-local: acquired by the thread that downloads, released by the one that measures
        lock = FileLock(self._lock_path(name), thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock

    def save_probe(self, probe: Probe) -> Path:
        """Save the probe in the store, so that further checkpoints can be measured on the same tokens."""
        target = self.probe_path(probe.hash)
        if not target.exists():
            write_atomically(target, probe.save)
        return target

    def probe_path(self, probe_hash: str) -> Path:
        return self.path / "probes" / f"{quoted(probe_hash)}.safetensors"

    def folder_of(self, run: str) -> Path:
        return self.path / folder_name(run)

    def folders(self, run: str | None = None) -> list[Path]:
        """Return the folders of all runs that have files, in ascending order, or that of one run."""
        return sorted(filter(run_files.has_files, self.path.glob("*/"))) if run is None else [self.folder_of(run)]

    def alerts_path(self, run: str) -> Path:
        """Return the path of the alert rules of a run."""
        former = self.folder_of(run) / "alarms.yaml"  # the name in stores of early versions
        return former if former.exists() else self.folder_of(run) / "alerts.yaml"

    def runs(self) -> list[str]:
        """Return the names of the runs with at least one measured checkpoint."""
        return sorted(name for folder in self.folders() if (name := run_files.run_name(folder)) is not None)

    def has_other_runs(self, run: str) -> bool:
        """Return whether there are measurements of other runs than this one."""
        return self.runs() != [run]

    def steps(self, run: str) -> list[int]:
        """Return the measured steps of a run in ascending order, without those at which measuring failed.

        Raises:
            ValueError: a file has no step in its name.
        """
        names = run_files.with_run_files(self.folder_of(run), lambda files: files.names)
        return sorted({parse_step(self.folder_of(run) / name) for name in names if not is_failure(name)})

    def to_pandas(
        self,
        run: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        metrics: Sequence[str] | None = None,
        categorical: bool = False,
    ) -> pd.DataFrame:
        """Return all rows, or those of one run, with a column per field of :class:`repdyn.store.schema.Row`.

        Of two measurements of the same thing the newer counts; a failure that a later measurement replaced is left out.
        Rows are sorted by run, step, stack, metric, subset, layer and head.

        Args:
            run: its name; all runs unless given.
            columns: names of the columns to return, in this order; all unless given.
            metrics: names of the metrics and scalars, such as "train/loss", whose rows to return; all unless given.
            categorical: return texts as ordered categoricals, which take a fraction of the memory, and the rows in the
                order in which views are drawn: in each run the values of layers by step and layer, those of heads,
                then scalars and failures.

        Raises:
            ValueError: the store has no measurement (of this run) or no such column, or a file cannot be read.
        """
        # with pandas, which no tracker waits for
        from repdyn.store.frame import BY_LAYER, BY_METRIC, read_frame, with_strings

        names, order = COLUMNS if columns is None else columns, BY_LAYER if categorical else BY_METRIC
        frame = read_frame(self.folders(run), names, of_metrics(metrics), order)
        if frame is None:
            of_run = "" if run is None else f" of the run {run!r}; it has {self.runs()}"
            raise ValueError(f"expected a store with measurements, found none in {self.path}{of_run}")
        return frame if categorical else with_strings(frame)

    def compact(
        self, run: str, progress: Callable[[int, int], object] = lambda done, total: None, *, at_least: int = 2
    ) -> run_files.Compaction | None:
        """Join the files of a run into few, which changes nothing of what is read; None if there is nothing to join.

        Args:
            run: its name.
            progress: called with the number of files that were read and of all of them.
            at_least: smallest number of files to join.

        Raises:
            BlockingIOError: another process does this at the moment.
            ValueError: a compact file cannot be read, or the folder is a symbolic link.
            OSError: the folder cannot be written, or a remote store does not answer; nothing is lost.
        """
        claim = self.claim_name(f"compact {run}")
        if claim is None:
            raise BlockingIOError(f"expected {run} in {self.location} for this process alone; wait for the other")
        try:
            self.refresh(run)
            with self.replacing_files(run):
                done = run_files.compact_run(own_folder(self.folder_of(run)), progress, at_least)
            if done is not None:
                self.drain(JOINED_SECONDS)
            return done
        finally:
            claim.release()

    @property
    def plot(self) -> StorePlots:
        """Figures of the stored runs as figures of Plotly: ``heatmap``, ``profile``, ``means`` and ``compare``.

        ``store.plot.heatmap("two_nn")`` shows one in a notebook; see :mod:`repdyn.plots`.
        """
        from repdyn.plots.accessor import StorePlots

        return StorePlots(self)

    def sql(self, query: str) -> pd.DataFrame:
        """Return the result of a query in SQL over the views ``rows``, ``runs`` and ``profiles``.

        ``store.sql("select run, max(step) as last from rows group by run")``; see :mod:`repdyn.query`.
        """
        from repdyn.query import query as run_query

        return run_query([self], query)

    def insights(self, runs: Sequence[str] | None = None, probe: str | None = None) -> list[RunInsights]:
        """Return the status of each run and ranked statements on what happened in it; see :func:`repdyn.insights`."""
        from repdyn.diagnosis import insights

        return insights(self, runs, probe)

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the runs with their steps, metrics and status, as notebooks show them."""
        from repdyn.plots.html import store_html

        return store_html(self)

    def _failure_files(self, key: MeasurementKey) -> list[Path]:
        return run_files.find_failures(self.folder_of(key.run), key)

    def _lock_path(self, name: str) -> Path:
        (folder := folder_inside(self.path, ".claims", deep=False)).mkdir(parents=True, exist_ok=True)
        return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"


def open_store(path: str | Path, *, refresh: bool = True) -> Store:
    """Return the store at a path; its folder is created with the first measurement.

    Args:
        path: a folder, or a URL of fsspec such as ``s3://bucket/prefix`` or ``hf://datasets/ORG/NAME``. A remote store
            is read from a copy in the cache folder.
        refresh: whether to download at once what is new in a remote store.

    Raises:
        ValueError: no such filesystem, or its package is not installed.
        OSError: the path is a file, or the remote store cannot be read.

    >>> open_store("runs/none").runs()
    []
    """
    if not is_url(path):
        return Store(folder_path(path))
    from repdyn.store.remote import RemoteStore  # with the packages of remote filesystems

    store = RemoteStore(str(path))
    if refresh:
        store.refresh()
    return store
