"""Rows on their way to the store, which may be full, slow or gone."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from repdyn.probe import Probe
from repdyn.store import MeasurementKey, Store, store_at
from repdyn.store.schema import Row
from repdyn.utils.attempts import TimeoutRunner, attempts
from repdyn.utils.printing import warn
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)
T = TypeVar("T")

# For how many seconds a training waits
STORE_SECONDS = 20.0  # for one access to the store; it is not waited for a second time
END_SECONDS = 30.0  # at the end, for the store and for each logger that is behind
INTERRUPTED_SECONDS = 2.0  # for either where a user waits to save a checkpoint
UPLOAD_SECONDS = 60.0  # at the end, for the uploads to a remote store


class Writer:
    """Writes rows and their probe to a store that may be full, slow or gone, so that none is lost;
    or nowhere.

    Rows wait in memory until the store has accepted them. Once it has failed, they are in a
    temporary folder as well, the *spare* store, which outlives a process that is killed.
    """

    def __init__(self, store: Store | None, probe: Probe) -> None:
        self.store = store
        self._probe = probe
        # in a thread: a network mount that is gone does not fail, it hangs
        self._runner = TimeoutRunner(STORE_SECONDS)
        self._path = store.location if store else "(none)"
        self.rows: dict[MeasurementKey, list[Row]] = {}
        """The rows that wait: all of a step, since a file of the store holds a whole step."""
        self._new: dict[MeasurementKey, list[Row]] = {}
        """The rows among them that the caller has not been told to be stored."""
        self._spare: Store | None = None
        self._spared: dict[MeasurementKey, list[Row]] = {}
        """The rows that the spare store has."""

    def call(self, what: str, function: Callable[[Store], T]) -> T:
        """Return what a function of the store returns; OSError where it does not answer."""
        assert self.store is not None, "called without a store"
        return self._runner(f"{what} {self._path}", partial(function, self.store))

    def add(self, key: MeasurementKey, rows: list[Row], new: Sequence[Row]) -> None:
        """Have all rows of a step written, of which some are new since the last call."""
        self.rows[key] = rows
        self._new[key] = [*self._new.get(key, ()), *new]

    def flush(self, written: Callable[[int, list[Row]], None], at_end: float | None = None) -> None:
        """Write the waiting rows step by step, and raise the first failure; the rest then waits.

        Args:
            written: called with each step that is stored, and its new rows.
            at_end: at the end of a training, for how many seconds to wait. A failure is then logged
                with the folder that has the rows, and not raised.
        """
        if at_end is not None:
            self._runner.seconds = at_end
            self._runner.wait(at_end)  # an access that took too long may be over by now
        with attempts() as attempt:
            for key, rows in list(self.rows.items()):
                try:
                    if self.store is not None:
                        # the store has the probe, unless somebody has deleted it meanwhile
                        write = partial(self.store.write, key, rows, self._probe)
                        self._runner(f"writing step {key.step} to {self._path}", write)
                except Exception as failure:
                    self._keep()
                    if at_end is None:
                        if self._spare is not None:
                            failure.add_note(f"the rows wait in memory, and in {self._spare.path}")
                        raise
                    self.report(redacted(str(failure)))
                    return
                del self.rows[key]
                # a sink that raises keeps no other step from being written
                with attempt():
                    written(key.step, self._new.pop(key))
        # the store has all of it now
        if self._spare is not None:
            shutil.rmtree(self._spare.path, ignore_errors=True)
            self._spare, self._spared = None, {}

    def _keep(self) -> None:
        """Write the rows that the spare store lacks, if there is space for them."""
        with suppress(OSError):
            if self._spare is None:
                self._spare = store_at(tempfile.mkdtemp(prefix="repdyn-rescued-"))
            for key, rows in self.rows.items():
                # a step whose loss came later has another list of rows
                if self._spared.get(key) is not rows:
                    self._spare.write(key, rows, self._probe)
                    self._spared[key] = rows

    def report(self, reason: str) -> None:
        """Log where the rows are that the store has not accepted, if there are any, once."""
        if not self.rows:
            return
        self._keep()
        steps = ", ".join(str(key.step) for key in self.rows)
        where = "they are lost"
        if self._spare is not None and self._spared:
            where = f"they are in {self._spare.path}, from where their folder may be copied"
        warn(log, f"expected {self._path} to take the rows of steps {steps}, but {reason}; {where}")
        self.rows.clear()

    def wait_for_uploads(self, seconds: float) -> None:
        """Wait for what goes to a remote store; log what does not arrive in time."""
        if self.store is not None and (problem := self.store.drain(seconds)):
            warn(log, problem)

    def store_failure(self, key: MeasurementKey, rows: Sequence[Row]) -> None:
        """Store why a step is missing, or log that this is impossible; a resumed run measures the
        step again.
        """
        if self.store is None:
            return
        try:
            self.call("writing to", lambda store: store.write(key.failed, rows, self._probe))
        except OSError as error:
            warn(log, f"the failure at step {key.step} could not be stored: {redacted(str(error))}")
