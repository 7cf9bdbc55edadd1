"""Rows on their way out: to the store first, then to alerts, loggers and views, none of which can delay the training
for long or harm another."""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from repdyn.alerts import AlertEvaluator, Rule, stored_rules, write_rules
from repdyn.alerts.evaluation import ALERT_COLUMNS
from repdyn.probe import Probe
from repdyn.store import MeasurementKey, Store, open_store
from repdyn.store.schema import Row, to_table
from repdyn.utils.attempts import TimeoutRunner
from repdyn.utils.notices import warn
from repdyn.utils.redaction import redacted

if TYPE_CHECKING:
    import pandas as pd
    from lightning.pytorch.loggers import Logger

log = logging.getLogger(__name__)
T = TypeVar("T")

STORE_SECONDS = 20.0
"""How long a training waits for one access to the store; one that is not back yet is not waited for again."""
LOGGER_SECONDS = 1.0
"""How long a training waits for a call of a logger; one that once took longer gets the others in the background."""
END_SECONDS = 30.0
"""How long the end of a training waits for the store, and for each logger that is behind."""
INTERRUPTED_SECONDS = 2.0
"""How long either may take where a user waits to save a checkpoint."""


class Writer:
    """Writes rows to a store that may be full, slow or gone, so that none is lost.

    Args:
        store: None stores nothing.
        probe: stored with the rows.
    """

    def __init__(self, store: Store | None, probe: Probe) -> None:
        self.store = store
        self._probe = probe
        self._runner = TimeoutRunner(STORE_SECONDS)
        self._failure: Exception | None = None
        self._path = store.location if store else "(none)"
        self._spare = _Spare(probe, self._path)
        # a trainer that fails without notice leaves rows there until the process ends
        weakref.finalize(self, self._spare.report, "the training ended before it did")

    def call(self, what: str, function: Callable[[Store], T]) -> T:
        """Return what a function of the store returns.

        Raises:
            OSError: the store does not answer, or what the function raises.
        """
        assert self.store is not None, "called without a store"
        return self._runner(f"{what} {self._path}", partial(function, self.store))

    def add(self, key: MeasurementKey, rows: Sequence[Row]) -> None:
        """Buffer rows for :meth:`flush`, in place of any under this key."""
        self._spare.rows[key] = list(rows)

    def waiting(self, key: MeasurementKey) -> list[Row]:
        """Return the buffered rows of a key; none where there are none."""
        return self._spare.rows.get(key, [])

    def flush(self) -> list[list[Row]]:
        """Write the buffered rows step by step, and return those that have been written.

        What fails is raised by :meth:`raise_failure`, since some rows may have been written before.
        """
        written: list[list[Row]] = []
        for key, rows in list(self._spare.rows.items()):
            try:
                if self.store is not None:
                    self.call(f"writing step {key.step} to", partial(_write, key=key, rows=rows, probe=self._probe))
            except Exception as error:
                self._failure = error
                self._spare.keep()
                break
            del self._spare.rows[key]
            written.append(rows)
        else:
            self._spare.clear()
        return written

    def raise_failure(self) -> None:
        """Raise what stopped the last flush, if anything did; the rest stays buffered."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def flush_at_end(self, seconds: float) -> list[list[Row]]:
        """Write the buffered rows at the end; what the store does not accept stays in a temporary folder, which is
        named."""
        self._runner.seconds = seconds
        self._runner.wait(seconds)  # for an access that took too long
        written = self.flush()
        failure, self._failure = self._failure, None
        if failure is not None:
            self._spare.report(redacted(str(failure)))
        return written

    def store_failure(self, key: MeasurementKey, rows: Sequence[Row]) -> None:
        """Store why a step is missing, or log that this is impossible; a resumed run measures the step again."""
        if self.store is None:
            return
        try:
            self.call("writing to", lambda store: store.write(key.failed, rows))
        except OSError as error:
            warn(log, f"the failure at step {key.step} could not be stored: {redacted(str(error))}")


def _write(store: Store, key: MeasurementKey, rows: list[Row], probe: Probe) -> None:
    store.save_probe(probe)  # there already, unless the store was deleted meanwhile
    store.write(key, rows)


class _Spare:
    """Rows that the store has not accepted yet: in memory, and as soon as it has failed in a temporary folder too,
    which outlives a process that is killed.

    Args:
        probe: kept with the rows.
        path: of the store.
    """

    def __init__(self, probe: Probe, path: str) -> None:
        self.rows: dict[MeasurementKey, list[Row]] = {}
        self._probe = probe
        self._path = path
        self._folder: Store | None = None
        self._kept: dict[MeasurementKey, list[Row]] = {}

    def keep(self) -> None:
        """Write the rows that the folder lacks, if there is space for them."""
        with suppress(OSError):
            if self._folder is None:
                self._folder = open_store(tempfile.mkdtemp(prefix="repdyn-rescued-"))
                self._folder.save_probe(self._probe)
            for key, rows in self.rows.items():
                if self._kept.get(key) is not rows:
                    self._folder.write(key, rows)
                    self._kept[key] = rows

    def clear(self) -> None:
        """Delete the folder, whose rows the store has by now."""
        if self._folder is not None:
            shutil.rmtree(self._folder.path, ignore_errors=True)
            self._folder, self._kept = None, {}

    def report(self, reason: str) -> None:
        """Log where the rows are that the store has not accepted, if there are any, once."""
        if not self.rows:
            return
        self.keep()
        steps = ", ".join(str(key.step) for key in self.rows)
        place = "they are lost"
        if self._folder is not None and self._kept:
            place = f"they are in {self._folder.path}, from where their folder may be copied"
        warn(log, f"expected {self._path} to take the rows of steps {steps}, but {reason}; {place}")
        self.rows.clear()


class _Lane:
    """The calls of one logger, in order: in the training's own time as long as it is quick, else behind it."""

    def __init__(self, logger: Logger) -> None:
        self.logger = logger
        self._jobs: deque[Callable[[Logger], None]] = deque()
        self._errors: deque[Exception] = deque()
        self._runner = TimeoutRunner(LOGGER_SECONDS)
        self._patience = LOGGER_SECONDS
        self.is_behind = False

    def send(self, job: Callable[[Logger], None]) -> None:
        """Call ``job(logger)`` after all earlier ones.

        Raises:
            Exception: what a call that has ended by now raised.
        """
        self._jobs.append(job)
        self._drain(self._patience)

    def wait(self, seconds: float) -> None:
        """Wait for calls that are behind, at the end; raises as :meth:`send`."""
        if self.is_behind:
            self._runner.wait(seconds)
            self._drain(seconds)

    def _drain(self, seconds: float) -> None:
        self._runner.seconds = seconds
        try:
            self._runner(f"logging to {type(self.logger).__name__}", self._work)
            self.is_behind = False
        except TimeoutError:
            self.is_behind, self._patience = True, 0.0
        if self._errors:
            raise self._errors.popleft()

    @property
    def n_waiting(self) -> int:
        """Number of calls that have not begun."""
        return len(self._jobs)

    def _work(self) -> None:
        while self._jobs:
            job = self._jobs.popleft()
            try:
                job(self.logger)
            except Exception as error:
                self._errors.append(error)


