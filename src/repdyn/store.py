"""The store: a folder of Parquet files, one for each measured checkpoint.

Every file is written whole or not at all, so a process killed at any moment leaves a store that reads. Everything
that is shown anywhere can be rebuilt from here; pandas, DuckDB or Polars read the files as they are.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from repdyn.records import COLUMNS, Row, to_pandas, to_table

if TYPE_CHECKING:
    from repdyn.probe import Probe

# What makes two rows the same measurement; of several, the newest counts.
_IDENTITY = ["run", "step", "layer", "metric", "subset", "settings", "probe"]


@dataclass(frozen=True)
class Key:
    """What one file of the store holds: a checkpoint under a probe and a set of metrics."""

    run: str
    step: int
    probe: str
    metrics: str

    @property
    def filename(self) -> str:
        return f"{_as_folder(self.run)}/step{self.step:09d}-{self.probe}-{self.metrics}.parquet"


class Store:
    """A folder of measurements; see :func:`open_store`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __contains__(self, key: Key) -> bool:
        return (self.path / key.filename).exists()

    def write(self, key: Key, rows: Sequence[Row]) -> Path:
        """Write the rows of one checkpoint, whole or not at all; the same key is replaced.

        Raises:
            ValueError: there are no rows.
        """
        if not rows:
            raise ValueError(f"expected at least one row for {key.filename}, got none")
        table = to_table(rows)
        target = self.path / key.filename
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, lambda temporary: pq.write_table(table, temporary))
        return target

    def save_probe(self, probe: Probe) -> Path:
        """Keep the probe beside its measurements, so that any checkpoint can later be measured on the same tokens."""
        target = self.probe_path(probe.hash)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, probe.save)
        return target

    def probe_path(self, probe_hash: str) -> Path:
        return self.path / "probes" / f"{probe_hash}.safetensors"

    def folder_of(self, run: str) -> Path:
        return self.path / _as_folder(run)

    def runs(self) -> list[str]:
        """Names of the runs that have at least one measured checkpoint."""
        folders = {path.parent: path for path in self._files()}
        return sorted(pq.read_table(path, columns=["run"])["run"][0].as_py() for path in folders.values())

    def steps(self, run: str) -> list[int]:
        """Measured steps of a run, ascending."""
        files = self.folder_of(run).glob("step*.parquet")
        return sorted({int(path.name.removeprefix("step").partition("-")[0]) for path in files})

    def to_pandas(self, run: str | None = None) -> pd.DataFrame:
        """All rows (of one run, where it is named), one column per field of :class:`repdyn.records.Row`.

        Where two files hold the same measurement the newest counts. Sorted by run, step, metric, subset, layer.

        Raises:
            ValueError: the store has no measurement (of this run), or a file in it cannot be read.
        """
        files = self._files() if run is None else sorted(self.folder_of(run).glob("step*.parquet"))
        if not files:
            of_run = "" if run is None else f" of the run {run!r}; it has {self.runs()}"
            raise ValueError(f"expected a store with measurements, found none in {self.path}{of_run}")
        frame = pd.concat([_read(path) for path in files], ignore_index=True)
        frame = frame.sort_values("measured_at", kind="stable").drop_duplicates(_IDENTITY, keep="last")
        order = ["run", "step", "metric", "subset", "layer"]
        return frame.sort_values(order, kind="stable").reset_index(drop=True)

    def _files(self) -> list[Path]:
        return sorted(self.path.glob("*/step*.parquet"))


def open_store(path: str | Path) -> Store:
    """The store at a path; the folder is made with the first measurement.

    >>> open_store("runs/none").runs()
    []
    """
    return Store(path)


def write_atomically(target: Path, write: Callable[[str], object]) -> None:
    """Let ``write(path)`` fill a temporary file, then put it in the target's place in one step."""
    handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=target.parent)
    os.close(handle)
    try:
        write(name)
        with open(name, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _as_folder(run: str) -> str:
    """A run's name as one folder name: no separator, no leading dot, and no two names alike."""
    if not run:
        raise ValueError("expected a run name, got an empty string")
    folder = quote(run, safe=" ")
    return folder.replace(".", "%2E", 1) if folder.startswith(".") else folder


def _read(path: Path) -> pd.DataFrame:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"expected a Parquet file of measurements, got {path}, which does not read: {error}"
        ) from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise ValueError(f"expected the columns of a measurement in {path}, missing {', '.join(missing)}")
    return to_pandas(table.select(list(COLUMNS)))
