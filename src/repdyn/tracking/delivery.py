"""Rows on their way out: to the store first, then to alerts, loggers and views, none of which can
delay the training for long or harm another.

What draws is imported when something is drawn: a broken installation of its packages then costs the
views that need them, rather than the job.
"""

from __future__ import annotations

import logging
import shlex
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from repdyn.measurement.rows import provenance_of_process
from repdyn.metrics.logged import LogLayers, logged_values
from repdyn.probe import Probe
from repdyn.store import MeasurementKey, Store, store_at
from repdyn.store.schema import Row
from repdyn.utils.attempts import TimeoutRunner, attempts
from repdyn.utils.printing import print_above_bars, warn
from repdyn.utils.redaction import redacted
from repdyn.views.alerts import ALERT_COLUMNS, AlertEvaluator, Rule, write_rules
from repdyn.views.publish.loggers import Target, named_config, target_of
from repdyn.views.report import PAGE

if TYPE_CHECKING:
    import pandas as pd
    from lightning.pytorch.loggers import Logger

log = logging.getLogger(__name__)
T = TypeVar("T")

# How many seconds are waited, during a training and at its end
STORE_SECONDS = (
    20.0  # for one access to the store; one that is not back yet is not waited for again
)
LOGGER_SECONDS = (
    1.0  # for a call of a logger; one that once took longer gets the others in the background
)
PAGE_SECONDS = 20.0  # for a page
END_SECONDS = 30.0  # at the end for the store, and for each logger that is behind
INTERRUPTED_SECONDS = 2.0  # for either where a user waits to save a checkpoint
DRAWING_SECONDS = 600.0  # for all views
UPLOAD_SECONDS = 60.0  # for the uploads to a remote store
# How often views are made
REFRESH_SECONDS = 15.0  # after which an open page reloads its file
MAX_TIME_SHARE = 0.02  # of the time may go into pages
# measurements before the first heatmaps; twice as many before the next, so that a long run has few
FIRST_HEATMAPS = 4


class Writer:
    """Writes rows and their probe to a store that may be full, slow or gone, so that none is lost;
    or nowhere.

    Rows that the store has not accepted yet are in memory, and once it has failed in a temporary
    folder too, which outlives a process that is killed.
    """

    def __init__(self, store: Store | None, probe: Probe) -> None:
        self.store = store
        self._probe = probe
        self._runner = TimeoutRunner(STORE_SECONDS)
        self._path = store.location if store else "(none)"
        self.rows: dict[MeasurementKey, list[Row]] = {}
        """What :meth:`flush` writes."""
        self._spare: Store | None = None
        self._spared: dict[MeasurementKey, list[Row]] = {}

    def call(self, what: str, function: Callable[[Store], T]) -> T:
        """Return what a function of the store returns; OSError where it does not answer."""
        assert self.store is not None, "called without a store"
        return self._runner(f"{what} {self._path}", partial(function, self.store))

    def flush(self, written: Callable[[list[Row]], None], at_end: float | None = None) -> None:
        """Write the waiting rows step by step, and call ``written`` with those of each; raise the
        first failure, after which the rest stays here and in a temporary folder. ``at_end`` of a
        training, the store has some seconds, and the folder is named instead."""
        if at_end is not None:
            self._runner.seconds = at_end
            self._runner.wait(at_end)  # for an access that took too long
        with attempts() as attempt:
            for key, rows in list(self.rows.items()):
                try:
                    if self.store is not None:
                        # with the probe, which is there already, unless the store was deleted
                        # meanwhile
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
                with attempt():
                    written(rows)
        if self._spare is not None:
            shutil.rmtree(self._spare.path, ignore_errors=True)
            self._spare, self._spared = None, {}

    def _keep(self) -> None:
        """Write the rows that the temporary folder lacks, if there is space for them."""
        with suppress(OSError):
            if self._spare is None:
                self._spare = store_at(tempfile.mkdtemp(prefix="repdyn-rescued-"))
            for key, rows in self.rows.items():
                if self._spared.get(key) is not rows:
                    self._spare.write(key, rows, self._probe)
                    self._spared[key] = rows

    def report(self, reason: str) -> None:
        """Log where the rows are that the store has not accepted, if there are any, once."""
        if not self.rows:
            return
        self._keep()
        steps = ", ".join(str(key.step) for key in self.rows)
        place = "they are lost"
        if self._spare is not None and self._spared:
            place = f"they are in {self._spare.path}, from where their folder may be copied"
        warn(log, f"expected {self._path} to take the rows of steps {steps}, but {reason}; {place}")
        self.rows.clear()

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