class Loggers:
    """The loggers of a training, each with calls of its own.

    Args:
        of_training: returns the loggers, which may change during a training.
    """

    def __init__(self, of_training: Callable[[], Iterable[Logger]]) -> None:
        self._of_training = of_training
        self._lanes: dict[int, _Lane] = {}

    def each(self, job: Callable[[Logger], None]) -> None:
        """Call ``job(logger)`` for each logger.

        Raises:
            Exception: what the first failing call raised, once all loggers have got theirs.
        """
        failures = []
        for logger in self._of_training():
            lane = self._lanes.setdefault(id(logger), _Lane(logger))
            try:
                lane.send(job)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def now(self) -> list[Logger]:
        """Return the loggers."""
        return list(self._of_training())

    def wait(self, seconds: float) -> None:
        """Wait for loggers that are behind; what they have not got by then is in the store.

        Raises:
            Exception: as :meth:`each`.
        """
        for lane in self._lanes.values():
            lane.wait(seconds)
            if lane.is_behind:
                name = type(lane.logger).__name__
                warn(log, f"{name} is behind by more than {lane.n_waiting} calls; the store has all values")


class Alerts:
    """Checks the rows of a run against rules, step by step: in the log, in the loggers, and a request to stop.

    Args:
        rules: without any, nothing is checked.
        label: of the tracker, to distinguish several.
    """

    def __init__(self, rules: Sequence[Rule], label: str = "") -> None:
        self._rules = tuple(rules)
        self._evaluator = AlertEvaluator(self._rules)
        self._origin = f"{label}: " if label else ""
        self._read_history: Callable[[], pd.DataFrame] | None = None
        self._logged: set[str] = set()

    def begin(self, writer: Writer, run_id: str, probe: str, *, has_history: bool) -> None:
        """Store the rules with the rows, for later views; earlier rows are read at the first check.

        Raises:
            OSError, ValueError: the store or the rules in it cannot be written or read.
        """

        def write(store: Store) -> None:
            path = store.alerts_path(run_id)
            if not (path.exists() and stored_rules(path) == self._rules):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_rules(self._rules, path)

        writer.call("writing alert rules to", write)
        if has_history:
            self._read_history = lambda: writer.call("reading", partial(_history, run_id=run_id, probe=probe))

    def check(self, rows: Sequence[Row]) -> tuple[list[str], bool]:
        """Log what the rules find at the step of these rows and have not found there before.

        Args:
            rows: all rows of the step so far; the loss may follow later.

        Returns:
            The new alerts in words, and whether a rule requests to stop the training.
        """
        if not self._rules or not rows:
            return [], False
        from repdyn.tables.lines import alert_lines

        step = rows[0].step
        if self._read_history is not None:
            stored, self._read_history = self._read_history(), None
            self._evaluator.update(stored.loc[stored["step"] < step])
        found = self._evaluator.update_with_rows(rows)
        lines = [f"{self._origin}{line}" for line in alert_lines(found)]
        new = [line for line in lines if line not in self._logged]
        self._logged = set(lines)
        for line in new:
            warn(log, f"alert at {line}")
        stops = sorted({alert.rule for alert in found if alert.stop})
        if stops and new:
            warn(log, f"the training is to stop at step {step}, as requested by: {', '.join(stops)}")
        return new, bool(stops)


def _history(store: Store, run_id: str, probe: str) -> pd.DataFrame:
    from repdyn.store.frame import to_pandas

    rows = store.to_pandas(run_id, columns=ALERT_COLUMNS) if store.steps(run_id) else to_pandas(to_table([]))
    return rows.loc[rows["probe"] == probe]
