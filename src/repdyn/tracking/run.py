"""One run of a store while it grows: its rows are measured, stored and handed to sinks.

- :class:`Moment`: the model and its step, as the training hands them over.
- :class:`Measurer`: makes rows of a moment; it knows the probe and the options.
- :class:`TrackedRun`: stores the rows, tells the sinks, and reports what goes wrong.
- :class:`NullRun`: has the same methods on ranks that measure nothing.

On several ranks all of them compute, and the first alone stores, reports and calls sinks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from repdyn.capture.model import RunnableModel
from repdyn.capture.wrappers import is_sharded
from repdyn.measurement.measure import Profile, measure_with, prepare_for
from repdyn.measurement.options import Measurement
from repdyn.measurement.rows import OnError
from repdyn.metrics.logged import logged_values
from repdyn.store import MeasurementKey
from repdyn.store.schema import (
    LEARNING_RATE,
    LOSS,
    VALIDATION_LOSS,
    Checkpoint,
    Row,
    failure_rows,
)
from repdyn.store.state_cache import StateCache
from repdyn.tracking.budget import Cost, Spent
from repdyn.tracking.notices import Notices, why_unchanged
from repdyn.tracking.origin import EarlierStep, EarlierSteps
from repdyn.tracking.scalars import Scalar, scalar_rows
from repdyn.tracking.signals import LongMeasurement, MeasurementInterruptedError, watching_signals
from repdyn.tracking.sinks import RunInfo, Sinks
from repdyn.tracking.weights import AVERAGED, LastStep, Weights, fingerprint
from repdyn.tracking.writer import (
    END_SECONDS,
    INTERRUPTED_SECONDS,
    UPLOAD_SECONDS,
    Writer,
)
from repdyn.utils.attempts import attempts
from repdyn.utils.distributed import Ranks


@dataclass(frozen=True)
class Moment:
    """Holds the state of a training at a step that is measured."""

    model: nn.Module
    """What is measured; left as it was found."""
    checkpoint: Checkpoint
    scalars: Mapping[str, Scalar]
    weights: Weights | None = None
    """What is measured in place of the model's own weights."""
    optimizers: Sequence[Any] = ()

    def why_unchanged(self) -> str:
        """Return why the weights may be those of an earlier step."""
        return why_unchanged(self.model, self.scalars.get(LEARNING_RATE), self.optimizers)