class _Lane:
    """The calls of one logger, in order: in the training's own time as long as it is quick, else
    behind it.
    """

    def __init__(self, logger: Logger) -> None:
        self.jobs: deque[Callable[[Target], None]] = deque()
        self.was_late = self.is_behind = False
        self._target = target_of(logger)
        self.what = f"logging to {type(logger).__name__}"
        self._errors: deque[Exception] = deque()
        self.runner = TimeoutRunner(LOGGER_SECONDS)

    def drain(self, seconds: float) -> None:
        """Make the calls that wait, for some seconds, unless one is not back yet; raise what one of
        them raised.
        """

        def work() -> None:
            while self.jobs:
                job = self.jobs.popleft()
                try:
                    job(self._target)
                except Exception as error:
                    self._errors.append(error)

        self.runner.seconds = seconds
        try:
            self.runner(self.what, work)
            self.is_behind = False
        except TimeoutError:
            self.is_behind = self.was_late = True
        if self._errors:
            raise self._errors.popleft()


class Loggers:
    """The loggers of a training, which may change during it, each with calls of its own; the prefix
    leads the names of values.

    What one of them raises is reported, and harms neither the others nor the training.
    """

    def __init__(
        self,
        of_training: Callable[[], Iterable[Logger]],
        log_layers: LogLayers,
        prefix: str,
        report: Callable[[Exception, int | None], None],
    ) -> None:
        self.of_training, self._log_layers, self._prefix = of_training, log_layers, prefix
        self._report = report
        self._last_step: int | None = None
        """The last step whose values were kept, by which failures are reported."""
        self._lanes: dict[int, _Lane] = {}
        self._unsent: dict[int, dict[str, float]] = {}

    def keep(self, rows: Sequence[Row]) -> None:
        """Keep the values of rows of one step until :meth:`send`, so that they are logged with
        those that follow.
        """
        values = logged_values(rows, self._log_layers)
        named = {f"{self._prefix}{name}": value for name, value in values.items()}
        if named:
            self._last_step = rows[0].step
            self._unsent[rows[0].step] = self._unsent.get(rows[0].step, {}) | named

    def send(self) -> None:
        """Log what is kept, each step at once."""
        unsent, self._unsent = self._unsent, {}
        for step, named in unsent.items():
            self.each(lambda target, step=step, named=named: target.log_values(named, step))

    def each(self, job: Callable[[Target], None]) -> None:
        """Call ``job(target)`` for each logger."""
        for logger in self.of_training():
            try:
                lane = self._lanes.get(id(logger)) or self._lanes.setdefault(
                    id(logger), _Lane(logger)
                )
                lane.jobs.append(job)
                lane.drain(0.0 if lane.was_late else LOGGER_SECONDS)
            except Exception as error:
                self._report(error, self._last_step)

    def wait(self, seconds: float) -> None:
        """Wait for loggers that are behind; what they have not got by then is in the store."""
        for lane in [lane for lane in self._lanes.values() if lane.is_behind]:
            lane.runner.wait(seconds)
            try:
                lane.drain(seconds)
            except Exception as error:
                self._report(error, self._last_step)
            if lane.is_behind:
                warn(
                    log,
                    f"{lane.what} is behind by more than {len(lane.jobs)} calls; the store has "
                    "all values",
                )


class Alerts:
    """Checks the rows of a run against rules, step by step: in the log, in the loggers, and a
    request to stop.
    """

    def __init__(self, rules: Sequence[Rule], loggers: Loggers, label: str = "") -> None:
        self._rules = tuple(rules)
        self._loggers = loggers
        self._evaluator = AlertEvaluator(self._rules)
        self._origin = f"{label}: " if label else ""
        self._read_history: Callable[[], pd.DataFrame | None] | None = None

    def begin(self, writer: Writer, run_id: str, *, has_history: bool) -> None:
        """Store the rules with the rows, for later views; earlier rows are read at the
        first check.
        """

        def history(store: Store) -> pd.DataFrame | None:
            return store.to_pandas(run_id, columns=ALERT_COLUMNS) if store.steps(run_id) else None

        writer.call(
            "writing alert rules to",
            lambda store: write_rules(self._rules, store.alerts_path(run_id)),
        )
        self._read_history = partial(writer.call, "reading", history) if has_history else None

    def check(self, rows: Sequence[Row]) -> bool:
        """Log what the rules find in rows of a step, and return whether one requests to stop the
        training.
        """
        if not self._rules or not rows:
            return False
        step = rows[0].step
        if self._read_history is not None:
            if (stored := self._read_history()) is not None:
                self._evaluator.update(
                    stored.loc[(stored["probe"] == rows[0].probe) & (stored["step"] < step)]
                )
            self._read_history = None
        found = self._evaluator.update(rows)
        if not found:
            return False
        from repdyn.views.tables.texts import alert_lines

        lines = [f"{self._origin}{line}" for line in alert_lines(found)]
        for line in lines:
            warn(log, f"alert at {line}")
        stops = sorted({alert.rule for alert in found if alert.stop})
        if stops:
            warn(
                log, f"the training is to stop at step {step}, as requested by: {', '.join(stops)}"
            )
        self._loggers.each(lambda target: target.log_alerts(lines, step))
        return bool(stops)


