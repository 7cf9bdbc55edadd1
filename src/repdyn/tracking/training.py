"""The tracking of one start of a training: a run of the trained weights, and one of averaged ones.

Adapters, such as the callback for Lightning, decide when a step is measured; this module does the
rest in the same way for all of them, and nothing that fails in it stops a training.

A training calls :meth:`TrackedTraining.measure` at scheduled steps and
:meth:`TrackedTraining.count_step` at every step. It ends in one of two ways:

- in order, or with time to draw: :meth:`TrackedTraining.finish`;
- by an error or a signal, when its process may be killed at any moment:
  :meth:`TrackedTraining.store_waiting_rows` at once, and :meth:`TrackedTraining.end_without_views`
  as soon as others have saved what they need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from repdyn.capture.wrappers import is_sharded
from repdyn.probe import Probe
from repdyn.store import Store
from repdyn.store.schema import Checkpoint
from repdyn.tracking.begin import Plan, averaged_plan, begin_run
from repdyn.tracking.budget import Cost
from repdyn.tracking.notices import Notices
from repdyn.tracking.options import TrackingOptions
from repdyn.tracking.origin import Origin
from repdyn.tracking.run import Moment, NullRun, TrackedRun
from repdyn.tracking.scalars import Scalar
from repdyn.tracking.schedule import Schedule
from repdyn.tracking.sinks import Loggers
from repdyn.tracking.weights import AVERAGED, Weights, weights_of
from repdyn.utils.attempts import attempts
from repdyn.utils.distributed import ALONE, Ranks, n_processes

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


def _listeners(options: TrackingOptions, monitors: Iterable[object] | None) -> Ranks | None:
    """Return all ranks where they must hear what the first has measured; None where they need not.

    They act by it where a sink may stop the training, or a callback such as EarlyStopping reads one
    of the values.
    """
    others_act = monitors is not None and (options.read_by(monitors) or options.may_stop)
    return Ranks.of_job() if others_act and n_processes() > 1 else None


class TrackedTraining:
    """The tracking of one start of a training: the model is tried, and a run begun in the store.

    All processes of a job may make one, and call its methods at the same steps; those that have
    nothing to measure return at once, without a word to the others.

    Args:
        options: what is measured, and what becomes of it.
        probe: the tokens.
        name: name of the run; other runs of the store may have it too.
        store: where the rows go; None stores nothing.
        model: what will be measured; it is tried on a window of the probe, and left as it was.
        step: optimizer steps taken.
        schedule: the steps at which :meth:`measure` will be called.
        root_module: the module that the model is a part of, where that is sharded as a whole.
        n_steps: optimizer steps of the whole training, if known.
        origin: the run that the training goes on from, if any.
        loggers: returns the loggers that get the rows once they are stored.
        label: distinguishes several trackers of one training: it leads the names in the loggers.
        settings: what the trainer knows of the training's settings, stored with the run beside
            ``options.configuration``.
        monitors: names that other callbacks decide by, the same on all ranks; None where not all of
            these call :meth:`shared` and :meth:`Cost.allows`.

    Raises:
        ValueError: a metric needs something the probe lacks, the model does not run on the probe,
            or ranks differ.
        OSError: the store cannot be written.
        RuntimeError: on ranks other than the first, when it failed there.
    """

    def __init__(
        self,
        options: TrackingOptions,
        *,
        probe: Probe,
        name: str,
        store: Store | None,
        model: nn.Module,
        step: int,
        schedule: Schedule,
        root_module: nn.Module | None = None,
        n_steps: int | None = None,
        origin: Origin | None = None,
        loggers: Callable[[], Iterable[Logger]] = tuple,
        label: str = "",
        settings: Mapping[str, Any] | None = None,
        monitors: Iterable[object] | None = None,
    ) -> None:
        self.store = store
        self.validation_loss: Scalar = None
        """The last validation loss since the measurement before: stored with the measured step once
        that step is over, since a validation comes after the step's other values."""
        root = model if root_module is None else root_module
        # two groups of ranks: those that measure, and those that must hear what was measured
        ranks = Ranks.measuring(options.ranks, is_sharded=is_sharded(root))
        self._listeners = _listeners(options, monitors)
        self._was_told_to_stop = False
        self.cost = Cost(
            budget=options.max_overhead,
            schedule=schedule,
            n_steps=n_steps,
            ranks=self._listeners or ranks or ALONE,
        )
        self.notices = Notices(options.on_error, is_silent=ranks is None or not ranks.is_rank_zero)
        # a logger never ends a training, whatever on_error says
        report = partial(self.notices.error, what="logging", never_raise=True)
        self._ranks = ranks
        self._plan = Plan(
            options=options,
            probe=probe,
            name=name,
            store=store,
            label=label,
            weights_kind="raw",
            origin=origin,
            settings={**(settings or {}), **(options.configuration or {})},
            root_module=root_module,
            cost=self.cost,
            loggers=Loggers(loggers, report),
            notices=self.notices,
        )
        self.averaged: TrackedRun | None = None
        """The run of the averaged weights, once the training has any."""
        self.raw: TrackedRun | NullRun = NullRun(self._plan.info(None), self.notices)
        """The run of the trained weights."""
        if ranks is not None:
            with self.cost.counted():
                self.raw = begin_run(self._plan, ranks, model, step)
                # a metric may compare the next step with the weights before it
                self.raw.keep_weights(step)

    @property
    def _runs(self) -> list[TrackedRun | NullRun]:
        """Return the runs, that of the trained weights last, since its page shows both."""
        return [self.raw] if self.averaged is None else [self.averaged, self.raw]

    @property
    def is_measuring(self) -> bool:
        """Return whether this process takes part in the measurements."""
        return self.raw.is_measuring

    @property
    def should_stop(self) -> bool:
        """Return whether a sink has asked to stop the training."""
        return self._was_told_to_stop or any(run.should_stop for run in self._runs)

    @property
    def prefix(self) -> str:
        """Return what leads the names in the loggers."""
        return self.raw.info.prefix

    def measure(
        self,
        model: nn.Module,
        checkpoint: Checkpoint,
        scalars: Mapping[str, Scalar],
        *,
        weights: Weights | None = None,
        averaged: Weights | None = None,
        optimizers: Sequence[Any] = (),
    ) -> None:
        """Measure the model as it is now, unless its weights have been measured at this step.

        Args:
            model: what is measured; left as it was found.
            checkpoint: the step, as the loggers of the training count, and what else the trainer
                knows of it.
            scalars: values to store with the measurement, by their names in
                :mod:`repdyn.store.schema`.
            weights: what is measured in place of the model's own weights; None for these.
            averaged: averaged weights of the same model, which are measured as well.
            optimizers: those of the training, to say why the weights have not changed.

        Raises:
            Exception: what went wrong, under ``on_error="raise"``. Under "warn" it is logged once
                and stored as the reason for the missing rows, and the training goes on.
        """
        # the step before is over, also where nobody has counted one since
        if self.raw.open_step not in {None, checkpoint.step}:
            self.close_step()
        moment = Moment(model, checkpoint, scalars, weights=weights, optimizers=optimizers)
        with self.cost.counted():  # the budget is that of both runs
            self.raw.measure(moment)
            if averaged is not None and self.is_measuring:
                with self.notices.errors(checkpoint.step):
                    self._measure_averaged(moment, averaged)
            # the measurement has used up the weights that were kept before it, and count_step,
            # which keeps those of later steps, is not called after step 0
            self.raw.keep_weights(checkpoint.step)

    def _measure_averaged(self, moment: Moment, averaged: Weights) -> None:
        """Measure the averaged weights as a run of their own, beside that of the trained ones."""
        if self._ranks is not ALONE:
            self.notices.once(
                AVERAGED, "the averaged weights of a model on several ranks are not measured"
            )
            return
        # begun with the first averages: a trainer may make them late in the training
        if self.averaged is None:
            plan = averaged_plan(self._plan)
            self.averaged = begin_run(plan, ALONE, moment.model, moment.checkpoint.step)
        in_model = weights_of(moment.model)
        # averages may be on another device, and have names that the model lacks
        on_device = {
            name: value.to(in_model[name].device)
            for name, value in averaged.items()
            if name in in_model
        }
        self.averaged.measure(replace(moment, weights=on_device, optimizers=()))

    def count_step(self, step: int) -> None:
        """Count a step of the training, after which the measured step before it is over."""
        if self.raw.open_step is not None and self.raw.open_step < step:
            self.close_step()
        self.cost.count_step(step)
        with self.cost.counted():
            self.raw.keep_weights(step)

    def keep_gradients(self, step: int) -> None:
        """Keep the gradients of a scheduled step, where a trainer clears them before the step is
        measured.
        """
        with self.cost.counted():
            self.raw.keep_gradients(step)

    def close_step(self) -> None:
        """Add the validation loss to the step that was measured last, and have it logged."""
        loss = self._take_validation_loss()
        with self.cost.counted():
            for run in self._runs:
                run.close_step(loss)

    def _take_validation_loss(self) -> Scalar:
        loss = self.validation_loss
        self.validation_loss = None
        return loss

    def add_loss(self, step: int, loss: float) -> None:
        """Store the training loss of a step that was measured before it was known."""
        with self.cost.counted():
            self.raw.add_loss(step, loss)

    def store_waiting_rows(self) -> None:
        """Store the rows that wait, within a few seconds, before an error ends the training.

        Nothing is raised: the user must see the training's own error.
        """
        loss = self._take_validation_loss()
        for run in self._runs:
            run.store_waiting_rows(loss)

    def finish(self, *, interrupted: bool = False) -> None:
        """Store all rows, let the sinks draw, and print a summary.

        Nothing is raised where an error or Ctrl-C has ``interrupted`` the training: the user must
        see that.
        """
        loss = self._take_validation_loss()
        self.cost.report()
        # the second run is finished where the first one fails, and the model is let go in any case
        try:
            with attempts() as attempt:
                for run in self._runs:
                    with attempt():
                        run.finish(loss, interrupted=interrupted)
        finally:
            self.release()

    def end_without_views(self) -> None:
        """Let the sinks end at once: they draw nothing, and log the commands that draw later."""
        for run in self._runs:
            run.end_without_views()

    def release(self) -> None:
        """Drop all references to the model, once nothing more is measured."""
        for run in self._runs:
            run.release()
        # a trainer's settings may hold the model itself, and so does the root module
        self._plan = replace(self._plan, root_module=None, settings={})

    def shared(self, prefix: str = "") -> tuple[dict[str, float], bool]:
        """Return the values that were measured last, and whether the training is to stop.

        Values have their names in the loggers, behind a prefix. Where a sink may stop the training,
        or a callback that decides about checkpoints reads a value, all ranks must call this method,
        and get what the first rank has; else no rank waits for another.
        """
        values: dict[str, float] = {}
        # the values of the trained weights come first
        for run in reversed(self._runs):
            values |= run.values()
        # EarlyStopping ends a training at the first NaN: no value is not a bad one
        values = {
            f"{prefix}{name}": value for name, value in values.items() if not math.isnan(value)
        }
        if self._listeners is not None:
            # all ranks get those of the first: checkpoints and the end of a training are decided on
            # each rank, and must be decided alike
            values, stops = self._listeners.all_gather([values, self.should_stop])[0]
            self._was_told_to_stop = stops
        return values, self.should_stop

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to remember, in built-in types: the ids of the runs that it
        belongs to, and where their store is.
        """
        return {
            "run": self.raw.info.id,
            "store": self.store.location if self.store else None,
            AVERAGED: None if self.averaged is None else self.averaged.info.id,
        }
