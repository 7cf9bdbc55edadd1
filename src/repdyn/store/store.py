"""The store: a folder of Parquet files, from which every view can be rebuilt.

Files are written atomically, one for each measurement, and are never moved or deleted: pandas,
DuckDB and Polars read them directly, and two processes that write into one store are in no other's
way.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from repdyn.store.counting import BY_LAYER, BY_METRIC, READ_FIRST, columns_to_read, counted
from repdyn.store.files import (
    MeasurementKey,
    folder_name,
    is_whole,
    own_folder,
    quoted,
    read_rows,
    read_tables,
    write_table,
)
from repdyn.store.meanings import with_meanings
from repdyn.store.runs import RUN_FILE, History, Run, RunPath, run_in, weights_of
from repdyn.store.schema import COLUMNS, Row, to_table
from repdyn.utils.extras import require
from repdyn.utils.files import is_url, write_atomically
from repdyn.utils.redaction import redacted

if TYPE_CHECKING:
    from threading import Thread

    import pandas as pd

    from repdyn.probe import Probe

log = logging.getLogger(__name__)

_SETTLED_SECONDS = 2.0
"""Age of the last change of a folder from which on a later change is certain to have another time.
"""

_ID_BYTES = 4
RUN_STORE = "repdyn"
"""Name of the store in the folder of a run."""


class Store:
    """A folder of measurements; see :func:`repdyn.open_store`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        # the histories, with the state of the folder in which they were found
        self._paths: tuple[object, list[RunPath]] = (None, [])

    @property
    def location(self) -> str:
        """Return the path of the store, or the URL of a remote one, as commands accept it."""
        return str(self.path)

    @property
    def output(self) -> Path:
        """Return the folder for figures, reports and exports of which no other is named."""
        return self.path

    def refresh(self) -> None:
        """Download what is new in a remote store; a local one is always current."""

    def drain(self, seconds: float = 0.0) -> str | None:
        """Wait for the uploads to a remote store; return what is wrong with them, None for a local
        store.
        """

    def _written(self) -> Thread | None:
        """Let a remote store upload what was written; returns at once, with the thread that does
        so.
        """

    # one run, by its id

    def begin_run(
        self,
        name: str,
        configuration: Mapping[str, Any] | None = None,
        *,
        parent: str | None = None,
        parent_step: int | None = None,
        parent_store: str | Path | None = None,
    ) -> Run:
        """Begin a new run in a folder of its own, whatever the store has of the same name.

        Args:
            name: under which it is shown.
            configuration: values that JSON can represent; others are written as texts, without
                passwords and tokens.
            parent: id of the run that it goes on from.
            parent_step: step at which it leaves its parent.
            parent_store: folder or URL of the store with the parent; this one unless given, or if
                it has the parent.

        Raises:
            ValueError: the name is empty, or no text that UTF-8 can encode.
            OSError: the folder cannot be written.
        """
        folder_name(name)  # refuses an empty one
        elsewhere = None
        if parent is not None and parent_store is not None and self.find_run(parent) is None:
            elsewhere = str(parent_store)
            if not is_url(parent_store):  # relative, so that both can be moved together
                relative = os.path.relpath(Path(parent_store).resolve(), self.path.resolve())
                elsewhere = Path(relative).as_posix()
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        run_id = f"{name}--{secrets.token_hex(_ID_BYTES)}"  # random, whatever seeds are set
        run = Run(
            id=run_id,
            name=name,
            started=started,
            parent=parent,
            parent_step=parent_step,
            parent_store=elsewhere,
            configuration=dict(configuration or {}),
        )
        # not by asdict(), which would copy a model that is among the hyperparameters
        content = json.dumps(vars(run), indent=2, skipkeys=True, default=_as_json)
        # a store may be shared, and hyperparameters hold tokens
        content = redacted(content) + "\n"
        folder = self.folder_of(run_id)
        folder.mkdir(parents=True)
        write_atomically(folder / RUN_FILE, lambda path: path.write_text(content, encoding="utf-8"))
        self._written()
        return run

    def find_run(self, run: str) -> Run | None:
        """Return the run of an id; None if the store has none."""
        return run_in(self.folder_of(run))

    def folder_of(self, run: str) -> Path:
        """Return the folder of the run of an id, which need not exist."""
        return self.path / folder_name(run)

    def __contains__(self, key: MeasurementKey) -> bool:
        """Return whether there are rows under a key; False for an unreadable file, which may be
        replaced.

        A file that is as this package wrote it is known by its checksum; another one is read.
        """
        return is_whole(self.path / key.filename) or bool(self.rows_of(key))

    def empty_error(self) -> ValueError:
        """Return the error of a store without measurements."""
        inside = self.path / RUN_STORE
        hint = f"; did you mean {inside}?" if inside.is_dir() else ""
        return ValueError(
            f"expected a store with measurements, found none in {self.location}{hint}"
        )

    def write(self, key: MeasurementKey, rows: Sequence[Row], probe: Probe | None = None) -> Path:
        """Write the rows of one checkpoint atomically, in place of those under the same key, and
        their probe, if given; ValueError if there are none."""
        # a file without rows would count as a measurement
        if not rows:
            raise ValueError(f"expected at least one row for {key.filename}, got none")
        target = self.path / key.filename
        own_folder(target.parent)  # refuses that of another run
        if probe is not None:
            self.save_probe(probe)
        write_table(target, with_meanings(to_table(rows)))
        self._written()
        return target

    def read(self, key: MeasurementKey) -> list[Row]:
        """Return the rows written under a key; ValueError if there are none or the file cannot be
        read.
        """
        try:
            return read_rows(self.path / key.filename)
        except FileNotFoundError:
            raise ValueError(
                f"expected rows of {key.run} at step {key.step} in {self.path}, found none"
            ) from None

    def rows_of(self, key: MeasurementKey) -> list[Row]:
        """Return the rows written under a key; none where there is no file that can be read."""
        try:
            return self.read(key)
        except ValueError:
            return []

    def find_measurement(
        self, key: MeasurementKey, weights: str | None
    ) -> tuple[list[Row], Path] | None:
        """Return the rows of a measurement of the weights with this fingerprint, and the folder of
        the run that measured them.

        That may be the run of the key, one of its ancestors, or any that went on from one of these;
        None if none of them has.
        """
        run = self.find_run(key.run)
        if run is None or weights is None:
            return None
        # the name of a file says step, probe and metrics, whichever run it is of
        name = Path(key.filename).name
        for folder in dict.fromkeys(History(self.path).family(run)):
            if weights_of(folder / name) == weights:
                return read_rows(folder / name), folder
        return None

    def save_probe(self, probe: Probe) -> Path:
        """Save the probe in the store, so that further checkpoints can be measured on the same
        tokens.
        """
        target = self.probe_path(probe.hash)
        # the name is the hash of the content: what is there is the same
        if not target.exists():
            write_atomically(target, probe.save)
            self._written()
        return target

    def probe_path(self, probe_hash: str) -> Path:
        """Return the path of a probe, which need not be there."""
        return self.path / "probes" / f"{quoted(probe_hash)}.safetensors"

    # histories, by the name that views show or by the id of their last run

    def runs(self) -> list[str]:
        """Return the names of all histories with at least one measured checkpoint.

        The second of the same name is called ``NAME (2, 2026-11-26 02:31)``, with the UTC time at
        which it began.
        """
        return [path.name for path in self.paths()]

    def paths(self) -> list[RunPath]:
        """Return all histories with at least one measured checkpoint."""
        # a view asks many times: folders are looked through again only after a change
        state = self._state()
        if state is None or state != self._paths[0]:
            self._paths = (state, History(self.path).paths())
        return self._paths[1]

    def path_of(self, run: str) -> RunPath | None:
        """Return the history of a name or of the id of its last run; None if there is none."""
        for path in self.paths():
            if run in {path.name, path.run.id}:
                return path
        # one that another run goes on from is in no list, and has a path all the same
        ancestor = self.find_run(run)
        return None if ancestor is None else History(self.path).path_to(ancestor, ancestor.name)

    def alerts_path(self, run: str | RunPath) -> Path:
        """Return the path of the alert rules of a run."""
        path = run if isinstance(run, RunPath) else self.path_of(run) or run
        return self.folder_of(path.run.id if isinstance(path, RunPath) else path) / "alerts.yaml"

    def steps(self, run: str) -> list[int]:
        """Return the measured steps of a history in ascending order, without those at which
        measuring failed.
        """
        path = self.path_of(run)
        return [] if path is None else path.steps()

    def distinct(self, run: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the distinct values of columns in the measured rows of a history; unreadable files
        are skipped.
        """
        path = self.path_of(run)
        files = [] if path is None else path.files()
        table = read_tables(files, ["layer", *columns], damaged=lambda error: None)
        rows = table.filter(table["layer"].is_valid()).select(list(columns))
        if len(rows) == 0:
            return []
        # groups without an aggregate are the distinct rows; with threads their order would change
        return rows.group_by(list(columns), use_threads=False).aggregate([]).to_pylist()

    def to_pandas(
        self,
        run: str | RunPath | None = None,
        *,
        columns: Sequence[str] | None = None,
        categorical: bool = False,
    ) -> pd.DataFrame:
        """Return all rows, or those of one history, with a column per field of
        :class:`repdyn.store.schema.Row`: what is read first comes first.

        Of two measurements of the same thing the newer counts; a failure that a later measurement
        replaced is left out. Rows are sorted by run, step, stack, metric, subset, layer and head.

        Args:
            run: a history, its name, or the id of its last run; all unless given. What several have
                in common is in each of them, with its name in the column ``run``.
            columns: names of the columns to return, in this order; all unless given.
            categorical: return texts as ordered categoricals and columns of one value as views that
                cannot be written to, which take a fraction of the memory, and the rows in the order
                in which views are drawn: in each run the values of layers by step and layer, those
                of heads, then scalars and failures.

        A file that cannot be read is left out, and named in a warning.

        Raises:
            ValueError: the store has no measurement (of this run), or no such column.
        """
        require("views", "a data frame", "pandas")
        from repdyn.store.frame import as_frame, with_strings

        names = list(COLUMNS if categorical else READ_FIRST) if columns is None else list(columns)
        whole = [self._whole(run, columns_to_read(names))]  # the frame takes the place of the table
        frame = as_frame(whole.pop(), names, BY_LAYER if categorical else BY_METRIC)
        return frame if categorical else with_strings(frame).copy()  # which can be written to

    def to_arrow(
        self, run: str | RunPath | None = None, *, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return the rows of :meth:`to_pandas`, in its order, as a table of Arrow.

        Texts are dictionaries. This needs no package beyond those that a tracker needs; Polars and
        DuckDB take the table as it is.

        Args:
            run: as for :meth:`to_pandas`.
            columns: as for :meth:`to_pandas`.

        Raises:
            ValueError: the store has no measurement (of this run), or no such column.
        """
        names = list(READ_FIRST if columns is None else columns)
        # rows are compared by the codes of their texts: those of one dictionary
        whole = self._whole(run, columns_to_read(names)).unify_dictionaries()
        return whole.select(names).take(counted(whole))

    def _whole(self, run: str | RunPath | None, columns: Sequence[str]) -> pa.Table:
        """Return columns of all rows, or of those of one history, whether they count or not."""
        if run is None:
            paths = self.paths()
        elif isinstance(run, RunPath):
            paths = [run]
        else:
            path_of_run = self.path_of(run)
            paths = [] if path_of_run is None else [path_of_run]
        tables = [table for path in paths for table in self._tables(path, columns)]
        if tables:
            return pa.concat_tables(tables)
        if run is None:
            raise self.empty_error()
        which = ", whose files cannot be read" if paths else f"; it has {self.runs()}"
        raise ValueError(
            f"expected a store with measurements, found none in {self.path} of the run "
            f"{run!r}{which}"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    def _tables(self, path: RunPath, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of a history under its name."""
        if path.missing is not None:
            _warn_once(path.missing)
        for segment in path.segments:
            table = read_tables(segment.files(), columns, damaged=_warn_of_damage)
            if len(table) == 0:
                continue
            # a file of many measurements may have steps after the next run left
            if segment.last_step is not None:
                table = table.filter(pc.field("step") <= segment.last_step)
            # one text for all rows: the name of the history in place of those of its runs
            name = pa.DictionaryArray.from_arrays(
                pa.nulls(len(table), pa.int32()).fill_null(0), [path.name]
            )
            yield table.set_column(table.column_names.index("run"), table.schema.field("run"), name)

    def _state(self) -> object:
        """Return what changes when there are other files in the folder of a run; None where that is
        not certain.
        """
        try:
            with os.scandir(self.path) as entries:
                times = {entry.name: entry.stat().st_mtime_ns for entry in entries}
        except OSError:
            return None
        # two changes at once have one time on file systems that keep seconds: not certain yet
        age_ns = time.time_ns() - max(times.values(), default=0)
        return times if age_ns > 1e9 * _SETTLED_SECONDS else None


def _as_json(value: Any) -> Any:
    """Return what JSON has in place of a value that it lacks: a dictionary of a mapping, a short
    text of others.
    """
    if isinstance(value, Mapping):
        return dict(value)
    try:
        return shorten(str(value), 200)
    except Exception:  # whatever a hyperparameter raises, the training goes on
        return type(value).__name__


@cache
def _warn_once(message: str) -> None:
    log.warning(message)


def _warn_of_damage(error: ValueError) -> None:
    _warn_once(f"{error}; it is left out")
