"""The tracker for the Hugging Face Trainer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from repdyn.alerts import RulesLike, resolve_rules
from repdyn.alerts.rules import DEFAULT
from repdyn.capture.blocks import LayerPatterns, unwrapped
from repdyn.capture.forward import Forward
from repdyn.capture.token_states import TokenPositions
from repdyn.metrics import DEFAULT_METRICS, MetricLike
from repdyn.probe import Probe
from repdyn.publish.keys import LogLayers
from repdyn.store import Store, open_store
from repdyn.store.scalars import LEARNING_RATE, LOSS, VALIDATION_LOSS
from repdyn.tracking.config import MeasurementConfig, OnFailure
from repdyn.tracking.overhead import Overhead, validate_max_overhead
from repdyn.tracking.schedule import ScheduleLike, ScheduleState
from repdyn.tracking.tracked_run import TrackedRun
from repdyn.tracking.training_state import learning_rate_of
from repdyn.utils.distributed import Ranks

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class HuggingFaceTracker(TrainerCallback):
    """Measure every layer's anisotropy and intrinsic dimension at scheduled steps of a ``transformers.Trainer``.

        Trainer(model, arguments, train_dataset=data, callbacks=[HuggingFaceTracker(probe, schedule=100)])

    Schedule, store, figures and guarantees are those of :class:`repdyn.callbacks.RepresentationDynamics`. The loss of a
    measured step is stored if the Trainer logs at that step (``logging_steps``), the number of tokens if it counts them
    (``include_num_input_tokens_seen``). The Trainer does not notify callbacks of errors and Ctrl-C; measurements are
    stored nevertheless, and ``repdyn figures`` draws them.

    Args:
        probe: the probe to measure on.
        schedule: as for :class:`repdyn.callbacks.RepresentationDynamics`; "checkpoints" means whenever the Trainer
            saves.
        metrics, layers, probe_loss, forward, token_positions, tokens_per_forward: as for :func:`repdyn.measure`.
        store: folder of the store, or its URL such as ``s3://bucket/prefix``; by default ``repdyn`` in ``output_dir``.
        on_error: "warn" logs a failing measurement once and continues the training; "raise" stops it.
        run: name of the run in the rows; by default the Trainer's ``run_name``, or else the name of ``output_dir``; in
            a hyperparameter search, the name of the trial is appended.
        name: distinguishes several trackers of one Trainer: a suffix of the run's name and a prefix of the names in the
            loggers ("teacher_anisotropy/layer_00").
        loggers: Lightning loggers to log to; by default the open W&B run and a TensorBoard folder in ``output_dir``,
            according to ``report_to``.
        log_layers: as for :class:`repdyn.callbacks.RepresentationDynamics`.
        alerts, report, max_overhead: as for :class:`repdyn.callbacks.RepresentationDynamics`.

    Raises:
        ValueError: at the start of training, if the configuration is invalid: unidentifiable blocks, or a store with
            another run of the same name.
    """

    def __init__(
        self,
        probe: Probe,
        schedule: ScheduleLike = "pythia",
        metrics: str | Sequence[MetricLike] = DEFAULT_METRICS,
        layers: LayerPatterns = None,
        store: str | Path | None = None,
        on_error: OnFailure = "warn",
        *,
        run: str | None = None,
        name: str = "",
        loggers: Iterable[Logger] | None = None,
        log_layers: LogLayers = "default",
        probe_loss: bool = False,
        forward: Forward | None = None,
        token_positions: TokenPositions | None = None,
        tokens_per_forward: int = 8192,
        alerts: RulesLike = DEFAULT,
        report: bool = True,
        max_overhead: float | None = None,
    ) -> None:
        validate_max_overhead(max_overhead)
        self._config = MeasurementConfig(
            probe=probe,
            metrics=metrics,
            layers=layers,
            forward=forward,
            token_positions=token_positions,
            tokens_per_forward=tokens_per_forward,
            on_error=on_error,
            log_layers=log_layers,
            probe_loss=probe_loss,
        )
        self._schedule = ScheduleState(schedule)
        self._requested_store = store
        self._requested_run = run
        self._name = name
        self._requested_loggers = None if loggers is None else tuple(loggers)
        self._rules = resolve_rules(alerts)
        self._report = report
        self._max_overhead = max_overhead
        self._tracked: TrackedRun | None = None
        self._named = ""
        self._logged: tuple[int, float] | None = None
        self._validation_loss: float | None = None
        self._measured_at: int | None = None

    @property
    def store(self) -> Store | None:
        """The store of the current run; None before training starts."""
        return self._tracked.store if self._tracked else None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **others: Any
    ) -> None:
        folder = Path(args.output_dir or "trainer_output")
        trial = state.trial_name if state.is_hyper_param_search else None
        run = ".".join(filter(None, (self._requested_run or args.run_name or folder.resolve().name, trial, self._name)))
        defaults = _DefaultLoggers(args, folder, self._name)
        # the Trainer restarts if a batch does not fit into memory, and train() may be called again
        before = self._tracked if self._named == run else None
        self._named = run
        tracked = TrackedRun(
            config=self._config,
            run=run if before is None else before.run,
            store=open_store(self._requested_store or folder / "repdyn", refresh=False),
            loggers=lambda: defaults.loggers if self._requested_loggers is None else self._requested_loggers,
            name=self._name,
            rules=self._rules,
            report=self._report,
            overhead=Overhead(self._max_overhead),
        )
        self._schedule = ScheduleState(self._schedule.schedule)
        resumed = before is not None or state.global_step > 0
        tracked.begin(Ranks.of_job(), self._schedule.schedule, resumed, unwrapped(model), model)
        tracked.start(state.global_step, self._schedule.schedule, state.max_steps)
        self._tracked = tracked
        self._logged = self._measured_at = self._validation_loss = None
        if self._schedule.start(state.global_step):
            self._measure(args, state, control, model, others.get("optimizer"))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **others: Any
    ) -> None:
        if self._tracked is not None:
            self._tracked.overhead.count_step(state.global_step, self._schedule.schedule, state.max_steps)
        if self._schedule.advance(state.global_step) and self._has_time(state.global_step):
            self._measure(args, state, control, model, others.get("optimizer"))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **others: Any
    ) -> None:
        if self._schedule.save(state.global_step) and self._has_time(state.global_step):
            self._measure(args, state, control, model, others.get("optimizer"))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        logs: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        if self._tracked is None:  # evaluation without training
            return
        logs = logs or {}
        if "loss" in logs:
            self._logged = (state.global_step, logs["loss"])
            if self._measured_at == state.global_step:
                self._tracked.add_loss(state.global_step, logs["loss"])
                control.should_training_stop |= self._tracked.should_stop
        # the last log of a training; in on_train_end the model may be the best one instead of the last one
        if "train_runtime" in logs and self._schedule.claim(state.global_step):
            self._measure(args, state, control, model, others.get("optimizer"))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        self._validation_loss = others.get("metrics", {}).get("eval_loss")

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._tracked is not None:
            self._tracked.finish()

    def _has_time(self, step: int) -> bool:
        """Return whether the budget has time to measure a scheduled step, which else may still turn out the last."""
        has_time = self._tracked is None or self._tracked.overhead.allows(step)
        if not has_time:
            self._schedule.release()
        return has_time

    def _measure(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, optimizer: Any
    ) -> None:
        counts_tokens = str(args.include_num_input_tokens_seen) != "no"
        if self._tracked is not None:
            step, loss = self._logged or (None, None)
            self._measured_at = state.global_step
            self._tracked.measure(
                unwrapped(model),
                state.global_step,
                tokens_seen=int(state.num_input_tokens_seen) if counts_tokens else None,
                scalars={
                    LOSS: loss if step == state.global_step else None,
                    LEARNING_RATE: learning_rate_of(optimizer),
                    VALIDATION_LOSS: self._validation_loss,
                },
                root_module=model,
            )
            self._validation_loss = None
            control.should_training_stop |= self._tracked.should_stop


class _DefaultLoggers:
    """Lightning loggers for the targets in the Trainer's ``report_to``."""

    def __init__(self, args: TrainingArguments, folder: Path, name: str) -> None:
        self._args = args
        self._folder = folder
        self._version = f"repdyn_{name}" if name else "repdyn"

    @cached_property
    def loggers(self) -> list[Logger]:
        targets = self._args.report_to
        loggers: list[Logger] = []
        if "wandb" in targets:
            import wandb  # optional dependency, installed if the Trainer reports to it
            from lightning.pytorch.loggers import WandbLogger

            if wandb.run is not None:
                loggers.append(WandbLogger(experiment=wandb.run))
        if "tensorboard" in targets:
            from lightning.pytorch.loggers import TensorBoardLogger

            loggers.append(TensorBoardLogger(self._folder, name="runs", version=self._version))
        return loggers
