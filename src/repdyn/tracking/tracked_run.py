"""The tracking of one run: measure -> buffer -> store -> loggers -> alerts -> views; a failure stops no training.

Adapters, such as the callback for Lightning, decide when; this module does the rest in the same way for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from repdyn.alerts import RULES, Rule
from repdyn.capture.fsdp import class_name
from repdyn.measurement.measure import measure_with
from repdyn.metrics import resolve
from repdyn.store import MeasurementKey, Store
from repdyn.store.scalars import LOSS
from repdyn.store.schema import Checkpoint, Row, failure_rows, scalar_row
from repdyn.store.state_cache import STATES_FOLDER, StateCache
from repdyn.tracking.alert_monitor import AlertMonitor
from repdyn.tracking.config import MeasurementConfig
from repdyn.tracking.error_handling import ErrorHandling
from repdyn.tracking.interruptions import Interrupted, watching_signals
from repdyn.tracking.outcomes import Outcomes
from repdyn.tracking.overhead import ExpectedCost, Overhead, progress_of
from repdyn.tracking.row_buffer import Existing, RowBuffer
from repdyn.tracking.run_views import RunViews
from repdyn.tracking.run_warnings import RunWarnings, describe
from repdyn.tracking.schedule import Schedule
from repdyn.tracking.training_state import Scalar, fingerprint, scalar_rows
from repdyn.utils.attempts import attempts
from repdyn.utils.distributed import ALONE, Ranks

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

INTERRUPTED_SECONDS = 2.0
"""How long one access to the store may take where a user waits to save a checkpoint."""


@dataclass(kw_only=True)
class TrackedRun:
    """The tracking of one run.

    All ranks of a job make one, and call :meth:`measure` at the same steps; rank zero stores, logs and draws.
    """

    config: MeasurementConfig
    run: str
    """Name of the run in the store."""
    store: Store | None
    """Where the rows go; None stores nothing."""
    loggers: Callable[[], Iterable[Logger]] = tuple
    """Returns the loggers that get the rows once they are stored."""
    name: str = ""
    """Distinguishes several trackers of one training: it leads the names in the loggers."""
    rules: Sequence[Rule] = RULES
    """The rules that raise alerts."""
    report: bool = True
    """Whether a page beside the store shows the run while it goes on."""
    existing: Existing = "refuse"
    """What to do with a run of this name in the store that does not go on."""
    should_stop: bool = False
    """Whether an alert has requested to stop the training; the same on all ranks."""
    overhead: Overhead = field(default_factory=Overhead)
    """The time that tracking has taken in this process, and its limit."""
    kernel_seconds: float = 0.0
    """How much of it the metrics themselves took."""
    latest: Sequence[Row] = ()
    """Rows of the last measurement of this process; empty on ranks other than zero."""
    _ranks: Ranks = ALONE
    _warnings: RunWarnings = field(default_factory=RunWarnings)
    _outcomes: Outcomes = field(default_factory=Outcomes)

    def __post_init__(self) -> None:
        self._prefix = f"{self.name}_" if self.name else ""
        self._buffer = RowBuffer(self.store, self.config.probe)
        self._alerts = AlertMonitor(self.rules, self.loggers, self._prefix)
        self._views = RunViews(self.store, self.loggers, live=self.report, prefix=self._prefix)
        self._handling = ErrorHandling(self.config.on_error, self._warnings)
        self._comparing: set[str] = set()
        self._expected_cost: ExpectedCost | None = None
        self._state_cache: StateCache | None = None
        self._causal_by_stack: Mapping[str | None, bool | None] | None = None

    def begin(
        self, ranks: Ranks, schedule: Schedule, resumed: bool, model: nn.Module, root_module: nn.Module | None = None
    ) -> None:
        """Prepare the store: continue it for a resumed run, but never put a new run on top of another.

        Args:
            ranks: those of the job.
            schedule: by which :meth:`measure` will be called, on all of them.
            resumed: whether the run goes on.
            model, root_module: as for :meth:`measure`; tried on a window of the probe, and left as they were.

        Raises:
            ValueError: the store holds another run of this name, or the run was measured on another probe; a metric
                needs something the probe lacks; the model does not run on the probe; or the ranks differ.
            OSError: the store cannot be written.
            RuntimeError: on ranks other than the first, when it failed there.
        """
        self._ranks, self._handling.ranks, probe = ranks, ranks, self.config.probe
        self.overhead.begin(ranks)
        self.kernel_seconds = 0.0
        pairs = resolve(self.config.metrics, probe)
        self._views.schedule = plan = repr(schedule)
        ranks.require_same("what a run is tracked by", {"goes on": resumed, "schedule": plan, "probe": probe.hash})
        with self.overhead.counted(), ranks.sync_errors():
            self._outcomes.trial_error = self.config.check_model(model, root_module, ranks)
            # a sharded model runs on all ranks or on none
            is_timed = not any(ranks.all_gather(self._outcomes.trial_error is not None))
            self._expected_cost = self.config.expected_cost(model, root_module) if is_timed else None
        self.run = ranks.all_gather(self.run)[0]  # names may hold the time, by each rank's own clock

        def prepare_store() -> str:
            run = self._buffer.begin(self.run, resumed, self.existing)
            if self.store is not None:
                self._alerts.begin(self.store, run, probe.hash, resumed=resumed)
            return run

        self.run = ranks.on_rank_zero(prepare_store)
        self._comparing = {metric.name for metric, _ in pairs if "previous_checkpoint" in metric.captures}
        if self._comparing and self.store is not None:
            folder = self.store.folder_of(self.run) / STATES_FOLDER
            self._state_cache = StateCache(folder, run=self.run, probe=probe.hash, layers=self.config.choice)

    def start(self, step: int, schedule: Schedule, n_steps: float | None) -> None:
        """Begin the training at a step: stored steps after it are set aside, since it has gone back from them.

        ``n_steps`` are those of the whole training, for :meth:`repdyn.tracking.overhead.Overhead.announce`.
        """
        self.overhead.announce(self._expected_cost, schedule, n_steps)
        with self._handling(step):
            self._ranks.on_rank_zero(lambda: self._warnings.gone_back(self._buffer.go_back(self.run, step), step))

    def measure(
        self,
        model: nn.Module,
        step: int,
        *,
        tokens_seen: int | None = None,
        scalars: Mapping[str, Scalar] | None = None,
        root_module: nn.Module | None = None,
    ) -> None:
        """Measure the model as it is after ``step`` optimizer steps, unless the store has that already.

        Stored values of weights that a resumed training has gone back from, after a loss spike say, are replaced.

        Args:
            model: what is measured; left as it was found.
            step: optimizer steps taken.
            tokens_seen: training tokens consumed, if known.
            scalars: values of the training that are stored with the measurement, by their names in
                :mod:`repdyn.store.scalars`.
            root_module: the module that the model is a part of, where that is sharded as a whole.

        Raises:
            Exception: what went wrong, under ``on_error="raise"``. Under "warn" it is logged once and stored as the
                reason for the missing rows, and the training goes on.
        """
        config, ranks = self.config, self._ranks
        with self.overhead.counted() as work, watching_signals() as check_signals, self._handling(step):
            key = self._key(step)
            checkpoint = Checkpoint(self.run, class_name(model), step, tokens_seen)
            try:
                ranks.require_same("the optimizer step", step)
                with ranks.sync_errors():
                    checkpoint = replace(checkpoint, weights=fingerprint(model))
                    self._outcomes.raise_trial_error()
                if ranks.on_rank_zero(lambda: self._log_if_stored(key, checkpoint)):
                    self._outcomes.n_measured += 1
                    return
                work.is_attempt = True
                profile = measure_with(
                    model,
                    config.probe,
                    config.options,
                    checkpoint=checkpoint,
                    on_error="raise" if config.on_error == "raise" else "record",
                    progress=progress_of(step, check_signals, ranks),
                    root_module=root_module,
                    ranks=ranks,
                    state_cache=self._state_cache,
                    causal_by_stack=self._causal_by_stack,
                )
            except Interrupted as interrupted:
                self._outcomes.abandoned(step, interrupted)
                return
            except Exception as error:
                self._outcomes.failed(step, describe(error))
                if ranks.is_rank_zero:
                    rows = failure_rows(checkpoint, config.metric_names, describe(error), probe=key.probe)
                    self._buffer.store_failure(key, rows)
                raise
            self._outcomes.n_measured += 1
            work.is_measurement = True
            if None not in profile.causal_by_stack.values():  # undecidable at first: blocks initialised as the identity
                self._causal_by_stack = profile.causal_by_stack
            self.kernel_seconds += profile.kernel_seconds
            with ranks.sync_errors():
                rows = [*profile.rows, *profile.scalars] if ranks.is_rank_zero else []
                if rows:
                    rows += scalar_rows(checkpoint, key.probe, scalars or {}, partial(self._handling.error, step=step))
                self.latest = rows
            if ranks.is_rank_zero:
                self._warnings.of_measurement(profile.rows, self._comparing)
                self._warnings.unchanged_weights(checkpoint.weights, step)
                self._buffer.add(key, rows)
            with attempts() as attempt:
                with attempt():
                    self.should_stop |= ranks.on_rank_zero(lambda: self._alerts.check(rows))
                with attempt():
                    ranks.on_rank_zero(partial(self._buffer.flush_to, self._log))
                    if self._state_cache is not None:
                        self._state_cache.delete_before(step)
                        self._state_cache.delete_after(step)  # of steps that the training has gone back from
                with attempt():
                    ranks.on_rank_zero(partial(self._alerts.publish, step))
                with attempt(), self._handling(step, "drawing"):
                    ranks.on_rank_zero(partial(self._views.refresh, self.run, key.probe, check_signals))

    def add_loss(self, step: int, loss: float) -> None:
        """Store the training loss of a step that was measured before it was known; all ranks call this."""
        with self.overhead.counted(), self._handling(step):
            self.should_stop |= self._ranks.on_rank_zero(lambda: self._store_loss(self._key(step), loss))
            self._ranks.on_rank_zero(partial(self._alerts.publish, step))

    def flush(self) -> None:
        """Store what has been measured before an error ends the training, in a few seconds; nothing is raised."""
        with self._handling(None, never_raise=True):
            self._buffer.flush_or_rescue(self._log, INTERRUPTED_SECONDS)

    def finish(self, *, interrupted: bool = False) -> None:
        """Draw figures beside the store and in the loggers, and print a summary; on rank zero only.

        Args:
            interrupted: an error or Ctrl-C ends the training and must reach its user: nothing is raised here.
        """
        if self._ranks.is_rank_zero:
            self._outcomes.report()
            self.overhead.report()
        if self.store is None or not self._ranks.is_rank_zero:
            return
        with self._handling(None, never_raise=interrupted):
            self._buffer.flush_or_rescue(self._log)
            with self._handling(None, "drawing", never_raise=interrupted):
                if self._buffer.steps(self.run):
                    self._views.finish(
                        self.run,
                        self.config.probe.hash,
                        tracking_seconds=self.overhead.seconds,
                        kernel_seconds=self.kernel_seconds,
                        total_seconds=self.overhead.total_seconds,
                        exit_start=time.perf_counter(),
                    )

    def name_commands(self) -> None:
        """Log the commands that make the views of a training that had no time for them; on rank zero only."""
        if self._ranks.is_rank_zero:
            self._outcomes.report()
            self._views.name_commands()

    def _key(self, step: int) -> MeasurementKey:
        return MeasurementKey(self.run, step, self.config.probe.hash, self.config.metric_set)

    def _log_if_stored(self, key: MeasurementKey, checkpoint: Checkpoint) -> bool:
        """Return whether a step is in the store already; new loggers get its rows once more."""
        try:
            rows, on_others = self._buffer.rows_on(key, checkpoint.weights)
        except OSError as error:
            self._handling.error(error, key.step)
            rows, on_others = [], False
        if on_others:
            self._warnings.other_weights(key.step)
        if rows:
            self._log(rows)
        return bool(rows)

    def _store_loss(self, key: MeasurementKey, loss: float) -> bool:
        """Store the loss of a step and return whether an alert requests a stop."""
        rows = self._buffer.rows(key)
        if not rows or any(row.metric == LOSS for row in rows):
            return False
        checkpoint = Checkpoint(self.run, rows[0].model, key.step, rows[0].tokens_seen)
        rows = [*rows, scalar_row(checkpoint, LOSS, loss, probe=key.probe)]
        self._buffer.add(key, rows)
        stops = self._alerts.check(rows)
        self._buffer.flush_to(lambda _: None)  # the loggers have the loss from the training itself
        return stops

    def _log(self, rows: Sequence[Row]) -> None:
        from repdyn.publish.loggers import log_rows

        log_rows(rows, self.loggers(), rows[0].step, prefix=self._prefix, log_layers=self.config.log_layers)