class Views:
    """Views of a run on one probe: a page and heatmaps that follow it, and figures, a summary and
    the final page when it ends. Only a live one has a page; the prefix leads the names in the
    loggers, whose configuration is given."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        probe: str,
        loggers: Loggers,
        *,
        live: bool,
        prefix: str,
        config: dict,
    ) -> None:
        self._store, self._run_id, self._loggers, self._live = store, run_id, loggers, live
        self._options = {"probe": probe, "prefix": prefix}
        self._config = config
        self._page = TimeoutRunner(PAGE_SECONDS)
        self._page_after = 0.0
        """When the page may be written again, by ``time.perf_counter``."""
        self._n_measured, self._heatmaps_at = 0, FIRST_HEATMAPS
        """How many measurements there were, and how many there are before the next heatmaps."""
        self._is_described = False

    def refresh(self) -> None:
        """Write the page again and log how far the run has come: once what it is, at growing
        intervals its heatmaps.
        """
        self._n_measured += 1
        with attempts() as attempt:
            is_due = time.perf_counter() >= self._page_after and not self._page.is_busy
            if self._live and is_due:
                with attempt():
                    self._write_page()
            if not list(self._loggers.of_training()):
                return
            if not self._is_described:
                with attempt():
                    self._describe()
            if self._is_described and self._n_measured >= self._heatmaps_at:
                self._heatmaps_at = 2 * self._n_measured
                with attempt():
                    self._log_heatmaps()

    def _write_page(self) -> None:
        """Write the page of all runs of the store, so that several trackers of it do not overwrite
        each other's.
        """
        from repdyn.views.report import write_report

        path, start = self._store.output / PAGE, time.perf_counter()
        try:
            self._page(
                f"writing {path}",
                partial(write_report, self._store, path, refresh_seconds=REFRESH_SECONDS),
            )
        finally:
            end = time.perf_counter()
            self._page_after = end + (end - start) / MAX_TIME_SHARE

    def _describe(self) -> None:
        """Log once what is known of the run."""
        store = self._store
        if not store.steps(self._run_id):  # a store that cannot be written may have none
            return
        self._is_described = True
        from repdyn.views.publish.results import provenance

        frame = store.to_pandas(self._run_id, categorical=True)
        known = provenance(store, frame.loc[frame["probe"] == self._options["probe"]])
        known.pop("tokens_seen", None)  # they grow
        known |= provenance_of_process()
        config = self._config | named_config(known, self._options["prefix"])
        self._loggers.each(lambda target: target.log_config(config))

    def _log_heatmaps(self) -> None:
        from repdyn.views.publish.results import log_heatmaps

        self._loggers.each(
            lambda target: log_heatmaps(self._store, self._run_id, target, **self._options)
        )

    def finish(self, spent: Callable[[], dict[str, float]]) -> None:
        """Write figures beside the store and to the loggers, the final page, and a summary with the
        seconds spent.
        """
        store, loggers, path = (
            self._store,
            list(self._loggers.of_training()),
            self._store.path_of(self._run_id),
        )
        name = self._run_id if path is None else path.name

        def draw() -> None:
            from repdyn.views.publish.results import show_run

            page = store.output / PAGE if self._live else None
            show_run(store, name, loggers=loggers, report=page, spent=spent, **self._options)

        print_above_bars(
            f"repdyn: drawing figures{' and the report' if self._live else ''} of {name}"
        )
        try:
            TimeoutRunner(DRAWING_SECONDS)(f"drawing {name}", draw)
        finally:
            self._wait_for_uploads(UPLOAD_SECONDS)

    def name_commands(self) -> None:
        """Log the commands that make the views from the store."""
        self._wait_for_uploads(INTERRUPTED_SECONDS)
        store = shlex.quote(self._store.location)
        warn(
            log,
            f"training interrupted; make figures and report with: repdyn figures {store}; repdyn "
            f"report {store}",
        )

    def _wait_for_uploads(self, seconds: float) -> None:
        if problem := self._store.drain(seconds):
            warn(log, problem)
