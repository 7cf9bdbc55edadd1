"""The store: a folder of Parquet files, one for each measured checkpoint.

Files are written atomically, so a store remains readable when a process is killed. Every view can be rebuilt from it;
pandas, DuckDB and Polars read its files directly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd
import pyarrow.parquet as pq
from filelock import BaseFileLock, FileLock, Timeout

from repdyn.store.frame import as_frame
from repdyn.store.leases import Claim
from repdyn.store.parquet_files import read_rows, read_table
from repdyn.store.schema import Row, to_table
from repdyn.utils.atomic_files import write_atomically
from repdyn.utils.urls import is_url

if TYPE_CHECKING:
    from repdyn.diagnosis import RunInsights
    from repdyn.plots.accessor import StorePlots
    from repdyn.probe import Probe

# Suffix of the name of a file with the rows of a failed measurement.
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

    @property
    def location(self) -> str:
        """What a command takes for this store: its path, or the URL of a remote one."""
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
        """Return whether there are rows under a key; False for an unreadable file, which may be replaced."""
        try:
            return (self.path / key.filename).exists() and len(read_table(self.path / key.filename)) > 0
        except ValueError:
            return False

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
        return read_rows(self.path / key.filename)

    def distinct(self, run: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the distinct values of columns in the measured rows of a run; unreadable files are skipped."""
        found: dict[tuple, dict[str, Any]] = {}
        for path in sorted(self.folder_of(run).glob("step*.parquet")):
            with suppress(ValueError):
                table = read_table(path, ["layer", *columns])
                measured = table.filter(table["layer"].is_valid()).group_by(list(columns)).aggregate([])
                found |= {tuple(row.values()): row for row in measured.to_pylist()}
        return list(found.values())

    def discard_failures(self, key: MeasurementKey) -> None:
        """Delete the failures recorded for a step and a probe, for any set of metrics and any commit."""
        for path in self._failure_files(key):
            path.unlink(missing_ok=True)

    def _failure_files(self, key: MeasurementKey) -> list[Path]:
        found = self.folder_of(key.run).glob(f"{_step_name(key.step)}-*-{_FAILED}.parquet")
        return [path for path in found if f"-{_quote(key.probe)}-" in path.name]

    def claim(self, key: MeasurementKey) -> Claim | None:
        """Return a lock on the measurement of a key, to be released afterwards; None if another process holds it.

        The lock of a killed process is released with it.
        """
        return self.claim_name(hashlib.sha256(key.filename.encode()).hexdigest()[:32])

    def claim_name(self, name: str) -> Claim | None:
        """Return a lock of this name, as :meth:`claim` does."""
        return self._lock(name)

    def _lock(self, name: str) -> BaseFileLock | None:
        # not thread-local: acquired by the thread that downloads, released by the one that measures
        lock = FileLock(self.path / ".claims" / f"{name}.lock", thread_local=False)
        (self.path / ".claims").mkdir(parents=True, exist_ok=True)
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
        folders = {path.parent: path for path in self._files()}
        return sorted(read_table(path)["run"][0].as_py() for path in folders.values())

    def steps(self, run: str) -> list[int]:
        """Return the measured steps of a run in ascending order, without those at which measuring failed.

        Raises:
            ValueError: a file has no step in its name.
        """
        files = [path for path in self.folder_of(run).glob("step*.parquet") if not is_failure(path)]
        return sorted({_parse_step(path) for path in files})

    def to_pandas(self, run: str | None = None) -> pd.DataFrame:
        """Return all rows, or those of one run, with a column per field of :class:`repdyn.store.schema.Row`.

        If two files hold the same measurement, the newer one counts; a failure that a later measurement replaced is
        left out. Rows are sorted by run, step, stack, metric, subset, layer and head.

        Raises:
            ValueError: the store has no measurement (of this run), or a file in it cannot be read.
        """
        files = self._files() if run is None else sorted(self.folder_of(run).glob("step*.parquet"))
        if not files:
            of_run = "" if run is None else f" of the run {run!r}; it has {self.runs()}"
            raise ValueError(f"expected a store with measurements, found none in {self.path}{of_run}")
        tables = {path: read_table(path) for path in files}
        measured = [table for path, table in tables.items() if not is_failure(path)]
        return as_frame(measured, [table for path, table in tables.items() if is_failure(path)])

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

    def _files(self) -> list[Path]:
        return sorted(self.path.glob("*/step*.parquet"))


def is_failure(path: Path) -> bool:
    """Return whether a file of a store holds a failed measurement."""
    return path.stem.endswith(f"-{_FAILED}")


def open_store(path: str | Path, *, refresh: bool = True) -> Store:
    """Return the store at a path; its folder is created with the first measurement.

    Args:
        path: a folder, or a URL of fsspec such as ``s3://bucket/prefix`` or ``hf://datasets/ORG/NAME``. A remote store
            is read from a copy in the cache folder.
        refresh: whether to download at once what is new in a remote store.

    Raises:
        ValueError: no such filesystem, or its package is not installed.
        OSError: the remote store cannot be read.

    >>> open_store("runs/none").runs()
    []
    """
    if not is_url(path):
        return Store(path)
    from repdyn.store.remote import RemoteStore  # with the packages of remote filesystems

    store = RemoteStore(str(path))
    if refresh:
        store.refresh()
    return store


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
