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

from repdyn.store.schema import COLUMNS, RENAMED_METRICS, SCHEMA, Row, to_pandas, to_table
from repdyn.utils.atomic_files import write_atomically

if TYPE_CHECKING:
    from repdyn.probe import Probe

# What makes two rows the same measurement; of several, the newest counts.
_IDENTITY = ["run", "step", "layers", "stack", "layer", "head", "metric", "subset", "settings", "probe"]
# Ends the name of a file that holds a failed measurement, so that it is not taken for a done one.
_FAILED = "failed"
_CHECKPOINT_DIGITS = 12
# File systems take names of 255 bytes.
_LONGEST_FOLDER = 255
_DIGEST_DIGITS = 16


@dataclass(frozen=True)
class MeasurementKey:
    """What one file of the store holds: a checkpoint under a probe and a set of metrics."""

    run: str
    step: int
    probe: str
    metrics: str
    checkpoint: str = ""
    """What tells apart two publications of one step, the commit they lie at; "" for a live run."""

    @property
    def failed(self) -> MeasurementKey:
        """The key under which a failure to measure this is stored."""
        return replace(self, metrics=f"{self.metrics}-{_FAILED}")

    @property
    def filename(self) -> str:
        """The path in the store: always a file in a folder of the store, whatever the parts of the key are."""
        parts = [_step(self.step), *map(_quoted, (self.checkpoint[:_CHECKPOINT_DIGITS], self.probe, self.metrics))]
        return f"{_as_folder(self.run)}/{'-'.join(filter(None, parts))}.parquet"


class Store:
    """A folder of measurements; see :func:`open_store`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __contains__(self, key: MeasurementKey) -> bool:
        """Whether there are rows under a key; one that does not read has none, and may be replaced."""
        try:
            return (self.path / key.filename).exists() and bool(self.read(key))
        except ValueError:
            return False

    def write(self, key: MeasurementKey, rows: Sequence[Row]) -> Path:
        """Write the rows of one checkpoint, whole or not at all; the same key is replaced.

        Raises:
            ValueError: there are no rows.
        """
        if not rows:
            raise ValueError(f"expected at least one row for {key.filename}, got none")
        table = to_table(rows)
        target = self.path / key.filename
        # without checksums a flipped bit on the disk would be another number
        write_atomically(target, lambda temporary: pq.write_table(table, temporary, write_page_checksum=True))
        return target

    def read(self, key: MeasurementKey) -> list[Row]:
        """The rows written under a key.

        Raises:
            ValueError: there are none, or the file cannot be read.
        """
        return read_rows(self.path / key.filename)

    def discard_failures(self, key: MeasurementKey) -> None:
        """Forget that a step could not be measured on a probe, whatever was to be measured and at whichever commit."""
        for path in self.folder_of(key.run).glob(f"{_step(key.step)}-*-{_FAILED}.parquet"):
            if f"-{_quoted(key.probe)}-" in path.name:
                path.unlink(missing_ok=True)

    def claim(self, key: MeasurementKey) -> BaseFileLock | None:
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
        return self.path / "probes" / f"{_quoted(probe_hash)}.safetensors"

    def folder_of(self, run: str) -> Path:
        return self.path / _as_folder(run)

    def alerts_path(self, run: str) -> Path:
        """Return the path of the alert rules of a run."""
        former = self.folder_of(run) / "alarms.yaml"  # what stores of version 0.1 call it
        return former if former.exists() else self.folder_of(run) / "alerts.yaml"

    def runs(self) -> list[str]:
        """Names of the runs that have at least one measured checkpoint."""
        folders = {path.parent: path for path in self._files()}
        return sorted(_read(path)["run"][0].as_py() for path in folders.values())

    def steps(self, run: str) -> list[int]:
        """Measured steps of a run, ascending; those at which measuring failed are not among them.

        Raises:
            ValueError: a file has no step in its name.
        """
        files = [path for path in self.folder_of(run).glob("step*.parquet") if not path.stem.endswith(f"-{_FAILED}")]
        return sorted({_step_of(path) for path in files})

    def to_pandas(self, run: str | None = None) -> pd.DataFrame:
        """All rows (of one run, where it is named), one column per field of :class:`repdyn.store.schema.Row`.

        Where two files hold the same measurement the newest counts. Sorted by run, step, stack, metric, subset, layer
        and head.

        Raises:
            ValueError: the store has no measurement (of this run), or a file in it cannot be read.
        """
        files = self._files() if run is None else sorted(self.folder_of(run).glob("step*.parquet"))
        if not files:
            of_run = "" if run is None else f" of the run {run!r}; it has {self.runs()}"
            raise ValueError(f"expected a store with measurements, found none in {self.path}{of_run}")
        frame = to_pandas(pa.concat_tables([_read(path) for path in files]))
        frame = frame.sort_values("measured_at", kind="stable").drop_duplicates(_IDENTITY, keep="last")
        order = ["run", "step", "stack", "metric", "subset", "layer", "head"]
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
    """A run's name as one folder name: no separator, no leading dot, no two names alike, and none too long."""
    if not run:
        raise ValueError("expected a run name, got an empty string")
    folder = _quoted(run)
    folder = folder.replace(".", "%2E", 1) if folder.startswith(".") else folder
    if len(folder) <= _LONGEST_FOLDER:
        return folder
    # no quoted name has a plus sign, so no other run has this folder
    digest = hashlib.sha256(run.encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{folder[: _LONGEST_FOLDER - 1 - _DIGEST_DIGITS]}+{digest}"


def _quoted(name: str) -> str:
    """A name as a part of a file's name: without separators and of ASCII alone.

    Raises:
        ValueError: it holds what no text can, as the name of a folder does that is not in UTF-8.
    """
    try:
        return quote(name, safe=" ")
    except UnicodeEncodeError as error:
        raise ValueError(f"expected a name that UTF-8 can write, got {name!r}; choose another one") from error


def _step(step: int) -> str:
    if step < 0:
        raise ValueError(f"expected a step >= 0, got {step}")
    return f"step{step:09d}"


def _step_of(path: Path) -> int:
    digits = path.stem.removeprefix("step").partition("-")[0]
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"expected files of a store such as step000000008-..., got {path}; move it away")
    return int(digits)


