"""All runs of all stores under the given paths, followed without reading anything twice."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd

from repdyn.report.runs import RunKey, names_in_stores, selected_rows
from repdyn.store import Store, find_stores
from repdyn.store.remote import RemoteError
from repdyn.watch.run import WatchedRun

INTERVAL = 2.0
"""Seconds between two looks for new measurements."""
log = logging.getLogger(__name__)

_LOOKS_PER_SEARCH = 5
"""Number of looks for new measurements in the time of one search for new stores."""
_FILES_AT_ONCE = 100


class Index:
    """The runs of all stores under some paths: found, read file by file, and described.

    One thread calls :meth:`poll`; any other may read :attr:`summaries` and call :meth:`rows`.

    Args:
        paths: stores or their URLs, folders of runs, or folders above any number of them; they may appear later.
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
        """Look for changes, and read and describe for about ``seconds``; return whether something is left to do."""
        with self._lock:
            deadline = time.monotonic() + seconds
            self.find_stores()
            changed = self._look() | self._read(deadline)
            due = [run for run in self._runs.values() if run.is_due()]
            while due and time.monotonic() <= deadline:
                due[0].describe()
                changed.add(due.pop(0))
            self._summarise(changed)
            return bool(due) or any(run.n_unread for run in self._runs.values())

    def find_stores(self) -> int:
        """Search the paths for stores with measurements, unless they were searched lately; return their number."""
        now = time.monotonic()
        if not self._stores or now - self._searched >= _LOOKS_PER_SEARCH * self._interval:
            self._searched = now
            try:
                found = {store.path.resolve(): store for path in self.paths for store in find_stores(path)}
            except RemoteError as error:
                if not self._stores:
                    raise
                log.warning("%s; what was downloaded before is shown", error)
                return len(self._stores)
            # a known one keeps its identity
            self._stores = {path: self._stores.get(path, store) for path, store in found.items()}
        return len(self._stores)

    def rows(self, keys: Iterable[str]) -> tuple[dict[RunKey, pd.DataFrame], dict[str, int]]:
        """Return the rows of runs on each probe, and the versions of the runs.

        Raises:
            KeyError: no run has this key.
            ValueError: nothing is measured yet.
        """
        with self._lock:
            by_key = {run.key: run for run in self._runs.values()}
            runs = [by_key[key] for key in dict.fromkeys(keys)]
            found: dict[RunKey, pd.DataFrame] = {}
            for run in (run for run in runs if run.checkpoints):
                found |= selected_rows([run.store], [run.path.name])
            if not found:
                raise ValueError("expected runs with measurements, got none; wait for the first one")
            return found, {run.key: run.version for run in runs}

    def _look(self) -> set[WatchedRun]:
        """Find new histories and changed files; return the runs that lost rows."""
        known, self._runs = self._runs, {}
        for store in self._stores.values():
            try:
                paths = store.paths()
            except OSError as error:  # one store that cannot be read hides none of the others
                log.warning("%s; %s is left out", error, store.path)
                continue
            for path in paths:
                folder = path.parts[-1].folder
                run = known.get(folder)
                # what a history consists of changes with the runs that go on from it
                if run is None or run.path != path:
                    run = WatchedRun(store, path, self._interval)
                self._runs[folder] = run
        changed = set()
        for folder, run in list(self._runs.items()):
            try:
                if run.look():
                    changed.add(run)
            except OSError:
                del self._runs[folder]
        return changed

    def _read(self, deadline: float) -> set[WatchedRun]:
        """Read files until the deadline, the last of each run before all others; return the runs that have new rows."""
        changed = set()
        while waiting := [run for run in self._runs.values() if run.n_unread]:
            # a run that nothing is known of comes first
            for run in sorted(waiting, key=lambda run: bool(run.checkpoints)):
                if time.monotonic() > deadline:
                    return changed
                run.read(_FILES_AT_ONCE if run.checkpoints else 1)
                changed.add(run)
        return changed

    def _summarise(self, changed: set[WatchedRun]) -> None:
        runs = [run for run in self._runs.values() if not run.is_empty]
        names = names_in_stores([(run.store, run.path.name) for run in runs])
        labels = {run.key: names[run.store, run.path.name] for run in runs}
        before = {run.key: self.summaries.get(run.key, {}) for run in runs if run not in changed}
        kept = {key: summary for key, summary in before.items() if summary.get("label") == labels[key]}
        self.summaries = {run.key: kept.get(run.key) or run.summary(labels[run.key]) for run in runs}
