"""Rows on their way to a store that may be full, slow or gone: those it does not take wait here, and none is lost."""

from __future__ import annotations

import logging
import tempfile
import weakref
from collections.abc import Iterator, Sequence

from repdyn.probe import Probe
from repdyn.store import MeasurementKey, Store, open_store
from repdyn.store.schema import Row
from repdyn.tables.designs import design_names
from repdyn.utils.redaction import redacted
from repdyn.utils.timeout import TimeoutRunner

log = logging.getLogger(__name__)

STORE_SECONDS = 60.0
"""How long a training waits for the disk."""


class RowBuffer:
    """A store as a training sees it.

    Args:
        store: None keeps nothing.
        probe: kept beside the rows.
        seconds: how long one call of the store may take.
    """

    def __init__(self, store: Store | None, probe: Probe, seconds: float = STORE_SECONDS) -> None:
        self._store = store
        self._probe = probe
        self._patiently = TimeoutRunner(seconds)
        self._waiting: dict[MeasurementKey, list[Row]] = {}
        self._path = str(store.path) if store else "(none)"
        # a trainer that tells nobody when it breaks off leaves rows here until the process ends
        weakref.finalize(self, _rescue_unasked, self._waiting, probe, self._path)

    def begin(self, run: str, resumed: bool) -> None:
        """Make the store ready: continued for a run that goes on, but a new run never on top of another.

        Raises:
            ValueError: the store holds another run of this name.
            OSError: it cannot be written.
        """
        store = self._store
        if store is None:
            return
        if not resumed and self.steps(run):
            raise ValueError(
                f"expected a new run, but the store {store.path} already holds steps of {run!r}; resume it, or choose "
                f"another run= or store=, or delete {store.folder_of(run)}"
            )
        if resumed and self.steps(run):
            self._check_same_probe(store, run)
        self._patiently(f"writing the probe to {store.path}", lambda: store.save_probe(self._probe))

    def _check_same_probe(self, store: Store, run: str) -> None:
        rows = self._patiently(f"reading {store.path}", lambda: store.to_pandas(run))
        known = {str(found): ", ".join(design_names(of_one)) for found, of_one in rows.groupby("probe")}
        if self._probe.hash not in known:
            design = self._probe.design.name
            if set(known.values()) == {design}:
                probes, got = ", ".join(known), self._probe.name
            else:
                probes = ", ".join(f"{found} (sampling design {name})" for found, name in known.items())
                got = f"{self._probe.name}, sampling design {design}"
            raise ValueError(
                f"expected the probe that the resumed run was measured on, {probes}, got {self._probe.hash} "
                f"({got}); take that one, Probe.load({str(store.path)!r} + "
                "'/probes/HASH.safetensors'), or choose another run="
            )

    def steps(self, run: str) -> list[int]:
        """Steps of a run that are stored.

        Raises:
            OSError: the store does not answer.
        """
        store = self._store
        return self._patiently(f"reading {self._path}", lambda: store.steps(run)) if store else []

    def rows(self, key: MeasurementKey) -> list[Row]:
        """What there is under a key; nothing where there is nothing.

        Raises:
            OSError: the store does not answer.
        """
        store = self._store
        if key in self._waiting or store is None:
            return self._waiting.get(key, [])
        return self._patiently(f"reading {store.path}", lambda: store.read(key) if key in store else [])

    def take(self, key: MeasurementKey, rows: Sequence[Row]) -> None:
        """Have rows wait for :meth:`written`, in place of any under this key."""
        self._waiting[key] = list(rows)

    def written(self) -> Iterator[list[Row]]:
        """Write what waits, step by step, and yield what has been written.

        Raises:
            OSError: the store cannot take it, or does not answer; what is left goes on waiting.
        """
        for key, rows in list(self._waiting.items()):
            if self._store is not None:
                self._write(self._store, key, rows)
            del self._waiting[key]
            yield rows

    def file_failure(self, key: MeasurementKey, rows: Sequence[Row]) -> None:
        """Store why a step is missing; it is tried again should the run be resumed.

        Raises:
            OSError: the store cannot take it, or does not answer.
        """
        store = self._store
        if store is not None:
            self._patiently(f"writing to {store.path}", lambda: store.write(key.failed, rows))

    def rescue(self, error: Exception) -> None:
        """At the end: what still waits goes to a folder of this machine, which is named in what is raised.

        Raises:
            OSError: naming the folder.
            Exception: ``error``, where nothing waits.
        """
        if not self._waiting:
            raise error
        raise OSError(_rescued(self._waiting, self._probe, self._path, redacted(str(error)))) from error

    def _write(self, store: Store, key: MeasurementKey, rows: list[Row]) -> None:
        def write() -> None:
            store.write(key, rows)
            store.discard_failures(key)

        self._patiently(f"writing step {key.step} to {store.path}", write)


def _rescue_unasked(waiting: dict[MeasurementKey, list[Row]], probe: Probe, path: str) -> None:
    if waiting:
        log.warning(_rescued(waiting, probe, path, "the training ended before it did"))


def _rescued(waiting: dict[MeasurementKey, list[Row]], probe: Probe, path: str, why: str) -> str:
    """Write what waits to a folder of its own, and say where."""
    elsewhere = open_store(tempfile.mkdtemp(prefix="repdyn-rescued-"))
    for key, rows in waiting.items():
        elsewhere.write(key, rows)
    elsewhere.save_probe(probe)
    steps = ", ".join(str(key.step) for key in waiting)
    waiting.clear()
    return (
        f"expected {path} to take the rows of steps {steps}, but {why}; they are in {elsewhere.path}, from where their "
        "folder may be copied"
    )
