"""All runs of all stores under the given paths: the files that appear in their folders, and what
the table says.
"""

import hashlib
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd

from repdyn.store import Store, find_stores
from repdyn.store.files import is_failure, step_of
from repdyn.store.remote import RemoteError
from repdyn.store.runs import RunPath
from repdyn.store.schema import LOSS, PROBE_LOSS
from repdyn.utils.records import json_values
from repdyn.views.alerts import ALERT_COLUMNS
from repdyn.views.judging import STATUSES, DescribedRun, described_rows
from repdyn.views.judging.stores import RunKey, names_in_stores, selected_rows
from repdyn.views.tables.frames import CLOUDS, SUBSETS, of_metric, scalar
from repdyn.views.tables.runs import split
from repdyn.views.tables.series import MetricSeries, series_without_repeats, thin
from repdyn.views.tables.style import short_subset_title

INTERVAL = 2.0
"""Seconds between two looks for new measurements."""
METRICS = ("two_nn", "anisotropy")
"""Metrics of which the table shows the mean over layers."""
_SHOWN: tuple[str, ...] = tuple(dict.fromkeys((*SUBSETS, *CLOUDS)))
"""The subsets that it shows them on."""
log = logging.getLogger(__name__)

_LOOKS_PER_SEARCH = 5
"""Number of looks for new measurements in the time of one search for new stores."""
_CURVE_POINTS = 60
_KEY_DIGITS = 12
_DESCRIBING_SHARE = 0.05
"""Largest share of the time that describing one run takes."""
_COLUMNS = (
    *ALERT_COLUMNS,
    "model",
    "causal",
    "parameters",
    "checkpoint",
    "stage",
    "layers",
    "module",
    "depth",
    "settings",
    "low",
    "high",
    "revision",
    "same_as",
    "mixed_with",
    "measured_at",
)
"""Columns of a store that the table rests on: reading all of them would take longer."""


class WatchedRun:
    """A history whose files are looked at, and which is described at most every ``interval``
    seconds.

    Its rows are read when it is described or shown, and are not kept.
    """

    def __init__(self, store: Store, path: RunPath, interval: float) -> None:
        self.store = store
        self.path = path
        self.files: dict[Path, tuple[int, int, int]] = {}
        """Time of change, size and number of each file with rows: another one has another content.
        """
        self.version = 0
        """Number of the content: it grows with every change of the files."""
        folder = path.segments[-1].folder
        self.key = hashlib.sha256(
            str(folder.resolve()).encode(errors="surrogateescape")
        ).hexdigest()[:_KEY_DIGITS]
        """Name of the run in addresses."""
        self._interval = interval
        self._shown = _unknown("Not described yet.")
        self._described = 0
        self._due = 0.0

    def look(self) -> None:
        """Look for new, changed and deleted files."""
        files = {}
        for file in self.path.files():
            with suppress(FileNotFoundError):  # deleted since it was listed
                status = file.stat()
                files[file] = status.st_mtime_ns, status.st_size, status.st_ino
        if files != self.files:
            self.version += 1
        self.files = files

    def is_due(self) -> bool:
        """Return whether it is to be described: it has changed, and some time has passed."""
        return self._described != self.version and time.monotonic() >= self._due

    def describe(self) -> None:
        """Read the rows of the run and judge it: its status, the course of its loss, the means over
        layers.
        """
        started, self._described = time.monotonic(), self.version
        try:
            rows = self.store.to_pandas(self.path, columns=_COLUMNS, categorical=True)
            rows_of_runs = {
                (self.store, self.path.name, probe): of_probe
                for probe, of_probe in split(rows, "probe").items()
            }
            described = described_rows(rows_of_runs, seeds=(), paths={self.store: [self.path]})
            self._shown = _summary(described.runs)
        except (
            ValueError
        ) as error:  # rows that cannot be judged together, such as those of two models
            self._shown = _unknown(str(error))
        ended = time.monotonic()
        self._due = ended + max(self._interval, (ended - started) / _DESCRIBING_SHARE)

    def summary(self, label: str) -> dict[str, Any]:
        """Return what the table shows of the run, as values of JSON; its last step is known before
        it is described.
        """
        steps = [step_of(file.name) for file in self.files if not is_failure(file.name)]
        last = max((step for step in steps if step is not None), default=self._shown["step"])
        about = {
            "key": self.key,
            "version": self.version,
            "label": label,
            "store": self.store.path.as_posix(),
        }
        total = self.path.run.configuration.get("n_steps")
        return json_values({**about, **self._shown, "step": last, "total": total})


def _unknown(reason: str) -> dict[str, Any]:
    """Return what the table shows of a run that is not described."""
    empty = {"model": "", "finished": False, "measurements": 0, "losses": []}
    return {
        "status": "unknown",
        "reason": reason,
        **empty,
        **dict.fromkeys(("step", "measured_at", "loss", *METRICS)),
        "beside": {metric: [] for metric in METRICS},
    }


