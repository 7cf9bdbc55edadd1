"""One tracked run: ``rows = measured(step)``, then ``deliver(rows)``; what fails stops no training.

Adapters, such as the callback for Lightning, decide when; this module does the rest in the same way
for all of them.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repdyn.capture.blocks import class_name, is_a, is_sharded
from repdyn.capture.capture import try_model
from repdyn.capture.runnable_model import RunnableModel
from repdyn.capture.trial import prepare
from repdyn.measurement.measure import Profile, measure_with, prepare_for
from repdyn.metrics import BlockWeights, resolve
from repdyn.metrics.logged import logged_values
from repdyn.probe import Probe
from repdyn.store import MeasurementKey, Store
from repdyn.store.files import STATES_FOLDER
from repdyn.store.remote import RefusedError, RemoteError
from repdyn.store.runs import run_in
from repdyn.store.schema import (
    LEARNING_RATE,
    LOSS,
    VALIDATION_LOSS,
    Checkpoint,
    Row,
    failure_rows,
    scalar_row,
)
from repdyn.store.state_cache import StateCache
from repdyn.tracking.budget import Cost, Spent
from repdyn.tracking.notices import Notices, why_unchanged
from repdyn.tracking.options import TrackingOptions, WhichRanks
from repdyn.tracking.progress import LongMeasurement
from repdyn.tracking.schedule import Schedule
from repdyn.tracking.signals import MeasurementInterruptedError, watching_signals
from repdyn.tracking.sinks import Loggers, RunInfo, Sinks
from repdyn.tracking.writer import (
    END_SECONDS,
    INTERRUPTED_SECONDS,
    STORE_SECONDS,
    UPLOAD_SECONDS,
    Writer,
)
from repdyn.utils.attempts import TimeoutRunner, attempts
from repdyn.utils.caller_state import isolated_rng, plain_state
from repdyn.utils.distributed import ALONE, Ranks
from repdyn.utils.files import is_url

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

Scalar: TypeAlias = float | Tensor | None
"""A number, on any device; None where it is not known."""
Weights: TypeAlias = Mapping[str, Tensor]
"""Parameters and buffers by their names in the module that is measured."""

AVERAGED = "averaged"
"""Kind of the weights, and what the name of their run and their names in the loggers say."""
_PER_TENSOR = 64


@dataclass(frozen=True)
class Origin:
    """The run that a training goes on from, as a checkpoint remembers it."""

    run_id: str
    store: str | None = None
    """Where its rows are; None for the store of the run that goes on."""
    averaged: str | None = None
    """Id of the run of its averaged weights, if it has one."""

    @classmethod
    def of(cls, state: Mapping[str, Any] | None) -> Origin | None:
        """Return the run of a state that :meth:`TrackedRun.state` returned; None where that is of
        no run.
        """
        return (
            cls(state["run"], state["store"], state.get(AVERAGED))
            if state and state.get("run")
            else None
        )

    def found_in(self, folders: Iterable[Path]) -> str | Path | None:
        """Return the store if it is in one of these folders, moved or not; None if it is not. A URL
        is everywhere.
        """
        if self.store is None or is_url(self.store):
            return self.store
        parts, places = Path(self.store).parts, [folder.absolute() for folder in folders]
        found = (
            place.joinpath(*parts[-n:]) for n in range(len(parts) - 1, 0, -1) for place in places
        )
        return next(
            (store for store in found if Store(store).find_run(self.run_id) is not None), None
        )

    def near(self, checkpoint: str | Path | None) -> Origin:
        """Return the origin with the place of its store where that was moved together with a
        checkpoint.
        """
        if (
            self.store is None
            or is_url(self.store)
            or checkpoint is None
            or Store(self.store).find_run(self.run_id)
        ):
            return self
        moved = self.found_in(Path(checkpoint).absolute().parents)
        return self if moved is None else replace(self, store=str(moved))


class TrackedRun:
    """The tracking of one start of a training: the model is tried, and a run begun in the store.

    All processes of a job may make one, and call its methods at the same steps; those that have
    nothing to measure return at once, without a word to the others.

    Args:
        options: what is measured, and what becomes of it.
        probe: the tokens.
        name: of the run, which others in the store may have too.
        store: where the rows go; None stores nothing.
        model: what will be measured; it is tried on a window of the probe, and left as it was.
        step: optimizer steps taken.
        schedule: by which :meth:`measure` will be called.
        root_module: the module that the model is a part of, where that is sharded as a whole.
        n_steps: of the whole training, if known.
        origin: the run that the training goes on from, if any.
        loggers: returns the loggers that get the rows once they are stored.
        label: distinguishes several trackers of one training: it leads the names in the loggers.
        weights_kind: of the weights that are measured.
        settings: those of the training that its trainer knows, stored with the run beside those of
            the options.
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
        probe: Probe,
        name: str,
        store: Store | None,
        model: nn.Module,
        step: int,
        schedule: Schedule,
        *,
        root_module: nn.Module | None = None,
        n_steps: int | None = None,
        origin: Origin | None = None,
        loggers: Callable[[], Iterable[Logger]] = tuple,
        label: str = "",
        weights_kind: str = "raw",
        settings: Mapping[str, Any] | None = None,
        monitors: Iterable[object] | None = None,
    ) -> None:
        self.options, self.probe, self.name, self.store = options, probe, name, store
        self.weights_kind, self._origin, self._root_module = weights_kind, origin, root_module
        self._settings = {**(settings or {}), **(options.configuration or {})}
        self.id: str | None = None
        """Id of the run in the store."""
        self.should_stop = False
        """Whether an alert has requested to stop the training."""
        self.latest: Sequence[Row] = ()
        """Rows of the last measurement of this process."""
        self._rows: list[Row] = []
        """Those, and its losses that were known later."""
        self.averaged: TrackedRun | None = None
        """The run of the averaged weights, once there are any."""
        self.validation_loss: Scalar = None
        """The last one since the measurement before; stored with the measured step when that is
        over.
        """
        self._open_step: int | None = None
        self.prefix = f"{label}_" if label else ""
        """Leads the names in the loggers."""
        pairs = resolve(options.metrics, probe)
        self._captures = frozenset().union(*(metric.captures for metric, _ in pairs))
        self._gradients: tuple[int, dict[str, Tensor]] = -1, {}
        self._before: tuple[int, dict[str, Tensor]] = -1, {}
        """Gradients of a step, and the weights after one whose next one is scheduled, if a metric
        needs them.
        """
        self._ranks = ranks = measuring_ranks(
            model if root_module is None else root_module, options.ranks
        )
        self.is_measuring = ranks is not None
        """Whether this process takes part in the measurements."""
        # what was measured decides about other ranks by a rule that stops or a value that is read
        decides = monitors is not None and (options.read_by(monitors) or options.may_stop)
        self._listeners = Ranks.of_job() if decides and _n_processes() > 1 else None
        self.cost = Cost(options.max_overhead, schedule, n_steps, self._listeners or ranks or ALONE)
        self.notices = Notices(options.on_error, is_silent=ranks is None or not ranks.is_rank_zero)
        report = partial(self.notices.error, what="logging", never_raise=True)
        self._loggers = Loggers(loggers, report)
        if ranks is None:
            return
        ranks.require_same(
            "what a run is tracked by", {"schedule": repr(schedule), "probe": probe.hash}
        )
        with self.cost.counted():
            with isolated_rng(), ranks.sync_errors():
                self._prepared = self._tried(model, ranks)
            self._writer = Writer(store, probe)
            # a trainer that fails without notice leaves rows there until the process ends
            weakref.finalize(self, self._writer.report, "the training ended before it did")
            self._sinks = Sinks(options.sinks_of_a_run(), self.notices)
            self._comparing = {
                metric.name for metric, _ in pairs if "previous_checkpoint" in metric.captures
            }
            self._state_cache: StateCache | None = None
            if store is not None:
                self.id = ranks.on_rank_zero(partial(self._begin, store, step))
                if self._comparing:
                    self._state_cache = self._states_in(
                        store.folder_of(self.id),
                        self.id,
                        earlier=None if origin is None else self._earlier_states(store, self.id),
                    )
            info = RunInfo(
                name=name,
                id=self.id,
                store=store,
                probe=probe.hash,
                weights_kind=weights_kind,
                metrics=tuple((metric.name, subset) for metric, subset in pairs),
                schedule=repr(schedule),
                configuration=options.configuration or {},
                label=label,
                has_history=origin is not None,
                loggers=self._loggers,
            )
            if ranks.is_rank_zero:
                self._sinks.begin(info, step)
            self._key = MeasurementKey(self.id or name, step, probe.hash, options.identity(probe))
            self._rank = dist.get_rank() if ranks.size == 1 and _n_processes() > 1 else None
            self._keep_weights(step)

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
        if self._ranks is None:
            return
        step = checkpoint.step
        if self._open_step not in {None, step}:
            self.close_step()
        self._open_step = step
        cause = partial(why_unchanged, model, scalars.get(LEARNING_RATE), optimizers)
        with self.cost.counted(), watching_signals() as arrived, self.notices.errors(step):
            rows = self._measured(model, checkpoint, scalars, weights, arrived, cause)
            if rows is not None:
                self.latest = rows
                haste = bool(arrived)
                self._on_first(partial(self._store, step, rows, rows, in_haste=haste))
        if averaged is not None:
            self._measure_averaged(model, checkpoint, scalars, averaged)
        # what was kept is used up, and no step is counted after a measurement of step 0
        self._keep_weights(step)

    def _measured(
        self,
        model: nn.Module,
        checkpoint: Checkpoint,
        scalars: Mapping[str, Scalar],
        weights: Weights | None,
        arrived: list[int],
        cause: Callable[[], str],
    ) -> list[Row] | None:
        """Return the rows of a step, on the first of the ranks; None where the measurement was
        abandoned.
        """
        ranks, options, step = self._ranks or ALONE, self.options, checkpoint.step
        key, own = (
            replace(self._key, step=step),
            {"run": self.name, "run_id": self.id, "rank": self._rank},
        )
        checkpoint = replace(
            checkpoint, **own, model=class_name(model), weights_kind=self.weights_kind
        )
        try:
            checkpoint = self._identified(model, checkpoint, weights)
            taken_over = None
            if self._origin is not None and self.store is not None:
                taken_over = ranks.on_rank_zero(partial(self._find, key, checkpoint.weights))
            if taken_over is not None and taken_over[1]:
                self.notices.n_measured += 1
                return taken_over[0]
            profile = self._profile(model, checkpoint, weights, arrived)
        except MeasurementInterruptedError as interrupted:
            self.notices.failures[step] = str(interrupted)
            self.notices.once(f"abandoned {step}", f"step {step} is not measured: {interrupted}")
            return None
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self.notices.failures[step] = reason
            if ranks.is_rank_zero:
                names = [metric.name for metric, _ in resolve(options.metrics, self.probe)]
                self._writer.store_failure(
                    key, failure_rows(checkpoint, names, reason, probe=key.probe)
                )
            raise
        self.notices.n_measured += 1
        self.cost.is_measurement = True
        with ranks.sync_errors():  # a scalar that is no number may raise on the first alone
            if not ranks.is_rank_zero:
                return []
            if taken_over is not None:  # measured again for its states alone
                return taken_over[0]
            # an average may change once an epoch
            trained = checkpoint.weights if self.weights_kind != AVERAGED else None
            self.notices.of_measurement(profile.rows, trained, self._comparing, cause)
            on_error = partial(self.notices.error, step=step)
            return [
                *profile.rows,
                *profile.scalars,
                *scalar_rows(profile.checkpoint, key.probe, scalars, on_error),
            ]

    def _identified(
        self, model: nn.Module, checkpoint: Checkpoint, weights: Weights | None
    ) -> Checkpoint:
        """Return a checkpoint with the fingerprint of its weights, the same on all ranks."""
        ranks = self._ranks or ALONE
        with ranks.sync_errors():
            checkpoint = replace(checkpoint, weights=fingerprint(model, weights))
        if ranks.size > 1:
            ranks.require_same("the optimizer step", checkpoint.step)
            if not is_sharded(model):
                same = fingerprint(model, weights, with_buffers=True)
                ranks.require_same("the weights of the model", same)
        return checkpoint

    def _profile(
        self, model: nn.Module, checkpoint: Checkpoint, weights: Weights | None, arrived: list[int]
    ) -> Profile:
        """Run the model, and compute what was requested."""
        ranks, options, step = self._ranks or ALONE, self.options, checkpoint.step
        self.cost.is_attempt = True
        prepared = prepare_for(
            model,
            self.probe,
            options,
            root_module=self._root_module,
            parameters=weights,
            ranks=ranks,
            former=self._prepared,
        )
        self._prepared = replace(prepared, parameters={})
        return measure_with(
            prepared,
            self.probe,
            options,
            checkpoint=checkpoint,
            on_error="raise" if options.on_error == "raise" else "record",
            progress=LongMeasurement(step, arrived, ranks),
            ranks=ranks,
            state_cache=self._state_cache,
            last_step=self._last_step(step, prepared.module),
        )

    def _on_first(self, function: Callable[[], None]) -> None:
        """Call a function on the first of the ranks; all learn whether an alert has requested to
        stop.
        """
        ranks = self._ranks or ALONE
        self.should_stop |= ranks.on_rank_zero(lambda: function() or self.should_stop)

    def _store(self, step: int, rows: list[Row], new: list[Row], *, in_haste: bool = False) -> None:
        """Store all rows of a step, and tell the sinks of the new ones."""
        self._rows = rows
        self._writer.add(replace(self._key, step=step), rows, new)
        with attempts() as attempt:
            with attempt():
                self._writer.flush(partial(self._sinks.rows, in_haste=in_haste))
                if self._state_cache is not None:
                    self._state_cache.delete_before(step)
            with attempt():
                self._sinks.urgent(step, new)
        self._take_requests()

    def _take_requests(self) -> None:
        """Note whether a sink asks to stop the training."""
        for request in self._sinks.take_requests():
            self.should_stop = True
            self.notices.once(
                f"stop at {request.step}: {request.reason}",
                f"the training is to stop at step {request.step}, as requested by: "
                f"{request.reason}",
            )

    def count_step(self, step: int) -> None:
        """Count a step of the training, after which the measured step before it is over."""
        if self._open_step is not None and self._open_step < step:
            self.close_step()
        self.cost.count_step(step)
        if self._ranks is not None:
            self._keep_weights(step)

    def keep_gradients(self, step: int) -> None:
        """Keep the gradients of a scheduled step, for a trainer that clears them before the step is
        measured.
        """
        if (
            "gradients" in self._captures
            and self._ranks is not None
            and self._prepared
            and step in self.cost.schedule
        ):
            with self.cost.counted():
                self._gradients = (
                    step,
                    {
                        name: each.clone()
                        for name, each in _gradients(self._prepared.module).items()
                    },
                )

    def _keep_weights(self, step: int) -> None:
        """Keep the weights after a step, from which the next one leads to weights that are
        measured.
        """
        is_needed = "weights_before" in self._captures and step + 1 in self.cost.schedule
        if is_needed and self._prepared is not None and self._before[0] != step:
            own = self._prepared.module.named_parameters()
            with self.cost.counted():
                self._before = step, {name: weight.detach().clone() for name, weight in own}

    def _last_step(self, step: int, module: nn.Module) -> BlockWeights | None:
        """Return what is known of the training step before a measurement."""
        if self.weights_kind == AVERAGED or not self._captures & {"gradients", "weights_before"}:
            return None
        (kept_at, gradients), (after, before) = self._gradients, self._before
        self._gradients = self._before = -1, {}
        gradients = gradients if kept_at == step else _gradients(module)
        return BlockWeights({}, gradients, before if after == step - 1 else {})

    def close_step(self) -> None:
        """Add the validation loss to the step that was measured last, and log all its values at
        once.
        """
        step, self._open_step = self._open_step, None
        if self._ranks is None or step is None:
            return
        if self.averaged is not None:
            self.averaged.validation_loss = self.validation_loss
            self.averaged.close_step()
        with self.cost.counted(), self.notices.errors(step):
            self._on_first(partial(self._close, step))

    def _close(self, step: int | None) -> None:
        """Store the validation loss, and serve the loggers."""
        loss, self.validation_loss = self.validation_loss, None
        with attempts() as attempt:
            with attempt():
                if step is not None and loss is not None:
                    self._store_loss(step, VALIDATION_LOSS, loss)
            with attempt():
                if step is not None:
                    self._sinks.step_over(step)
                    self._take_requests()

    def add_loss(self, step: int, loss: float) -> None:
        """Store the training loss of a step that was measured before it was known."""
        if self._ranks is None:
            return
        with self.cost.counted(), self.notices.errors(step):
            self._on_first(partial(self._store_loss, step, LOSS, loss))

    def flush(self) -> None:
        """Store what was measured before an error ends the training, in a few seconds; nothing is
        raised.
        """
        if self._ranks is not None and self._ranks.is_rank_zero:
            with self.notices.errors(None, never_raise=True):
                self._writer.flush(self._sinks.rows, INTERRUPTED_SECONDS)
                self._close(self._open_step)
        if self.averaged is not None:
            self.averaged.flush()

    def finish(self, *, interrupted: bool = False) -> None:
        """Draw figures beside the store and in the loggers, and print a summary; nothing is raised
        where an error or Ctrl-C has ``interrupted`` the training, which must reach its user."""
        if self.averaged is not None:
            self.averaged.finish(interrupted=interrupted)
        try:
            if self._ranks is not None and self._ranks.is_rank_zero:
                self._finish(interrupted)
        finally:
            self.release()

    def release(self) -> None:
        """Keep nothing that keeps the model alive, once nothing more is measured."""
        if self.averaged is not None:
            self.averaged.release()
        self._prepared = self._root_module = None
        self._gradients = self._before = -1, {}
        self._settings = {}  # a trainer's may hold the model itself
        self._loggers.of_training = tuple  # which are those of a trainer that has the model

    def _finish(self, interrupted: bool) -> None:
        self.notices.report()
        self.cost.report()
        if self.store is None or self.id is None:
            return
        seconds = INTERRUPTED_SECONDS if interrupted else END_SECONDS
        with self.notices.errors(None, never_raise=interrupted), attempts() as attempt:
            with attempt():
                self._writer.flush(self._sinks.rows, seconds)
            with attempt():
                self._close(self._open_step)
                self._loggers.wait(seconds)
            with attempt():
                self._sinks.end(Spent(self.cost), interrupted=False)
                self._writer.wait_for_uploads(UPLOAD_SECONDS)

    def name_commands(self) -> None:
        """Log the commands that make the views of a training that had no time for them."""
        if self._ranks is not None and self._ranks.is_rank_zero:
            self.notices.report()
            self._writer.wait_for_uploads(INTERRUPTED_SECONDS)
            self._sinks.end(Spent(self.cost), interrupted=True)

    def shared(self, prefix: str = "") -> tuple[dict[str, float], bool]:
        """Return what was measured last by its names in the loggers, behind a prefix, and whether
        to stop.

        Where a rule may stop the training, or what decides about checkpoints reads a value, all
        ranks get those of the first, which all of them must call; else no rank waits for another.
        """
        values = {
            f"{prefix}{run.prefix}{name}": value
            for run in filter(None, (self, self.averaged))
            for name, value in logged_values(
                [row for row in run.latest if row.head is None], "all"
            ).items()
            if not math.isnan(value)
        }
        if self._listeners is not None:
            values, self.should_stop = self._listeners.all_gather([values, self.should_stop])[0]
        return values, self.should_stop

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to remember, of built-in types: which run it belongs to,
        and where that is.
        """
        averaged = self.averaged.id if self.averaged is not None else None
        return {
            "run": self.id,
            "store": self.store.location if self.store else None,
            AVERAGED: averaged,
        }

    def _begin(self, store: Store, step: int) -> str:
        """Begin the run in the store, on the first of the ranks, and return its id."""
        try:
            # apart from the writing, which goes to this machine whether or not a remote store
            # answers
            TimeoutRunner(STORE_SECONDS)(f"reading {store.location}", store.refresh)
        except RefusedError:
            raise
        except (RemoteError, TimeoutError) as error:
            self.notices.once(
                "remote", f"{error}; rows are stored in {store.path} and uploaded when it answers"
            )
        parent, origin, schedule = {}, self._origin, self.cost.schedule
        if origin is not None:
            parent = {"parent": origin.run_id, "parent_step": step, "parent_store": origin.store}
        known = {
            "metrics": [
                f"{metric.name}@{subset}"
                for metric, subset in resolve(self.options.metrics, self.probe)
            ],
            "layers": self.options.choice,
            "schedule": repr(schedule),
            "n_steps": self.cost.n_steps,
            "probe": self.probe.hash,
            "probe_name": self.probe.name,
            "weights_kind": self.weights_kind,
            "training": self._settings,
        }
        run = self._writer.call(
            "writing to", lambda store: store.begin_run(self.name, known, **parent)
        )
        return run.id

    def _find(self, key: MeasurementKey, weights: str | None) -> tuple[list[Row], bool] | None:
        """Return the rows of a step that a relative of this run has measured on these weights, if
        there are any, and whether the next step can be compared with this one."""
        try:
            found = self._writer.call("reading", lambda store: store.find_measurement(key, weights))
        except OSError as error:
            self.notices.error(error, key.step)
            return None
        if found is None:
            return None
        rows, folder = found
        cache = self._state_cache
        measured_by = rows[0].run_id
        if cache is None:
            return rows, True
        if measured_by is None:
            return rows, False
        return rows, cache.take_over(key.step, self._states_in(folder, measured_by))

    def _states_in(self, folder: Path, run: str, **others: Any) -> StateCache:
        """Return the states that a run keeps in its folder."""
        choice = self.options.choice
        return StateCache(
            folder / STATES_FOLDER, run=run, probe=self.probe.hash, layers=choice, **others
        )

    def _earlier_states(self, store: Store, run_id: str) -> StateCache | None:
        """Return the states of the last step that ancestors of a run have measured before it: those
        that its first step is compared with, if they are still there."""
        path = store.path_of(run_id)
        if path is None:
            return None
        for part in reversed(path.parts[:-1]):
            run = run_in(part.folder)
            if run is not None and (steps := replace(path, parts=[part]).steps()):
                return self._states_in(part.folder, run.id, last_step=steps[-1])
        return None

    def _tried(self, model: nn.Module, ranks: Ranks) -> RunnableModel | None:
        """Return the model once it has run on a few windows of the probe, left as it was; raise
        what is wrong with it. None where that is no fault of the configuration, or of some ranks
        alone: the first measurement will tell."""
        options, prepared, found, root = self.options, None, None, self._root_module
        try:
            prepared = prepare(
                model,
                self.probe,
                options.layers,
                forward=options.forward,
                root_module=root,
                keep_hooks=options.keep_hooks,
            )
            try_model(prepared, self.probe)
        except (OSError, MemoryError, torch.OutOfMemoryError):
            pass
        except Exception as error:
            found = error
        if all(ranks.all_gather(found is not None)) and found is not None:
            raise found
        return prepared

    def _measure_averaged(
        self,
        model: nn.Module,
        checkpoint: Checkpoint,
        scalars: Mapping[str, Scalar],
        averaged: Weights,
    ) -> None:
        """Measure the averaged weights as a run of their own, beside this one."""
        if self._ranks is None or self._ranks.size > 1:
            self.notices.once(
                AVERAGED, "the averaged weights of a model on several ranks are not measured"
            )
            return
        # the budget is that of both
        with (
            self.cost.counted(),
            self.notices.errors(checkpoint.step),
        ):
            if self.averaged is None:
                known = self._origin
                self.averaged = TrackedRun(
                    replace(self.options, ranks="zero"),
                    self.probe,
                    f"{self.name} ({AVERAGED})",
                    self.store,
                    model,
                    checkpoint.step,
                    self.cost.schedule,
                    root_module=self._root_module,
                    n_steps=self.cost.n_steps,
                    origin=Origin(known.averaged, known.store)
                    if known and known.averaged
                    else None,
                    loggers=self._loggers.of_training,
                    label=f"{self.prefix}{AVERAGED}",
                    weights_kind=AVERAGED,
                    settings=self._settings,
                )
            own = weights_of(model)
            placed = {
                name: value.to(own[name].device) for name, value in averaged.items() if name in own
            }
            self.averaged.measure(model, checkpoint, scalars, weights=placed)
            self.should_stop |= self.averaged.should_stop

    def _store_loss(self, step: int, name: str, loss: Scalar) -> None:
        """Store a loss of the step that was measured last."""
        rows = self._rows
        if not rows or rows[0].step != step or any(row.metric == name for row in rows):
            return
        new = scalar_rows(
            rows[0], self.probe.hash, {name: loss}, partial(self.notices.error, step=step)
        )
        self._store(step, [*rows, *new], new)


def measuring_ranks(model: nn.Module, which: WhichRanks) -> Ranks | None:
    """Return the processes that measure a model together with this one; None where this one has
    nothing to do. Decided without communication: the tracker may be on one rank alone."""
    if _n_processes() == 1:
        return ALONE
    if which == "all" or is_sharded(model):
        return Ranks.of_job()
    return ALONE if dist.get_rank() == 0 else None


def _n_processes() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@plain_state()
def fingerprint(
    model: nn.Module, weights: Weights | None = None, *, with_buffers: bool = False
) -> str:
    """Return 16 hexadecimal digits of up to 64 evenly spread values of each weight (of this rank's
    shard).

    It differs between any two steps of a training, unless every change missed the sample. Weights
    that do not expose their values, such as some quantised or not yet loaded ones, are left out.

    Args:
        model: whose weights they are.
        weights: those in place of its own, by name.
        with_buffers: include buffers, such as the statistics of a batch normalisation.
    """
    digest = hashlib.sha256()
    for name, own in [*model.named_parameters(), *(model.named_buffers() if with_buffers else ())]:
        digest.update(name.encode())
        weight = (weights[name] if weights and name in weights else own).detach()
        local = weight.to_local() if is_a(weight, "torch.DTensor") else weight
        if local.device.type != "meta":
            with suppress(NotImplementedError, RuntimeError):
                sample = local.flatten()[:: max(1, local.numel() // _PER_TENSOR)][:_PER_TENSOR]
                sample = torch.view_as_real(sample) if sample.is_complex() else sample
                digest.update(sample.cpu().double().numpy().tobytes())
    return digest.hexdigest()[:16]


def scalar_rows(
    checkpoint: Checkpoint,
    probe: str,
    scalars: Mapping[str, Scalar],
    on_error: Callable[[Exception], None],
) -> list[Row]:
    """Return a row for each scalar that is known; what is not one number is an error that gets
    none.
    """
    rows = []
    for name, value in scalars.items():
        if value is None:
            continue
        try:
            # a loss that still has its graph is converted with a warning unless it is detached
            number = float(value.detach() if isinstance(value, Tensor) else value)
            rows.append(scalar_row(checkpoint, name, number, probe=probe))
        except (RuntimeError, TypeError, ValueError) as error:
            on_error(
                ValueError(f"expected {name} as one number, got {type(value).__name__}: {error}")
            )
    return rows


def add_tokens(seen: int | Tensor | None, batch: Any, world_size: int) -> int | Tensor | None:
    """Return the tokens seen so far, one more batch included; None from the first batch whose
    tokens are unknown.

    The sum stays a tensor until it is read: reading would wait for the device at every batch.
    """
    if seen is None or not isinstance(batch, Mapping):
        return None
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    # a mask of more dimensions says which positions see which
    if (
        isinstance(mask, Tensor)
        and mask.ndim == 2
        and (not isinstance(ids, Tensor) or ids.shape == mask.shape)
    ):
        # counted, not added up: masks come in floating types whose sums stop at 2**24, or at 256
        return seen + (mask != 0).sum() * world_size
    if isinstance(ids, Tensor):
        return seen + ids.numel() * world_size
    return None


def _gradients(module: nn.Module) -> dict[str, Tensor]:
    return {
        name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None
    }


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def learning_rate_of(optimizers: Sequence[Any]) -> Scalar:
    """Return the learning rate of the first parameter group of the first optimizer, if any."""
    groups = getattr(optimizers[0], "param_groups", None) if optimizers else None
    return groups[0].get("lr") if groups else None


def weights_of_optimizers(
    model: nn.Module, optimizers: Sequence[Any]
) -> tuple[Weights | None, Weights | None]:
    """Return the trained and the averaged weights under a schedule-free optimizer; None for the
    model's own.

    The model holds y while it trains and the average x after ``optimizer.eval()``; the optimizer
    keeps z, of which y = beta x + (1 - beta) z. Its own switch between them would write into the
    model.

    Source: Defazio et al. (2024), The Road Less Scheduled, equations 7 to 9.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained: dict[str, Tensor] = {}
    averaged: dict[str, Tensor] = {}
    is_training = True
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            if "train_mode" not in group:
                continue
            is_training = group["train_mode"]
            beta = group["betas"][0] if "betas" in group else group["momentum"]
            for parameter in group["params"]:
                name, state = names.get(id(parameter)), optimizer.state.get(parameter, {})
                if name is None or "z" not in state or not beta:
                    continue
                now, z = parameter.detach(), state["z"].to(parameter.dtype)
                averaged[name] = now.lerp(z, 1 - 1 / beta) if is_training else now
                trained[name] = now if is_training else now.lerp(z, 1 - beta)
    return None if is_training else trained or None, averaged or None
