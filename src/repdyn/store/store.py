"""The store: a folder of Parquet files, one for each measured checkpoint or, once they are compact, for many.

Files are written atomically, so a store remains readable when a process is killed. Every view can be rebuilt from it;
pandas, DuckDB and Polars read its files directly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import BaseFileLock, FileLock, Timeout

from repdyn.store.compact_files import is_compact
from repdyn.store.frame import as_frame, columns_to_read, encoded
from repdyn.store.parquet_files import is_readable, to_rows
from repdyn.store.run_files import Compaction, RunFiles, compact_run, find_file, is_failure, read_file, with_run_files
from repdyn.store.schema import COLUMNS, Row, to_table
from repdyn.utils.atomic_files import write_atomically

if TYPE_CHECKING:
    from repdyn.diagnosis import RunInsights
    from repdyn.plots.accessor import StorePlots
    from repdyn.probe import Probe

_FAILED = "failed"
_CHECKPOINT_DIGITS = 12
# Common file systems limit names to 255 bytes.
_MAX_NAME_BYTES = 255
_DIGEST_DIGITS = 16


@dataclass(frozen=True)
class MeasurementKey:
    """The key of one file of a store: a checkpoint, a probe and a set of metrics."""

    run: str
    step: int
    probe: str
    metrics: str
    checkpoint: str = ""
    """Commit of a published checkpoint, since a step may be published twice; "" for a live run."""

    @property
    def failed(self) -> MeasurementKey:
        """The key under which a failed measurement is stored."""
        return replace(self, metrics=f"{self.metrics}-{_FAILED}")

    @property
    def filename(self) -> str:
        """The path relative to the store: FOLDER/FILE, whatever characters the key contains."""
        parts = [_step_name(self.step), *map(_quote, (self.checkpoint[:_CHECKPOINT_DIGITS], self.probe, self.metrics))]
        return f"{_folder_name(self.run)}/{'-'.join(filter(None, parts))}.parquet"


class Store:
    """A folder of measurements; see :func:`open_store`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __contains__(self, key: MeasurementKey) -> bool:
        """Return whether there are rows under a key; False for an unreadable file, which may be replaced.

        Raises:
            ValueError: a file with the rows of many checkpoints cannot be read.
        """
        path = self.path / key.filename
        found = find_file(path.parent, path.name)
        return found is not None and (is_compact(found.name) or is_readable(found))

    def write(self, key: MeasurementKey, rows: Sequence[Row]) -> Path:
        """Write the rows of one checkpoint atomically; those under the same key are replaced.

        Raises:
            ValueError: there are no rows.
        """
        if not rows:
            raise ValueError(f"expected at least one row for {key.filename}, got none")
        table = to_table(rows)
        target = self.path / key.filename
        # without checksums a flipped bit on the disk would go unnoticed
        write_atomically(target, lambda temporary: pq.write_table(table, temporary, write_page_checksum=True))
        return target

    def read(self, key: MeasurementKey) -> list[Row]:
        """Return the rows written under a key.

        Raises:
            ValueError: there are none, or the file cannot be read.
        """
        path = self.path / key.filename
        table = read_file(path.parent, path.name)
        if table is None:
            raise ValueError(f"expected rows of {key.run} at step {key.step} in {self.path}, found none")
        return to_rows(table)

    def distinct(self, run: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the distinct values of columns in the measured rows of a run; unreadable files are skipped."""

        def read(files: RunFiles) -> list[dict[str, Any]]:
            found: dict[tuple, dict[str, Any]] = {}
            for _, table in files.tables(["layer", *columns], skip_unreadable=True):
                measured = table.filter(table["layer"].is_valid()).group_by(list(columns)).aggregate([])
                found |= {tuple(row.values()): row for row in measured.to_pylist()}
            return list(found.values())

        return with_run_files(self.folder_of(run), read)

    def discard_failures(self, key: MeasurementKey) -> None:
        """Delete the failures recorded for a step and a probe, for any set of metrics and any commit."""
        for path in self.folder_of(key.run).glob(f"{_step_name(key.step)}-*-{_FAILED}.parquet"):
            if f"-{_quote(key.probe)}-" in path.name:
                path.unlink(missing_ok=True)

    def claim(self, key: MeasurementKey) -> BaseFileLock | None:
        """Return a lock on the measurement of a key, to be released afterwards; None if another process holds it.

        The lock of a killed process is released with it.
        """
        # not thread-local: acquired by the thread that downloads, released by the one that measures
        lock = FileLock(self._lock_path(key.filename), thread_local=False)
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
        return self.path / "probes" / f"{_quote(probe_hash)}.safetensors"

    def folder_of(self, run: str) -> Path:
        return self.path / _folder_name(run)

    def alerts_path(self, run: str) -> Path:
        """Return the path of the alert rules of a run."""
        former = self.folder_of(run) / "alarms.yaml"  # the name in stores of early versions
        return former if former.exists() else self.folder_of(run) / "alerts.yaml"

    def runs(self) -> list[str]:
        """Return the names of the runs with at least one measured checkpoint."""
        return sorted(with_run_files(folder, _run_name) for folder in self._folders())

    def steps(self, run: str) -> list[int]:
        """Return the measured steps of a run in ascending order, without those at which measuring failed.

        Raises:
            ValueError: a file has no step in its name.
        """
        names = with_run_files(self.folder_of(run), lambda files: files.names)
        return sorted({_parse_step(self.folder_of(run) / name) for name in names if not is_failure(name)})

    def to_pandas(
        self, run: str | None = None, *, columns: Sequence[str] | None = None, metrics: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """Return all rows, or those of one run, with a column per field of :class:`repdyn.store.schema.Row`.

        If two files hold the same measurement, the newer one counts; a failure that a later measurement replaced is
        left out. Rows are sorted by run, step, stack, metric, subset, layer and head. Texts are sorted categoricals.

        Args:
            run: its name; all runs unless given.
            columns: names of the columns to return, in this order; all unless given.
            metrics: names of the metrics and scalars, such as "train/loss", whose rows to return; all unless given.

        Raises:
            ValueError: the store has no measurement (of this run) or no such column, or a file cannot be read.
        """
        wanted = COLUMNS if columns is None else columns
        read = columns_to_read(wanted)
        folders = self._folders() if run is None else [self.folder_of(run)]
        found: list[tuple[str, pa.Table]] = []
        for folder in folders:
            found += with_run_files(
                folder, lambda files: [(name, encoded(table)) for name, table in files.tables(read)]
            )
        if not found:
            of_run = "" if run is None else f" of the run {run!r}; it has {self.runs()}"
            raise ValueError(f"expected a store with measurements, found none in {self.path}{of_run}")
        failed = [table for name, table in found if is_failure(name)]
        measured = [table for name, table in reversed(found) if not is_failure(name)]
        del found  # each is forgotten as soon as it is joined to the others
        each = (measured.pop() for _ in range(len(measured)))
        return as_frame(each, failed, columns=wanted, metrics=metrics)

    def compact(self, run: str, progress: Callable[[int, int], object] = lambda done, total: None) -> Compaction | None:
        """Join the files of a run into few, which changes nothing of what is read; None if there is nothing to join.

        Args:
            run: its name.
            progress: called with the number of files that were read and of all of them.

        Raises:
            BlockingIOError: another process does this at the moment.
            ValueError: a compact file cannot be read.
            OSError: the folder cannot be written; nothing is lost.
        """
        try:
            with FileLock(self._lock_path(f"compact {run}"), timeout=0):
                return compact_run(self.folder_of(run), progress)
        except Timeout:
            raise BlockingIOError(f"expected {run} in {self.path} for this process alone; wait for the other") from None

    @property
    def plot(self) -> StorePlots:
        """Figures of the stored runs as figures of Plotly: ``heatmap``, ``profile``, ``means`` and ``compare``.

        ``store.plot.heatmap("two_nn")`` shows one in a notebook; see :mod:`repdyn.plots`.
        """
        from repdyn.plots.accessor import StorePlots

        return StorePlots(self)

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

    def _folders(self) -> list[Path]:
        """Return the folders of the runs, in ascending order."""
        return sorted({path.parent for path in self.path.glob("*/step*.parquet")})

    def _lock_path(self, name: str) -> Path:
        (self.path / ".claims").mkdir(parents=True, exist_ok=True)
        return self.path / ".claims" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"


def _run_name(files: RunFiles) -> str:
    return next(iter(files.tables(["run"])))[1]["run"][0].as_py()


def open_store(path: str | Path) -> Store:
    """Return the store at a path; its folder is created with the first measurement.

    >>> open_store("runs/none").runs()
    []
    """
    return Store(path)


def _folder_name(run: str) -> str:
    """Return a folder name that is unique to a run: without separators or leading dot, and not too long."""
    if not run:
        raise ValueError("expected a run name, got an empty string")
    folder = _quote(run)
    folder = folder.replace(".", "%2E", 1) if folder.startswith(".") else folder
    if len(folder) <= _MAX_NAME_BYTES:
        return folder
    # quoted names contain no plus sign, so no other run has this folder
    digest = hashlib.sha256(run.encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{folder[: _MAX_NAME_BYTES - 1 - _DIGEST_DIGITS]}+{digest}"


def _quote(name: str) -> str:
    """Percent-encode a name for use in a file name: ASCII without separators.

    Raises:
        ValueError: the name contains surrogates, as the name of a folder that is not in UTF-8 does.
    """
    try:
        return quote(name, safe=" ")
    except UnicodeEncodeError as error:
        raise ValueError(f"expected a name that UTF-8 can encode, got {name!r}; choose another one") from error


def _step_name(step: int) -> str:
    if step < 0:
        raise ValueError(f"expected a step >= 0, got {step}")
    return f"step{step:09d}"


def _parse_step(path: Path) -> int:
    digits = path.stem.removeprefix("step").partition("-")[0]
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"expected file names such as step000000008-... in a store, got {path}; move it away")
    return int(digits)
