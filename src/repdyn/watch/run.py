"""One run that is followed: the files in its folder, its rows in memory, and what the table says of it."""

from __future__ import annotations

import hashlib
import math
import os
import time
from datetime import datetime
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from repdyn.diagnosis import DescribedRun, Status, described_runs
from repdyn.store import Store
from repdyn.store.files import ROW_FILE, is_failure, read_tables, step_of
from repdyn.store.find import RUN_STORE
from repdyn.store.runs import RunPath
from repdyn.store.schema import FINISHED, LOSS, PROBE_LOSS
from repdyn.tables.series import thin
from repdyn.utils.records import json_values, read_yaml

_SETTLED_NS = 2_000_000_000
"""Age of a folder's time of change from which every later change is certain to alter it."""
_FULL_LOOK_SECONDS = 60.0
"""Interval at which every file is looked at: one that is overwritten in place leaves the folder's time alone."""

Stamp: TypeAlias = tuple[int, int, int]
"""Time of change, size and number of a file: another stamp is another content."""


class WatchedFolder:
    """A folder in which files of measurements appear.

    Files of a store are written under another name and renamed, which changes the folder's own time. A folder whose
    time stays is not listed again, so that a look at 100,000 files costs as much as one at their folders.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamps: dict[str, Stamp] = {}
        self._folder_time = -1
        self._full_look = 0.0

    def look(self, at_all: bool = False) -> tuple[set[str], set[str]]:
        """Return the files that are new or have another content since the last look, and those that are gone.

        With ``at_all`` the files are looked at even if the folder's time stays. An OSError if the folder is gone.
        """
        folder_time, now = self.path.stat().st_mtime_ns, time.monotonic()
        if not at_all and folder_time == self._folder_time and now - self._full_look < _FULL_LOOK_SECONDS:
            return set(), set()
        found: dict[str, Stamp] = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                if ROW_FILE.fullmatch(entry.name):
                    try:
                        status = entry.stat()
                        found[entry.name] = status.st_mtime_ns, status.st_size, status.st_ino
                    except FileNotFoundError:  # deleted since it was listed
                        continue
        is_old = time.time_ns() - folder_time > _SETTLED_NS
        self._folder_time, self._full_look = folder_time if is_old else -1, now
        before, self._stamps = self._stamps, found
        return {name for name, stamp in found.items() if before.get(name) != stamp}, before.keys() - found.keys()


class Checkpoint(NamedTuple):
    """The fields of a checkpoint that the table of runs shows."""

    step: int
    measured_at: str
    loss: float
    """Training loss; NaN if it is not stored."""
    probe_loss: float
    """Loss on the probe; NaN if it is not stored."""
    failed: bool
    finished: bool
    """Whether it is that of a finished model, whose step is none of a training."""


_READ = ("model", "step", "stage", "metric", "value", "measured_at")
"""Columns of a file that the table shows something of."""


STATUSES: tuple[Status, ...] = ("failed", "watch", "healthy", "unknown")
"""In the order of the table."""
METRICS = ("two_nn", "anisotropy")
"""Metrics of which the table shows the mean over layers."""
_CURVE_POINTS = 60
_KEY_DIGITS = 12
_DESCRIBING_SHARE = 0.05
"""Largest share of the time that describing one run takes."""


class WatchedRun:
    """A history whose files are looked through once each, described at most every ``interval`` seconds.

    Its rows are read when it is described or shown, and are not kept.
    """

    def __init__(self, store: Store, path: RunPath, interval: float) -> None:
        self.store = store
        self.path = path
        self.model = ""
        """The model of the run, once a file is read."""
        self.checkpoints: dict[str, list[Checkpoint]] = {}
        """By the path of the file with their rows."""
        self.damaged: dict[str, str] = {}
        """Why a file could not be read, by its path."""
        self.version = 0
        """Number of the content: it grows with every change of the rows."""
        self._judged = _unknown("Not described yet.")
        folder = path.parts[-1].folder
        self.key = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).hexdigest()[:_KEY_DIGITS]
        """Name of the run in addresses."""
        self._folders = [(part, WatchedFolder(part.folder)) for part in path.parts]
        self._unread: list[str] = []
        self._interval = interval
        self._described = 0
        self._due = 0.0
        self._total: int | None = None

    @property
    def n_unread(self) -> int:
        return len(self._unread)

    @property
    def is_empty(self) -> bool:
        """Return whether the folder has no files of measurements."""
        return not (self.checkpoints or self.damaged or self._unread)

    def look(self) -> bool:
        """Look for new, changed and deleted files; return whether rows were dropped.

        Raises:
            OSError: the folder is gone.
        """
        changed, gone = set[str](), set[str]()
        for part, folder in self._folders:
            # a damaged file may be one that is still being copied
            found, lost = folder.look(at_all=bool(self.damaged))
            changed |= {str(part.folder / name) for name in found if part.has_step(step_of(name))}
            gone |= {str(part.folder / name) for name in lost}
        for name in gone:
            self._forget(name)
        if changed or gone:
            self._unread = sorted({*self._unread, *changed} - gone, key=lambda name: Path(name).name)
        self.version += bool(gone)
        return bool(gone)

    def read(self, limit: int) -> bool:
        """Read at most ``limit`` files, the last steps first; return whether there were any."""
        names, self._unread = self._unread[-limit:], self._unread[: max(0, len(self._unread) - limit)]
        for name in reversed(names):
            self._forget(name)
            try:
                self._put(name)
            except FileNotFoundError:  # the next look tells
                continue
            except ValueError as error:
                self.damaged[name] = str(error)
        self.version += bool(names)
        return bool(names)

    def is_due(self) -> bool:
        """Return whether it is to be described: it has changed, is read to the end, and some time has passed."""
        return not self._unread and self._described != self.version and time.monotonic() >= self._due

    def describe(self) -> None:
        """Judge the run by all of its rows: its status, and the means over layers at the last step."""
        started, self._described = time.monotonic(), self.version
        try:
            self._total = self._total or total_steps(self.store.path)
            described = described_runs(self.store, [self.path.name]) if self.checkpoints else []
            worst = min(described, key=lambda one: STATUSES.index(one.status[0]), default=None)
        except ValueError as error:  # rows that cannot be judged together, such as those of two models
            self._judged = _unknown(str(error))
        else:
            self._judged = _unknown("Nothing is measured yet.") if worst is None else _judgement(worst)
        ended = time.monotonic()
        self._due = ended + max(self._interval, (ended - started) / _DESCRIBING_SHARE)

    def summary(self, label: str) -> dict[str, Any]:
        """Return what the table shows of the run, as values of JSON."""
        known = sorted(chain.from_iterable(self.checkpoints.values()), key=lambda one: one.step)
        measured = [one for one in known if not one.failed]
        last = max(known, key=lambda one: one.measured_at, default=None)
        # that of the training, or of a sweep that on the probe
        losses = {one.step: one.loss for one in measured if not math.isnan(one.loss)}
        losses = losses or {one.step: one.probe_loss for one in measured if not math.isnan(one.probe_loss)}
        steps, values = list(losses), list(losses.values())
        shown = thin(steps, values, _CURVE_POINTS)
        return json_values(
            {
                "key": self.key,
                "version": self.version,
                "label": label,
                "store": self.store.path.as_posix(),
                "model": self.model,
                **self._judged,
                "step": measured[-1].step if measured else None,
                "total": self._total,
                "finished": bool(measured) and measured[-1].finished,
                "measurements": len(measured),
                "measured_at": datetime.fromisoformat(last.measured_at).timestamp() if last else None,
                "loss": values[-1] if values else None,
                "losses": [[steps[index], values[index]] for index in shown],
                "unread": self.n_unread,
                "damaged": [f"{Path(name).name}: {reason}" for name, reason in sorted(self.damaged.items())[:3]],
                "n_damaged": len(self.damaged),
            }
        )

    def _put(self, name: str) -> None:
        path = Path(name)
        part = next(part for part in self.path.parts if part.folder == path.parent)
        table, failed = read_tables([path], _READ), is_failure(path.name)
        steps = table["step"].to_numpy()
        # most files are sorted: slices of them are no copies
        table = table if (np.diff(steps) >= 0).all() else table.take(np.argsort(steps, kind="stable"))
        found, starts = np.unique(np.sort(steps), return_index=True)
        spans = zip(found.tolist(), starts.tolist(), np.diff(starts, append=len(steps)).tolist(), strict=True)
        self.model = table["model"][0].as_py()
        self.checkpoints[name] = [
            _checkpoint(step, table.slice(at, length), failed) for step, at, length in spans if part.has_step(step)
        ]

    def _forget(self, name: str) -> None:
        self.checkpoints.pop(name, None)
        self.damaged.pop(name, None)


def _checkpoint(step: int, rows: pa.Table, failed: bool) -> Checkpoint:
    """Look up the fields of a checkpoint in its rows."""
    metrics = rows["metric"].cast(pa.string())
    places = [pc.index(metrics, name).as_py() for name in (LOSS, PROBE_LOSS)]
    loss, probe_loss = (rows["value"][at].as_py() if at >= 0 else math.nan for at in places)
    measured_at = max(rows["measured_at"].unique().to_pylist())
    return Checkpoint(step, measured_at, loss, probe_loss, failed, rows["stage"][0].as_py() == FINISHED)


def total_steps(store: Path) -> int | None:
    """Return ``trainer.max_steps`` of the configuration that train.py saves beside a run; None without one."""
    for folder in [store, *([store.parent] if store.name == RUN_STORE else [])]:
        try:
            steps = read_yaml(folder / "config.yaml")["trainer"]["max_steps"]
        except (OSError, ValueError, KeyError, TypeError):  # none, or one of something else
            continue
        if isinstance(steps, int) and steps > 0:
            return steps
    return None


def _unknown(reason: str) -> dict[str, Any]:
    return {"status": "unknown", "reason": reason, **dict.fromkeys(METRICS)}


def _judgement(run: DescribedRun) -> dict[str, Any]:
    """Return the status of a run with its reason, and the means over layers: without sinks where it was measured so, as
    the statements."""
    means: dict[str, float] = {}
    for metric, subset in product(METRICS, ("all", "no_sink")):
        if (metric, subset) in run.series and len(mean := run.series[metric, subset].layer_mean.mean):
            means[metric] = float(mean.iloc[-1])
    return _unknown(run.status[1]) | {"status": run.status[0]} | means
