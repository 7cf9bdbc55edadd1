"""Tracking one run, whoever trains: measured, stored, logged and shown, and nothing of it stops the training.

The adapters (a Lightning callback, one for the Hugging Face Trainer, a call in a loop of one's own) know when; what
happens then is here, and the same for all of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn

from repdyn.alerts import RULES, Rule
from repdyn.capture.fsdp import class_name
from repdyn.measurement.measure import measure
from repdyn.metrics import resolve
from repdyn.publish.loggers import log_rows
from repdyn.store import MeasurementKey, Store
from repdyn.store.schema import Checkpoint, Row, failure_rows, scalar_row
from repdyn.store.state_cache import KEPT, StateCache
from repdyn.tables.scalars import LOSS
from repdyn.tracking.alert_monitor import AlertMonitor
from repdyn.tracking.config import MeasurementConfig, OnFailure
from repdyn.tracking.fingerprint import fingerprint
from repdyn.tracking.row_buffer import RowBuffer
from repdyn.tracking.run_views import RunViews
from repdyn.tracking.schedule import Schedule
from repdyn.tracking.train_scalars import Scalar, scalar_rows
from repdyn.tracking.warn_once import WarnOnce, in_words
from repdyn.utils.attempts import attempts
from repdyn.utils.distributed import ALONE, Ranks
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Tracking:
    """The tracking of one run.

    All ranks of a job make one, and call :meth:`measure` at the same steps; the first of them stores, logs and shows.
    """

    asked: MeasurementConfig
    run: str
    """Name of the run in the store."""
    store: Store | None
    """Where the rows go; None keeps nothing."""
    loggers: Callable[[], Iterable[Logger]] = tuple
    """Gives the loggers that hear of the rows once they are stored."""
    prefix: str = ""
    """Leads the names in the loggers."""
    on_error: OnFailure = "warn"
    rules: Sequence[Rule] = RULES
    """What raises an alert."""
    report: bool = True
    """Whether a page beside the store shows the run while it goes on."""
    stop_asked: bool = False
    """Whether an alert has asked for a stop; the same on all ranks."""
    tracking_seconds: float = 0.0
    """Wall-clock time this process has spent on measuring, storing and logging."""
    kernel_seconds: float = 0.0
    """How much of it went into the metrics themselves."""
    _ranks: Ranks = ALONE
    _start: float = field(default_factory=time.perf_counter)
    _complaints: WarnOnce = field(default_factory=WarnOnce)

    def __post_init__(self) -> None:
        self._keeping = RowBuffer(self.store, self.asked.probe)
        self._watch = AlertMonitor(self.rules, self.loggers, self.prefix)
        self._showing = RunViews(self.store, self.loggers, live=self.report, prefix=self.prefix)
        self._comparing: set[str] = set()
        self._earlier: StateCache | None = None

    def begin(self, ranks: Ranks, schedule: Schedule, resumed: bool) -> None:
        """Make the store ready: continued for a run that goes on, but a new run never on top of another.

        Args:
            ranks: those of the job.
            schedule: by which :meth:`measure` will be called, on all of them.
            resumed: whether the run goes on.

        Raises:
            ValueError: the store holds another run of this name, or the run was measured on another probe; a metric
                needs what the probe lacks; or the ranks differ.
            OSError: it cannot be written.
            RuntimeError: on ranks other than the first, when it failed there.
        """
        self._ranks = ranks
        pairs = resolve(self.asked.metrics, self.asked.probe)
        run = {"goes on": resumed, "schedule": str(schedule), "probe": self.asked.probe.hash}
        ranks.require_same("what a run is tracked by", run)
        self.run = ranks.all_gather(self.run)[0]  # names may hold the time, by each rank's own clock
        ranks.on_rank_zero(lambda: self._begin(resumed))
        self._comparing = {metric.name for metric, _ in pairs if "previous_checkpoint" in metric.captures}
        if self._comparing and self.store is not None:
            kept, of = self.store.folder_of(self.run) / KEPT, self.asked
            self._earlier = StateCache(kept, run=self.run, probe=of.probe.hash, layers=of.choice)

    def measure(
        self,
        model: nn.Module,
        step: int,
        *,
        tokens_seen: int | None = None,
        loss: Scalar = None,
        learning_rate: Scalar = None,
        root_module: nn.Module | None = None,
    ) -> None:
        """Measure the model as it is after ``step`` optimizer steps, unless the store has that already.

        What the store has from weights that a resumed training no longer reaches, after going back beyond a loss spike
        say, is measured anew and replaced.

        Args:
            model: what is measured; left as it was found.
            step: optimizer steps taken.
            tokens_seen: training tokens consumed, if known.
            loss, learning_rate: of the training, stored beside it.
            root_module: what the model is a part of, where that is sharded as a whole.

        Raises:
            Exception: what went wrong, under ``on_error="raise"``. Under "warn" it is logged once, stands in the store
                as the reason for the missing rows, and the training goes on.
        """
        start = time.perf_counter()
        try:
            with isolate_rng():
                checkpoint = Checkpoint(self.run, class_name(model), step, tokens_seen)
                self._measure(model, checkpoint, loss, learning_rate, root_module)
        except Exception as error:
            self._complain(error, step)
        self.tracking_seconds += time.perf_counter() - start

    def add_loss(self, step: int, loss: float) -> None:
        """Put the training loss beside what was measured at a step, for trainers that tell it only afterwards.

        All ranks call this, as they do :meth:`measure`.
        """
        try:
            self.stop_asked |= self._ranks.on_rank_zero(lambda: self._add_loss(self._key(step), loss))
            self._ranks.on_rank_zero(partial(self._watch.tell, step))
        except Exception as error:
            self._complain(error, step)

    def finish(self, *, interrupted: bool = False) -> None:
        """Figures beside the store and in the loggers, and a summary in the terminal; only on the first rank.

        Args:
            interrupted: an error or Ctrl-C ends the training, and is what its user must see: nothing is raised here.
        """
        if self.store is None or not self._ranks.is_rank_zero:
            return
        try:
            with isolate_rng():
                try:
                    self._store_and_log()
                except Exception as error:
                    self._keeping.rescue(error)
                if self._keeping.steps(self.run):
                    self._showing.finish(
                        self.run,
                        self.asked.probe.hash,
                        tracking_seconds=self.tracking_seconds,
                        kernel_seconds=self.kernel_seconds,
                        total_seconds=time.perf_counter() - self._start,
                    )
        except Exception as error:
            self._complain(error, None, never_raise=interrupted)

    def _measure(
        self,
        model: nn.Module,
        checkpoint: Checkpoint,
        loss: Scalar,
        learning_rate: Scalar,
        root_module: nn.Module | None,
    ) -> None:
        key = self._key(checkpoint.step)
        try:
            self._ranks.require_same("the optimizer step", key.step)
            with self._ranks.sync_errors():
                checkpoint = replace(checkpoint, weights=fingerprint(model))
            if self._ranks.on_rank_zero(lambda: self._log_again(key, checkpoint)):
                return
            profile = measure(
                model,
                self.asked.probe,
                self.asked.metrics,
                self.asked.layers,
                forward=self.asked.forward,
                token_positions=self.asked.token_positions,
                tokens_per_forward=self.asked.tokens_per_forward,
                checkpoint=checkpoint,
                on_error="raise" if self.on_error == "raise" else "record",
                root_module=root_module,
                ranks=self._ranks,
                state_cache=self._earlier,
            )
        except Exception as error:
            self._file_failure(key, checkpoint, error)
            raise
        self.kernel_seconds += profile.kernel_seconds
        with self._ranks.sync_errors():
            rows = list(profile.rows) if self._ranks.is_rank_zero else []
            if rows:
                rows += scalar_rows(checkpoint, key.probe, loss, learning_rate, partial(self._complain, step=None))
        if self._ranks.is_rank_zero:
            self._complaints.of_undefined(profile.rows, self._comparing)
            self._complaints.of_own_windows(profile.rows)
            self._keeping.take(key, rows)
        with attempts() as attempt:
            with attempt():
                self.stop_asked |= self._ranks.on_rank_zero(lambda: self._watch.see(rows))
            with attempt():
                self._ranks.on_rank_zero(self._store_and_log)
                self._forget_states(key.step)
            for view in (partial(self._watch.tell, key.step), self._showing.refresh):
                with attempt():
                    self._ranks.on_rank_zero(view)

    def _forget_states(self, step: int) -> None:
        if self._earlier is not None:
            self._earlier.forget_before(step)
            self._earlier.forget_after(step)  # of a branch that the training has gone back from

    def _add_loss(self, key: MeasurementKey, loss: float) -> bool:
        rows = self._keeping.rows(key)
        if not rows or any(row.metric == LOSS for row in rows):
            return False
        rows = [
            *rows,
            scalar_row(Checkpoint(self.run, rows[0].model, key.step, rows[0].tokens_seen), LOSS, loss, probe=key.probe),
        ]
        self._keeping.take(key, rows)
        stops = self._watch.see(rows)
        for _ in self._keeping.written():
            pass  # the loggers have the loss from the training itself
        return stops

    def _begin(self, resumed: bool) -> None:
        self._keeping.begin(self.run, resumed)
        if self.store is not None:
            self._watch.begin(self.store, self.run, self.asked.probe.hash, resumed=resumed)

    def _key(self, step: int) -> MeasurementKey:
        return MeasurementKey(self.run, step, self.asked.probe.hash, self.asked.metric_set)

    def _log_again(self, key: MeasurementKey, checkpoint: Checkpoint) -> bool:
        """Whether a step is in the store already; loggers that were opened anew are told of it once more."""
        try:
            rows = self._keeping.rows(key)
        except OSError as error:
            self._complain(error, key.step)
            rows = []
        if not rows:
            return False
        if rows[0].weights not in {None, checkpoint.weights}:
            if self._complaints.is_new("measured anew"):
                log.warning("step %d was measured on other weights before this run was resumed; done anew", key.step)
            return False
        self._log(rows)
        return True

    def _store_and_log(self) -> None:
        """Store what has been measured, then tell the loggers; what cannot be stored now is tried again next time."""
        stored = []
        try:
            for rows in self._keeping.written():
                stored.append(rows)
        finally:
            for rows in stored:
                self._log(rows)

    def _log(self, rows: Sequence[Row]) -> None:
        log_rows(rows, self.loggers(), rows[0].step, prefix=self.prefix)

    def _file_failure(self, key: MeasurementKey, checkpoint: Checkpoint, error: Exception) -> None:
        """A row for each metric that says why it is missing."""
        if not self._ranks.is_rank_zero:
            return
        names = [metric.name for metric, _ in resolve(self.asked.metrics, self.asked.probe)]
        try:
            self._keeping.file_failure(key, failure_rows(checkpoint, names, in_words(error), probe=key.probe))
        except OSError as unwritable:
            log.warning("the failure at step %d could not be stored: %s", key.step, redacted(str(unwritable)))

    def _complain(self, error: Exception, step: int | None, never_raise: bool = False) -> None:
        if self.on_error == "raise" and not never_raise:
            raise error
        if self._ranks.is_rank_zero:
            self._complaints.of_failure(error, step)