def _read(path: Path) -> pa.Table:
    try:
        # as one file: where a folder has the name, pyarrow would read all that lies in it
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        table.validate(full=True)
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"expected a Parquet file of measurements, got {path}, which does not read: {error}"
        ) from error
    missing = [name for name in COLUMNS if name not in names]
    unknown = [name for name in names if name not in COLUMNS]
    # a column that may be empty is empty in files written before it existed, and those have no columns of their own
    if any(not SCHEMA.field(name).nullable for name in missing) or (missing and unknown):
        instead = f", and with unknown ones: {', '.join(map(repr, unknown))}" if unknown else ""
        raise ValueError(
            f"expected the columns of a measurement in {path}, missing {', '.join(missing)}{instead}; move it away"
        )
    for name in missing:
        table = table.append_column(SCHEMA.field(name), pa.nulls(len(table), SCHEMA.field(name).type))
    return _typed(table, path)


def _typed(table: pa.Table, path: Path) -> pa.Table:
    """The columns of a measurement, each of its type; large and small variants of one are the same."""
    if len(table) == 0:
        raise ValueError(f"expected measurements in {path}, got none; move it away")
    for field in SCHEMA:
        found = table.schema.get_all_field_indices(field.name)
        column = table.column(found[0])
        if len(found) > 1:
            raise ValueError(f"expected one column {field.name} in {path}, got {len(found)}; move it away")
        if not _is_alike(column.type, field.type):
            raise ValueError(
                f"expected {field.type} in the column {field.name} of {path}, got {column.type}; move it away"
            )
        if column.null_count and not field.nullable:
            raise ValueError(f"expected a value in each row of {field.name} in {path}, got none in some; move it away")
    try:
        return _with_current_names(table.select(list(COLUMNS)).cast(SCHEMA))
    except pa.ArrowException as error:
        raise ValueError(f"expected values of a measurement in {path}, got others: {error}; move it away") from error


def _with_current_names(table: pa.Table) -> pa.Table:
    metric = table.column("metric")
    if RENAMED_METRICS.keys().isdisjoint(metric.unique().to_pylist()):
        return table
    names = [RENAMED_METRICS.get(name, name) for name in metric.to_pylist()]
    return table.set_column(table.column_names.index("metric"), SCHEMA.field("metric"), pa.array(names, pa.string()))


def _is_alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, _is_text)
    return pa.types.is_null(found) or any(kind(found) and kind(wanted) for kind in kinds)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
