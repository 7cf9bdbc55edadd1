"""The tracker for the Hugging Face Trainer."""

import atexit
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, Unpack

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from repdyn.callbacks.held_out import (
    begun_with_taken_probe,
    of_trainer,
    probe_of_run,
    trainers_of,
)
from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.wrappers import unwrapped
from repdyn.measurement.measure import check_probe
from repdyn.metrics import DEFAULT_METRICS, MetricLike
from repdyn.metrics.logged import values_of_evaluation
from repdyn.probe import Probe
from repdyn.store import Store, store_at
from repdyn.store.schema import LEARNING_RATE, LOSS, Checkpoint
from repdyn.tracking.budget import known_steps
from repdyn.tracking.options import TrackingArguments, TrackingOptions
from repdyn.tracking.origin import Origin
from repdyn.tracking.schedule import ScheduleLike, ScheduleState
from repdyn.tracking.training import TrackedTraining
from repdyn.tracking.weights import learning_rate_of, weights_of_optimizers
from repdyn.utils.files import absolute_place
from repdyn.utils.mistyped import options_of

_STATE = "repdyn"
"""The key of ``TrainerState.stateful_callbacks`` under which the Trainer's checkpoints keep what
trackers remember, by the name of the tracker.
"""


class HuggingFaceTracker(TrainerCallback):
    """Measure every layer's anisotropy and intrinsic dimension at scheduled steps of a
    ``transformers.Trainer``.

        tracker = HuggingFaceTracker(schedule=100)
        Trainer(model, arguments, train_dataset=data, eval_dataset=held_out, callbacks=[tracker])

    Schedule, store, figures and guarantees are those of
    :class:`repdyn.callbacks.RepresentationDynamics`. The loss of a measured step is stored if the
    Trainer logs at that step (``logging_steps``), the number of tokens if it counts them
    (``include_num_input_tokens_seen``). The last values are among the metrics of each evaluation,
    as ``eval_anisotropy/mean`` and so on, for ``metric_for_best_model`` and
    ``EarlyStoppingCallback``: means over layers, as the Trainer prints them all, and the layer that
    ``metric_for_best_model`` names. The Trainer does not notify callbacks of errors and Ctrl-C;
    measurements are stored nevertheless, and the process names the commands that show them when it
    ends.

    Args:
        probe: the probe to measure on. By default it is taken from ``eval_dataset``, or from
            ``train_dataset`` if there is none: 512 windows at most, of rows' own ``input_ids``
            where they have them. A line says what was taken; a training that goes on has the probe
            of its run.
        schedule: as for :class:`repdyn.callbacks.RepresentationDynamics`; "checkpoints" means
            whenever the Trainer saves.
        metrics, layers: as for :func:`repdyn.measure`.
        store: folder of the store, or its URL such as ``s3://bucket/prefix``; by default ``repdyn``
            in ``output_dir``.
        name: distinguishes several trackers of one Trainer: a suffix of the run's name and a prefix
            of the names in the loggers ("teacher_anisotropy/layer_00").
        loggers: as for :class:`repdyn.Tracker`; by default the open runs of W&B and Trackio and a
            TensorBoard folder in ``output_dir``, according to ``report_to``.
        options: as in :class:`repdyn.tracking.options.TrackingArguments`; the run is called by the
            Trainer's ``run_name``, or else the name of ``output_dir``, unless ``run`` is given; in
            a hyperparameter search, the name of the trial is appended.

    Raises:
        ValueError: at the start of training, if the configuration is invalid, such as
            unidentifiable blocks.
    """

    def __init__(
        self,
        probe: Probe | None = None,
        schedule: ScheduleLike = "pythia",
        metrics: str | Sequence[MetricLike] = DEFAULT_METRICS,
        layers: LayerPatterns = None,
        store: str | Path | None = None,
        *,
        name: str = "",
        loggers: Iterable[Any] | None = None,
        **options: Unpack[TrackingArguments],
    ) -> None:
        if probe is not None:
            check_probe(probe)
        self.options = options_of(
            TrackingOptions, type(self), metrics=metrics, layers=layers, **options
        )
        self._probe = probe
        self._schedule = ScheduleState(schedule)
        self._requested_store = None if store is None else absolute_place(store)
        self._name = name
        self._requested_loggers = None if loggers is None else tuple(loggers)
        self._reset()

    def _reset(self) -> None:
        """Forget the training before, if any: a tracker may serve several in turn."""
        self._tracked: TrackedTraining | None = None
        self._at_exit: Any = None
        """The function that is registered for the end of the process."""
        self._args: Any = None
        self._logged: tuple[int, float] | None = None
        """The step that the Trainer logged last, and its loss."""
        self._measured_at: int | None = None
        """The step that was measured last."""
        self._validation_loss: str | None = None
        """The name of the validation loss: of several data sets, that of the first."""
        self._is_finished = False
        self._handler: weakref.ref[Any] | None = None
        """The Trainer's CallbackHandler, in which :class:`_AfterOthers` stands; None where no
        Trainer is among the callers.
        """

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy for another trial takes over: the configuration, but no training."""
        return {**self.__dict__, "_tracked": None, "_at_exit": None, "_handler": None}

    def __repr__(self) -> str:
        """Return what is measured, and where its rows go once a training has begun."""
        where = f", store {self.store.location!r}" if self.store is not None else ""
        return (
            f"{HuggingFaceTracker.__name__}({', '.join(map(str, self.options.metrics))}; "
            f"{self._schedule.schedule!r}{where})"
        )

    @property
    def store(self) -> Store | None:
        """Return the store of the current run; None before training starts."""
        return self._tracked.store if self._tracked else None

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        self._reset()  # an evaluation before this training has no values of the one before

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        model = others["model"]
        self._reset()
        self._args = args
        self._go_behind_others()
        self._schedule = ScheduleState(self._schedule.schedule)
        folder = Path(args.output_dir or "trainer_output").absolute()
        store = store_at(self._requested_store or folder / "repdyn", refresh=False)
        origin = self._origin(state)
        begin = partial(
            TrackedTraining,
            self.options,
            name=self._run_name(args, state, folder),
            store=store,
            model=unwrapped(model),
            step=state.global_step,
            schedule=self._schedule.schedule,
            root_module=model,
            n_steps=known_steps(state.max_steps),
            origin=origin,
            loggers=self._loggers(args, folder),
            label=self._name,
            settings=args.to_sanitized_dict(),
            monitors=[args.metric_for_best_model],
        )
        probe = self._probe or probe_of_run(origin, store)
        if probe is None:
            tracked = self._begun_with_taken_probe(begin, state, others)
        else:
            tracked = begin(probe=probe)
        self._tracked = tracked
        self._schedule.has_time = tracked.cost.allows
        # the Trainer tells no callback of an error or of Ctrl-C, after which the process ends
        self._at_exit = partial(_end_without_views, weakref.ref(tracked))
        atexit.register(self._at_exit)
        if self._schedule.is_due(state.global_step, "start"):
            self._measure(state, control, others)

    def _run_name(self, args: TrainingArguments, state: TrainerState, folder: Path) -> str:
        """Return the name of the run: as given, or by the folder; then of trial and tracker."""
        # before version 5 of transformers, ``run_name`` was ``output_dir`` where none was given
        of_trainer = args.run_name if args.run_name != args.output_dir else None
        trial = state.trial_name if state.is_hyper_param_search else None
        segments = (self.options.run or of_trainer or folder.name, trial, self._name)
        return ".".join(segment for segment in segments if segment)

    def _loggers(self, args: TrainingArguments, folder: Path) -> Callable[[], Iterable[Any]]:
        """Return a function that returns the loggers: the user's, or those of ``report_to``."""
        requested = self._requested_loggers
        if requested is not None:
            return lambda: requested
        # opened when they are first asked for, since W&B's run may open after this callback; and in
        # this thread's context, of which Trackio's run is a variable
        return cache(partial(copy_context().run, _default_loggers, args, folder, self._name))

    def _begun_with_taken_probe(
        self, begin: Callable[..., TrackedTraining], state: TrainerState, others: Mapping[str, Any]
    ) -> TrackedTraining:
        """Begin the tracking on a probe of the Trainer's own data."""
        return begun_with_taken_probe(
            lambda probe: begin(probe=probe),
            of_trainer(self, others),
            unwrapped(others["model"]),
            # "tokenizer" is its name before version 4.46 of transformers
            others.get("processing_class") or others.get("tokenizer"),
            tracker=HuggingFaceTracker.__name__,
            calls_it=self.options.forward is None,
            is_silent=not state.is_world_process_zero,
        )

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if self._tracked is not None:
            self._tracked.keep_gradients(state.global_step + 1)

    def _go_behind_others(self) -> None:
        """Let each step end for this tracker after other callbacks, which may change the weights:
        the checkpoint of the step, which is saved next, has them as they are then.
        """
        trainer = next(trainers_of(self), None)
        if trainer is None:
            return
        handler = trainer.callback_handler
        self._leave(handler)
        # a new list, because the handler is iterating over the old one
        handler.callbacks = [*handler.callbacks, _AfterOthers(self)]
        self._handler = weakref.ref(handler)

    def _leave(self, handler: Any) -> None:
        """Take what :meth:`_go_behind_others` has added out of a handler."""
        handler.callbacks = [
            callback
            for callback in handler.callbacks
            if not (isinstance(callback, _AfterOthers) and callback.owner is self)
        ]

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if self._handler is None:
            self.end_step(state, control, others)

    def end_step(
        self, state: TrainerState, control: TrainerControl, others: Mapping[str, Any]
    ) -> None:
        """Measure the step that has ended, if it is due, and count it."""
        if self._schedule.is_due(state.global_step):
            self._measure(state, control, others)
        if self._tracked is not None:
            self._tracked.count_step(state.global_step)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if self._schedule.is_due(state.global_step, "checkpoint"):
            self._measure(state, control, others)
        # the save at the end of a training comes before the best model is loaded, too
        self.on_epoch_end(args, state, control, **others)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Measure the last step here where the Trainer loads the best model at the end: before
        version 5 of transformers it does so before the last log, where others are measured.
        """
        ends = control.should_training_stop and args.load_best_model_at_end
        if ends and self._schedule.is_due(state.global_step, "end"):
            self._measure(state, control, others)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if self._tracked is None:  # evaluation without training
            return
        logs: dict[str, float] = others.get("logs") or {}
        if _validation_loss(logs):
            # these logs are what evaluate() returns, by which other callbacks may decide in their
            # on_evaluate, before this tracker's
            self._add_values(logs, state, control, others)
        if "loss" in logs:
            self._logged = (state.global_step, logs["loss"])
            if self._measured_at == state.global_step:
                self._tracked.add_loss(state.global_step, logs["loss"])
                control.should_training_stop |= self._tracked.shared()[1]
        # the last log of a training is told by its total_flos; in on_train_end, which follows, the
        # model may be the best one instead of the last one
        if "total_flos" in logs and self._schedule.is_due(state.global_step, "end"):
            self._measure(state, control, others)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        metrics = others.get("metrics", {})
        # metrics with a loss were logged, and got the values there
        if self._tracked is not None and not _validation_loss(metrics):
            self._add_values(metrics, state, control, others)

    def _add_values(
        self,
        metrics: dict[str, float],
        state: TrainerState,
        control: TrainerControl,
        others: Mapping[str, Any],
    ) -> None:
        """Add the values that were measured last to the metrics of an evaluation.

        Where ``metric_for_best_model`` is one of them, this step is measured first, so that the
        checkpoint is judged by its own value.
        """
        assert self._tracked is not None
        name = _validation_loss(metrics)
        self._validation_loss = self._validation_loss or name
        if name == self._validation_loss:
            self._tracked.validation_loss = metrics.get(name or "")
        decides = self.options.read_by([self._args.metric_for_best_model])
        if decides and self._schedule.is_due(state.global_step, "end"):
            self._measure(state, control, others)
        # after the training the Trainer may have loaded the best model, whose geometry is not what
        # was measured last
        best = (state.best_model_checkpoint or "").rpartition("-")[2]
        is_best_loaded = self._is_finished and self._args.load_best_model_at_end
        if is_best_loaded and best != str(self._measured_at):
            return
        values = self._tracked.shared("eval_")[0]
        metrics.update(values_of_evaluation(values, self._args.metric_for_best_model))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._tracked is not None:
            atexit.unregister(self._at_exit)
            self._tracked.finish()
            self._is_finished = True
        if (handler := self._handler and self._handler()) is not None:
            self._leave(handler)

    def _origin(self, state: TrainerState) -> Origin | None:
        """Return the run of the checkpoint that the training goes on from."""
        states = (state.stateful_callbacks or {}).get(_STATE)
        if not state.global_step or not isinstance(states, dict):
            return None
        origin = Origin.of(states.get(self._name))
        return None if origin is None else origin.near(_resumed_checkpoint())

    def _measure(
        self, state: TrainerState, control: TrainerControl, others: Mapping[str, Any]
    ) -> None:
        tracked = self._tracked
        if tracked is None:
            return
        step = state.global_step
        self._measured_at = step
        logged_at, loss = self._logged or (None, None)
        # "no", or False in versions of transformers that know True and False alone
        counts_tokens = str(self._args.include_num_input_tokens_seen) not in {"no", "False"}
        module = unwrapped(others["model"])
        optimizer = others.get("optimizer")
        optimizers = [getattr(optimizer, "optimizer", optimizer)]  # without accelerate's wrapper
        trained, averaged = weights_of_optimizers(module, optimizers)
        tokens = int(state.num_input_tokens_seen) if counts_tokens else None
        tracked.measure(
            module,
            Checkpoint(step=step, trainer_step=step, tokens_seen=tokens),
            {
                LOSS: loss if logged_at == step else None,
                LEARNING_RATE: learning_rate_of(optimizers),
            },
            weights=trained,
            averaged=averaged,
            optimizers=[optimizer],
        )
        control.should_training_stop |= tracked.shared()[1]
        # the Trainer saves this dict with each checkpoint
        if isinstance(state.stateful_callbacks, dict):
            state.stateful_callbacks.setdefault(_STATE, {})[self._name] = tracked.state()


class _AfterOthers(TrainerCallback):
    """Stands behind all other callbacks, and ends each step for its owner."""

    def __init__(self, owner: HuggingFaceTracker) -> None:
        self.owner = owner

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        self.owner.end_step(state, control, others)


def _end_without_views(reference: weakref.ref[TrackedTraining]) -> None:
    """End a training that was broken off, at the end of the process, if it still exists."""
    tracked = reference()
    if tracked is not None:
        tracked.end_without_views()


def _resumed_checkpoint() -> str | None:
    """Return the path of the checkpoint that a Trainer resumes; None where none is among the
    callers.

    No callback is told of it: it is an argument of ``Trainer.train``, which has called this.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if "resume_from_checkpoint" in frame.f_code.co_varnames:
            path = frame.f_locals["resume_from_checkpoint"]
            return path if isinstance(path, str) else None
        frame = frame.f_back
    return None


def _validation_loss(values: Mapping[str, float]) -> str | None:
    """Return the name of the loss among the values of an evaluation, ``eval_loss`` or
    ``eval_NAME_loss``, if any.
    """
    names = [name for name in values if name.startswith("eval_") and name.endswith("_loss")]
    # the user's own metrics may have names such as eval_aux_loss, which are longer
    return min(names, key=len, default=None)


def _default_loggers(args: TrainingArguments, folder: Path, name: str) -> list[Any]:
    """Return the runs and writers of the targets in the Trainer's ``report_to``, which its own
    callbacks opened.
    """
    loggers: list[Any] = []
    if "wandb" in args.report_to:
        import wandb  # optional dependencies, each installed if the Trainer reports to it

        loggers.append(wandb.run)
    if "trackio" in args.report_to:
        from trackio.context_vars import current_run

        loggers.append(current_run.get())
    if "tensorboard" in args.report_to:
        from torch.utils.tensorboard import SummaryWriter

        loggers.append(SummaryWriter(folder / "runs" / (f"repdyn_{name}" if name else "repdyn")))
    return [logger for logger in loggers if logger is not None]
