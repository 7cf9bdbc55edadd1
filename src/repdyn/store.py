"""The store: a folder of Parquet files, one for each measured checkpoint.

Every file is written whole or not at all, so a process killed at any moment leaves a store that reads. Everything
that is shown anywhere can be rebuilt from here; pandas, DuckDB or Polars read the files as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import BaseFileLock, FileLock, Timeout

from repdyn.files import write_atomically
from repdyn.records import COLUMNS, SCHEMA, Row, to_pandas, to_table

if TYPE_CHECKING:
    from repdyn.probe import Probe

# What makes two rows the same measurement; of several, the newest counts.
_IDENTITY = ["run", "step", "layers", "stack", "layer", "metric", "subset", "settings", "probe"]
# Ends the name of a file that holds a failed measurement, so that it is not taken for a done one.
_FAILED = "failed"
_CHECKPOINT_DIGITS = 12


@dataclass(frozen=True)
class Key:
    """What one file of the store holds: a checkpoint under a probe and a set of metrics."""

    run: str
    step: int
    probe: str
    metrics: str
    checkpoint: str = ""
    """What tells apart two publications of one step, the commit they lie at; "" for a live run."""

    @property
    def failed(self) -> Key:
        """Where the failure to measure this is filed."""
        return replace(self, metrics=f"{self.metrics}-{_FAILED}")

    @property
    def filename(self) -> str:
        parts = [f"step{self.step:09d}", self.checkpoint[:_CHECKPOINT_DIGITS], self.probe, self.metrics]
        return f"{_as_folder(self.run)}/{'-'.join(filter(None, parts))}.parquet"


class Store:
    """A folder of measurements; see :func:`open_store`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __contains__(self, key: Key) -> bool:
        """Whether there are rows under a key; one that does not read has none, and may be replaced."""
        try:
            return (self.path / key.filename).exists() and bool(self.read(key))
        except ValueError:
            return False

    def write(self, key: Key, rows: Sequence[Row]) -> Path:
        """Write the rows of one checkpoint, whole or not at all; the same key is replaced.

        Raises:
            ValueError: there are no rows.
        """
        if not rows:
            raise ValueError(f"expected at least one row for {key.filename}, got none")
        table = to_table(rows)
        target = self.path / key.filename
        write_atomically(target, lambda temporary: pq.write_table(table, temporary))
        return target

    def read(self, key: Key) -> list[Row]:
        """The rows written under a key.

        Raises:
            ValueError: there are none, or the file cannot be read.
        """
        return read_rows(self.path / key.filename)

    def discard_failures(self, key: Key) -> None:
        """Forget that a step could not be measured on a probe, whatever was to be measured and at whichever commit."""
        for path in self.folder_of(key.run).glob(f"step{key.step:09d}-*-{_FAILED}.parquet"):
            if f"-{key.probe}-" in path.name:
                path.unlink(missing_ok=True)

    def claim(self, key: Key) -> BaseFileLock | None:
        """The right to measure a key, to be released when done; None while another process has it.

        The claim of a killed process ends with it.
        """
        # a claim is made where the download starts and released where the measurement ends: in another thread
        name = hashlib.sha256(key.filename.encode()).hexdigest()[:32]
        lock = FileLock(self.path / ".claims" / f"{name}.lock", thread_local=False)
        (self.path / ".claims").mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock

    def save_probe(self, probe: Probe) -> Path:
        """Keep the probe beside its measurements, so that any checkpoint can later be measured on the same tokens."""
        target = self.probe_path(probe.hash)
        if not target.exists():
            write_atomically(target, probe.save)
        return target

    def probe_path(self, probe_hash: str) -> Path:
        return self.path / "probes" / f"{probe_hash}.safetensors"

    def folder_of(self, run: str) -> Path:
        return self.path / _as_folder(run)

    def runs(self) -> list[str]:
        """Names of the runs that have at least one measured checkpoint."""
        folders = {path.parent: path for path in self._files()}
        return sorted(_read(path)["run"][0].as_py() for path in folders.values())

    def steps(self, run: str) -> list[int]:
        """Measured steps of a run, ascending; those at which measuring failed are not among them."""
        files = [path for path in self.folder_of(run).glob("step*.parquet") if not path.stem.endswith(f"-{_FAILED}")]
        return sorted({int(path.name.removeprefix("step").partition("-")[0]) for path in files})

    def to_pandas(self, run: str | None = None) -> pd.DataFrame:
        """All rows (of one run, where it is named), one column per field of :class:`repdyn.records.Row`.

        Where two files hold the same measurement the newest counts. Sorted by run, step, stack, metric, subset, layer.

        Raises:
            ValueError: the store has no measurement (of this run), or a file in it cannot be read.
        """
        files = self._files() if run is None else sorted(self.folder_of(run).glob("step*.parquet"))
        if not files:
            of_run = "" if run is None else f" of the run {run!r}; it has {self.runs()}"
            raise ValueError(f"expected a store with measurements, found none in {self.path}{of_run}")
        frame = to_pandas(pa.concat_tables([_read(path) for path in files]))
        frame = frame.sort_values("measured_at", kind="stable").drop_duplicates(_IDENTITY, keep="last")
        order = ["run", "step", "stack", "metric", "subset", "layer"]
        return frame.sort_values(order, kind="stable").reset_index(drop=True)

    def _files(self) -> list[Path]:
        return sorted(self.path.glob("*/step*.parquet"))


def read_rows(path: Path) -> list[Row]:
    """The rows of one file of a store.

    Raises:
        ValueError: it cannot be read.
    """
    return [Row(**record) for record in _read(path).to_pylist()]


def open_store(path: str | Path) -> Store:
    """The store at a path; the folder is made with the first measurement.

    >>> open_store("runs/none").runs()
    []
    """
    return Store(path)


def _as_folder(run: str) -> str:
    """A run's name as one folder name: no separator, no leading dot, and no two names alike."""
    if not run:
        raise ValueError("expected a run name, got an empty string")
    folder = quote(run, safe=" ")
    return folder.replace(".", "%2E", 1) if folder.startswith(".") else folder


def _read(path: Path) -> pa.Table:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"expected a Parquet file of measurements, got {path}, which does not read: {error}"
        ) from error
    # a column that may be empty is empty in files written before it existed
    for name in COLUMNS:
        if name not in table.column_names and SCHEMA.field(name).nullable:
            table = table.append_column(SCHEMA.field(name), pa.nulls(len(table), SCHEMA.field(name).type))
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise ValueError(f"expected the columns of a measurement in {path}, missing {', '.join(missing)}")
    return table.select(list(COLUMNS))