@dataclass(kw_only=True)
class Measurer:
    """Measures the model of one run, each time in the same way.

    It remembers from one measurement to the next how the model was prepared, and the states and
    weights that some metrics compare the next step with.
    """

    measurement: Measurement
    """What is measured, and on which tokens."""
    on_error: OnError
    ranks: Ranks
    """The processes that measure together."""
    cost: Cost
    last_step: LastStep
    """Keeps the gradients and weights of the step before a measurement, for metrics of these."""
    root_module: nn.Module | None
    """The module that the model is a part of, where that is sharded as a whole."""
    rank: int | None
    """The number of this process, where it measures alone in a job of several."""
    last_prepared: RunnableModel | None
    """The model as it was prepared last, which spares the next measurement the trial."""
    state_cache: StateCache | None
    """The states of the last measured step, where a metric compares steps."""
    model_name: str
    """The class of the model."""

    def measure(self, moment: Moment, checkpoint: Checkpoint, arrived: list[int]) -> Profile:
        """Run the model on the probe, and compute the requested metrics.

        Args:
            moment: the model and its weights.
            checkpoint: what the rows say of the step.
            arrived: the signals that have arrived; the measurement is broken off by the first.
        """
        prepared = prepare_for(
            moment.model,
            self.measurement,
            root_module=self.root_module,
            parameters=moment.weights,
            ranks=self.ranks,
            former=self.last_prepared,
        )
        # without the weights in place of the model's own, which are those of this step alone
        self.last_prepared = replace(prepared, parameters={}) if prepared.parameters else prepared
        return measure_with(
            prepared,
            self.measurement,
            checkpoint=checkpoint,
            on_error=self.on_error,
            progress=LongMeasurement(checkpoint.step, arrived, self.ranks),
            ranks=self.ranks,
            state_cache=self.state_cache,
            last_step=self.last_step.take(checkpoint.step, prepared.module),
        )

    def identified(self, moment: Moment, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint with the fingerprint of its weights, the same on all ranks."""
        model = moment.model
        with self.ranks.sync_errors():
            checkpoint = replace(checkpoint, weights=fingerprint(model, moment.weights))
        if self.ranks.size > 1:
            self.ranks.require_same("the optimizer step", checkpoint.step)
            # each rank runs a part of the probe, so that the values would be of a mixture of
            # models; of a sharded one, each rank has other weights
            if not is_sharded(model):
                same = fingerprint(model, moment.weights, with_buffers=True)
                self.ranks.require_same("the weights of the model", same)
        return checkpoint

    def release(self) -> None:
        """Drop all references to the model."""
        self.root_module = None
        self.last_prepared = None
        self.last_step.module = None
        self.last_step.forget()


class TrackedRun:
    """Measures one run of the store, stores its rows and hands them to sinks.

    Each rank that measures has one, and calls its methods at the same steps. A training calls:

    1. :meth:`measure` at a scheduled step. What goes wrong in it is reported, and stored as the
       reason for the missing rows; it is raised under ``on_error="raise"`` alone.
    2. :meth:`add_loss` and :meth:`close_step`, since losses may be known later: a step is *open*
       from its measurement until the next step of the training.
    3. :meth:`finish` at the end; or, where an error or a signal ends the training,
       :meth:`store_waiting_rows` at once and :meth:`end_without_views` last.

    Sinks hear of rows once these are stored, so that each of them can be made anew from the store.

    Args:
        info: what the sinks are told of the run.
        measurer: measures the model.
        notices: reports errors and warnings, each kind once.
        writer: writes the rows to the store.
        sinks: hear of the rows once they are stored.
        earlier: the steps that the runs before this one have measured; None where the training
            does not go on from a run.
    """

    is_measuring = True

    def __init__(
        self,
        info: RunInfo,
        measurer: Measurer,
        notices: Notices,
        writer: Writer,
        sinks: Sinks,
        earlier: EarlierSteps | None,
    ) -> None:
        self.info = info
        self.notices = notices
        self.writer = writer
        self.should_stop = False
        """True once a sink has asked to stop the training."""
        self.latest: Sequence[Row] = ()
        """The rows of the last measurement of this process."""
        self.open_step: int | None = None
        """The step that was measured last, until the training goes on to the next one."""
        self._measurer = measurer
        self._sinks = sinks
        self._earlier = earlier
        self._rows: list[Row] = []
        """The rows of the last measurement, and of its losses that were known later: a file of the
        store holds a whole step, and is written again when a loss comes."""
        # a trainer may end without calling finish: the writer then says where its rows are
        weakref.finalize(self, writer.report, "the training ended before it did")

    def measure(self, moment: Moment) -> None:
        """Measure a model, unless an earlier run has measured its weights at this step.

        Steps are not repeated where a training goes on from an earlier checkpoint: the rows of the
        run that measured them become rows of this one too.
        """
        step = moment.checkpoint.step
        # also where the measurement fails: losses and the end of the step belong to it
        self.open_step = step
        with watching_signals() as arrived, self.notices.errors(step):
            rows = self._rows_of(moment, arrived)
            if rows is not None:
                self.latest = rows
                # a signal came too late to break the measurement off: its rows are stored, but
                # nothing is drawn, since the process may be killed soon
                in_haste = bool(arrived)
                self._on_first(partial(self._store, step, rows, rows, in_haste=in_haste))

    def _rows_of(self, moment: Moment, arrived: list[int]) -> list[Row] | None:
        """Return the rows of a step: those of an earlier run that has measured the same weights, or
        else those of a measurement, which are on the first of the ranks alone; None where a signal
        has broken it off.
        """
        measurer = self._measurer
        key = self._key(moment.checkpoint.step)
        checkpoint = replace(
            moment.checkpoint,
            run=self.info.name,
            run_id=self.info.id,
            rank=measurer.rank,
            model=measurer.model_name,
            weights_kind=self.info.weights_kind,
        )
        try:
            checkpoint = measurer.identified(moment, checkpoint)
            earlier = None
            if self._earlier is not None:
                earlier = self._earlier_step(self._earlier, key, checkpoint.weights)
            if earlier is not None and earlier.has_states:
                self.notices.n_measured += 1
                return earlier.rows
            # an earlier step whose states are gone is measured again for these alone: the next step
            # is compared with them
            measurer.cost.note_attempt()
            profile = measurer.measure(moment, checkpoint, arrived)
        except MeasurementInterruptedError as interrupted:
            # told at the end, and not stored: the measurement has not failed
            self.notices.failures[key.step] = str(interrupted)
            text = f"step {key.step} is not measured: {interrupted}"
            self.notices.once(f"abandoned {key.step}", text)
            return None
        except Exception as error:
            self._store_failure(key, checkpoint, error)
            raise
        self.notices.n_measured += 1
        measurer.cost.note_measurement()
        if earlier is not None:
            return earlier.rows
        # a scalar that is no number may raise on the first rank, whose scalars alone are read
        with measurer.ranks.sync_errors():
            return self._all_rows(moment, profile) if measurer.ranks.is_rank_zero else []

    def _earlier_step(
        self, earlier: EarlierSteps, key: MeasurementKey, weights: str | None
    ) -> EarlierStep | None:
        """Return the step as an earlier run has measured it, the same on all ranks; None where none
        has.
        """

        def find() -> EarlierStep | None:
            # a store that does not answer costs a measurement, not the step
            try:
                return self.writer.call(
                    "reading", lambda _: earlier.find(key, weights, self._measurer.state_cache)
                )
            except OSError as error:
                self.notices.error(error, key.step)
                return None

        return self._measurer.ranks.on_rank_zero(find)

    def _store_failure(self, key: MeasurementKey, checkpoint: Checkpoint, error: Exception) -> None:
        """Note why a step has no values, on the first of the ranks in the store as well."""
        measurer = self._measurer
        reason = f"{type(error).__name__}: {error}"
        self.notices.failures[key.step] = reason
        if measurer.ranks.is_rank_zero:
            names = [request.name for request in measurer.measurement.requests]
            rows = failure_rows(checkpoint, names, reason, probe=key.probe)
            self.writer.store_failure(key, rows)

    def _all_rows(self, moment: Moment, profile: Profile) -> list[Row]:
        """Return the rows of a measurement and of what else is known of its step."""
        checkpoint = profile.checkpoint
        # an average may change once an epoch
        trained = checkpoint.weights if self.info.weights_kind != AVERAGED else None
        self.notices.of_measurement(
            profile.rows, trained, self._measurer.measurement.comparing, moment.why_unchanged
        )
        on_error = partial(self.notices.error, step=checkpoint.step)
        scalars = scalar_rows(checkpoint, self.info.probe, moment.scalars, on_error)
        return [*profile.rows, *profile.scalars, *scalars]

    def _key(self, step: int) -> MeasurementKey:
        return MeasurementKey(
            run=self.info.id or self.info.name,
            step=step,
            probe=self.info.probe,
            metrics=self._measurer.measurement.identity,
        )

    def _on_first(self, function: Callable[[], None]) -> None:
        """Call a function on the first of the ranks; all learn if a sink asks to stop."""

        def call() -> bool:
            function()
            return self.should_stop

        self.should_stop |= self._measurer.ranks.on_rank_zero(call)

    def _store(self, step: int, rows: list[Row], new: list[Row], *, in_haste: bool = False) -> None:
        """Store all rows of a step, and tell the sinks of the new ones.

        ``in_haste``, after a signal, sinks that draw hear nothing.
        """
        self._rows = rows
        self.writer.add(self._key(step), rows, new)
        with attempts() as attempt:
            with attempt():
                # steps that the store did not take before are written too, and told of then
                self.writer.flush(partial(self._sinks.rows, in_haste=in_haste))
                # only now: who is killed before measures this step again, and needs them again
                if self._measurer.state_cache is not None:
                    self._measurer.state_cache.delete_before(step)
            with attempt():
                # also where the store has failed: alerts do not wait for a disk
                self._sinks.urgent(step, new)
        self._take_requests()

    def _take_requests(self) -> None:
        """Note whether a sink asks to stop the training."""
        for request in self._sinks.take_requests():
            self.should_stop = True
            text = f"the training is to stop at step {request.step}, as requested by: "
            self.notices.once(f"stop {request}", text + request.reason)

    def keep_gradients(self, step: int) -> None:
        """Keep the gradients of a step if it is scheduled and a metric needs them."""
        self._measurer.last_step.keep_gradients(step)

    def keep_weights(self, step: int) -> None:
        """Keep the weights after a step if the next one is scheduled and a metric needs them."""
        self._measurer.last_step.keep_weights(step)

    def add_loss(self, step: int, loss: Scalar, name: str = LOSS) -> None:
        """Store a loss that was known after its step was measured; nothing where another step was
        measured since.
        """
        with self.notices.errors(step):
            self._on_first(partial(self._store_loss, step, name, loss))

    def _store_loss(self, step: int, name: str, loss: Scalar) -> None:
        rows = self._rows
        # nothing of this step is stored, or the loss was known when it was measured
        if not rows or rows[0].step != step or any(row.metric == name for row in rows):
            return
        on_error = partial(self.notices.error, step=step)
        new = scalar_rows(rows[0].checkpoint, self.info.probe, {name: loss}, on_error)
        self._store(step, [*rows, *new], new)

    def close_step(self, validation_loss: Scalar) -> None:
        """Add the validation loss to the open step, and tell the sinks that the step is over."""
        step = self.open_step
        self.open_step = None
        if step is not None:
            with self.notices.errors(step):
                self._on_first(partial(self._close, step, validation_loss))

    def _close(self, step: int, validation_loss: Scalar) -> None:
        with attempts() as attempt:
            with attempt():
                if validation_loss is not None:
                    self._store_loss(step, VALIDATION_LOSS, validation_loss)
            with attempt():
                self._sinks.step_over(step)
                self._take_requests()

    def store_waiting_rows(self, validation_loss: Scalar) -> None:
        """Store the rows that wait, within a few seconds, before an error ends the training.

        Nothing is raised. The sinks are not ended: see :meth:`end_without_views`.
        """
        # nothing waits for the other ranks, which the error need not have reached
        if self._measurer.ranks.is_rank_zero:
            with self.notices.errors(None, never_raise=True):
                self.writer.flush(self._sinks.rows, INTERRUPTED_SECONDS)
                self._close_open_step(validation_loss)

    def _close_open_step(self, validation_loss: Scalar) -> None:
        if self.open_step is not None:
            self._close(self.open_step, validation_loss)

    def finish(self, validation_loss: Scalar, *, interrupted: bool) -> None:
        """Store all rows and let the sinks finish, views included.

        Nothing is raised where an error or Ctrl-C has ``interrupted`` the training: the user must
        see that.
        """
        if not self._measurer.ranks.is_rank_zero:
            return
        self.notices.report()
        seconds = INTERRUPTED_SECONDS if interrupted else END_SECONDS
        # each part is tried, whatever became of the one before
        with self.notices.errors(None, never_raise=interrupted), attempts() as attempt:
            with attempt():
                self.writer.flush(self._sinks.rows, seconds)
            with attempt():
                # the last step has no next one that would close it
                self._close_open_step(validation_loss)
                self.info.loggers.wait(seconds)
            with attempt():
                self._sinks.end(Spent(self._measurer.cost), interrupted=False)
                self.writer.wait_for_uploads(UPLOAD_SECONDS)

    def end_without_views(self) -> None:
        """Let the sinks end at once, where the process may be killed at any moment.

        The rows have been stored by :meth:`store_waiting_rows`.
        """
        if self._measurer.ranks.is_rank_zero:
            self.notices.report()
            self.writer.wait_for_uploads(INTERRUPTED_SECONDS)
            self._sinks.end(Spent(self._measurer.cost), interrupted=True)

    def release(self) -> None:
        """Drop all references to the model, once nothing more is measured."""
        self._measurer.release()
        self.info.loggers.release()

    def values(self) -> dict[str, float]:
        """Return the values that were measured last, by their names in the loggers."""
        rows = [row for row in self.latest if row.head is None]
        named = logged_values(rows, "all")
        return {f"{self.info.prefix}{name}": value for name, value in named.items()}


class NullRun:
    """The run of a process that measures nothing: its methods do nothing and wait for no rank."""

    is_measuring = False
    should_stop = False
    open_step: int | None = None

    def __init__(self, info: RunInfo, notices: Notices) -> None:
        self.info = info
        self.notices = notices

    def measure(self, moment: Moment) -> None:
        """Measure nothing."""

    def keep_gradients(self, step: int) -> None:
        """Keep nothing."""

    def keep_weights(self, step: int) -> None:
        """Keep nothing."""

    def add_loss(self, step: int, loss: Scalar, name: str = LOSS) -> None:
        """Store nothing."""

    def close_step(self, validation_loss: Scalar) -> None:
        """Store nothing."""

    def store_waiting_rows(self, validation_loss: Scalar) -> None:
        """Store nothing."""

    def finish(self, validation_loss: Scalar, *, interrupted: bool) -> None:
        """Finish nothing."""

    def end_without_views(self) -> None:
        """End nothing."""

    def release(self) -> None:
        """Drop the references to the trainer's loggers."""
        self.info.loggers.release()

    def values(self) -> dict[str, float]:
        """Return no value."""
        return {}