def _means_over_layers(run: DescribedRun) -> dict[str, Any]:
    """Return the mean over layers of each metric on all vectors, and ``beside`` it those without
    sinks and without repeats, as far as they were measured, with the words for them."""
    # the other columns would be copied with each selection of rows
    rows = run.rows.loc[:, ["metric", "subset", "layer", "step", "value", "low", "high"]]
    means: dict[str, Any] = {"beside": {}}
    for metric in METRICS:
        # the series of every metric would take longer
        series = {
            key: MetricSeries(*key, of_metric(rows, *key)) for key in product([metric], _SHOWN)
        }
        measured = {key: of_key for key, of_key in series.items() if len(of_key.layer_mean.mean)}
        last = {
            subset: float(of_key.layer_mean.mean.iloc[-1])
            for (_, subset), of_key in measured.items()
        }
        means[metric] = last.get("all")
        distinct = series_without_repeats(metric, measured)
        subsets = ["no_sink", "" if distinct is None else distinct.subset]
        means["beside"][metric] = [
            [last[subset], short_subset_title(subset)] for subset in subsets if subset in last
        ]
    return means


def _summary(runs: Sequence[DescribedRun]) -> dict[str, Any]:
    """Return what the table shows of a run on each probe and of each stack: the worst status with
    its reason, the loss of the training, or of a sweep that on the probe, and the means over
    layers."""
    worst = min(runs, key=lambda run: STATUSES.index(run.status[0]))
    losses = [scalar(run.frame, name) for name in (LOSS, PROBE_LOSS) for run in runs]
    loss = next((of_run for of_run in losses if len(of_run)), losses[0])
    steps = loss.index.tolist()
    values = loss.tolist()
    return _unknown(worst.status[1]) | {
        "status": worst.status[0],
        "model": str(worst.rows["model"].iloc[0]),
        "step": max(run.steps[-1] for run in runs),
        "finished": worst.finished,
        "measurements": len({step for run in runs for step in run.steps}),
        "measured_at": datetime.fromisoformat(
            max(max(run.frame["measured_at"].unique()) for run in runs)
        ).timestamp(),
        "loss": values[-1] if values else None,
        "losses": [[steps[index], values[index]] for index in thin(steps, values, _CURVE_POINTS)],
        **_means_over_layers(worst),
    }


class Index:
    """The runs of all stores under some paths: found, looked at, and described.

    One thread calls :meth:`poll`; any other may read :attr:`summaries` and call :meth:`rows`.

    Args:
        paths: stores or their URLs, folders of runs, or folders above any number of them; they may
            appear later.
        interval: seconds between two polls; a run is not described more often than that.
    """

    def __init__(self, paths: Sequence[str | Path], interval: float = INTERVAL) -> None:
        self.paths = tuple(paths)
        self.summaries: Mapping[str, dict[str, Any]] = {}
        """What the table shows of each run, by its key. A changed run has a new dictionary."""
        self._interval = interval
        self._lock = Lock()
        self._stores: dict[Path, Store] = {}
        self._runs: dict[Path, WatchedRun] = {}
        self._searched = -math.inf

    def poll(self, seconds: float) -> bool:
        """Look for changes, and describe for about ``seconds``; return whether something is left to
        do.
        """
        with self._lock:
            self.find_stores()
            self._look()
            # however long the looking takes, one run at least is described
            deadline = time.monotonic() + seconds
            due = [run for run in self._runs.values() if run.is_due()]
            while due and time.monotonic() <= deadline:
                due.pop(0).describe()
            names = names_in_stores([(run.store, run.path.name) for run in self._runs.values()])
            new = {
                run.key: run.summary(names[run.store, run.path.name]) for run in self._runs.values()
            }
            old = self.summaries
            self.summaries = {
                key: old[key] if old.get(key) == summary else summary
                for key, summary in new.items()
            }
            return bool(due)

    def find_stores(self) -> int:
        """Search the paths for stores with measurements, unless they were searched lately; return
        their number.
        """
        now = time.monotonic()
        if not self._stores or now - self._searched >= _LOOKS_PER_SEARCH * self._interval:
            self._searched = now
            try:
                stores = {
                    store.path.resolve(): store
                    for path in self.paths
                    for store in find_stores(path)
                }
            except RemoteError as error:
                if not self._stores:
                    raise
                log.warning("%s; what was downloaded before is shown", error)
                return len(self._stores)
            # a known one keeps its identity
            self._stores = {path: self._stores.get(path, store) for path, store in stores.items()}
        return len(self._stores)

    def rows(self, keys: Iterable[str]) -> tuple[dict[RunKey, pd.DataFrame], dict[str, int]]:
        """Return the rows of runs on each probe, and the versions of the runs; a KeyError if no run
        has this key, a ValueError if nothing is measured yet."""
        with self._lock:
            by_key = {run.key: run for run in self._runs.values()}
            runs = [by_key[key] for key in dict.fromkeys(keys)]
            frames: dict[RunKey, pd.DataFrame] = {}
            for run in (run for run in runs if run.files):
                frames |= selected_rows([run.store], [run.path.name])
            if not frames:
                raise ValueError(
                    "expected runs with measurements, got none; wait for the first one"
                )
            return frames, {run.key: run.version for run in runs}

    def _look(self) -> None:
        """Find new histories and changed files."""
        before = self._runs
        self._runs = {}
        for store in self._stores.values():
            try:
                paths = store.paths()
            except OSError as error:  # one store that cannot be read hides none of the others
                log.warning("%s; %s is left out", error, store.path)
                continue
            for path in paths:
                folder = path.segments[-1].folder
                run = before.get(folder)
                # what a history consists of changes with the runs that go on from it
                if run is None or run.path != path:
                    run = WatchedRun(store, path, self._interval)
                run.look()
                if run.files:
                    self._runs[folder] = run
