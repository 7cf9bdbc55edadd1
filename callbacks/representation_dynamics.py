"""The tracker for Lightning, which measures the geometry of a model's layers during training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor, nn

from repdyn.alerts import Rule, resolve_rules
from repdyn.alerts.rules import DEFAULT
from repdyn.callbacks.progress import mean_dimension
from repdyn.callbacks.scheduled import (
    ScheduledCallback,
    is_fresh,
    run_folder,
    run_name,
    tracked_module,
    validate_names,
    validate_strategy,
    validation_loss,
)
from repdyn.callbacks.views_last import ViewsLast
from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.token_states import TokenPositions
from repdyn.measurement.identity import metric_set
from repdyn.metrics import DEFAULT_METRICS, Metric, as_tuple
from repdyn.probe import Probe, ProbeBatch
from repdyn.publish.keys import LogLayers
from repdyn.store import Store, open_store
from repdyn.store.scalars import LEARNING_RATE, LOSS, VALIDATION_LOSS
from repdyn.tracking.config import MeasurementConfig, OnFailure, validate_measurement
from repdyn.tracking.overhead import Overhead, validate_max_overhead
from repdyn.tracking.schedule import ScheduleLike
from repdyn.tracking.tracked_run import TrackedRun
from repdyn.tracking.training_state import add_tokens, learning_rate_of
from repdyn.utils.distributed import Ranks


class RepresentationDynamics(ScheduledCallback):
    """Measure every layer's anisotropy and intrinsic dimension at scheduled steps of a training run.

    The callback does not affect the training: losses, weights, RNG state and each module's train/eval flag are bit for
    bit those of a run without it. Rows are written to the store first, then to every logger of the trainer. At the end
    (and on Ctrl-C or an error, once the checkpoint callbacks have saved) figures are saved next to the rows and a
    summary is printed; after SIGTERM the log names the commands for that.

    Args:
        probe: the probe to measure on; None for that of the datamodule's method ``probe()``.
        schedule: a number of steps, a list of steps, "pythia" (0, 1, 2, 4 ... 512, then every 1000), "checkpoints"
            (whenever the trainer saves one), or a :class:`repdyn.Schedule`. Step 0 and the end are always measured.
        metrics: names in :data:`repdyn.metrics.METRICS`, with settings and a token subset other than the default
            ("two_nn", "two_nn@no_sink", "two_nn[discard=0.8]"), or Metric objects; "all" for every metric that the
            probe supports.
        layers: name pattern of the blocks ("model.layers.*"), or several; None to detect them.
        store: folder of the store, or a URL such as ``s3://bucket/prefix``; by default ``repdyn`` in the run's folder.
        on_error: "warn" logs a failing measurement once and continues the training; "raise" stops it.
        model: attribute of the LightningModule that holds the model; by default the only Hugging Face model in it,
            or else the LightningModule itself.
        probe_loss, forward, token_positions, tokens_per_forward: as for :func:`repdyn.measure`.
        run: name of the run in the rows; by default the first logger's name and version.
        name: distinguishes several trackers of one trainer: a suffix of the run's name and a prefix of the names in the
            loggers ("teacher_anisotropy/layer_00").
        log_layers: the metrics of which the loggers get every layer: "default" (anisotropy and TwoNN on all tokens),
            "all", "none" (no layers at all), or patterns ("two_nn", "cka_*", "anisotropy@no_sink"). Of the others they
            get the first, the middle and the last layer, of each the mean, minimum and maximum. The store has all.
        alerts: rules whose alerts are logged as warnings: a YAML file, :class:`repdyn.alerts.Rule` objects, or None
            for none. Only a rule with ``stop: true`` ends the training.
        report: whether ``report.html`` in the store is updated during the run.
        max_overhead: as for :class:`repdyn.Tracker`: 0.02 leaves out scheduled steps beyond 2 % of the time.

    Raises:
        ValueError: at the start of training, if the configuration is invalid, such as a store with another run of the
            same name.
    """

    def __init__(
        self,
        probe: Probe | None = None,
        schedule: ScheduleLike = "pythia",
        metrics: str | Sequence[str | Metric] = DEFAULT_METRICS,
        layers: LayerPatterns = None,
        store: str | Path | None = None,
        on_error: OnFailure = "warn",
        *,
        model: str | None = None,
        probe_loss: bool = False,
        forward: Callable[[nn.Module, ProbeBatch], Any] | None = None,
        token_positions: TokenPositions | None = None,
        tokens_per_forward: int = 8192,
        run: str | None = None,
        name: str = "",
        log_layers: LogLayers = "default",
        alerts: Sequence[Rule] | str | Path | None = DEFAULT,
        report: bool = True,
        max_overhead: float | None = None,
    ) -> None:
        super().__init__(schedule)
        validate_max_overhead(max_overhead)
        validate_measurement(metrics, on_error, token_positions, log_layers, probe)
        self.probe = probe
        self.metrics = as_tuple(metrics)
        self.layers = layers
        self.on_error: OnFailure = on_error
        self.model = model
        self.probe_loss = probe_loss
        self.forward = forward
        self.token_positions = token_positions
        self.tokens_per_forward = tokens_per_forward
        self.name = name
        self.log_layers = log_layers
        self.rules = resolve_rules(alerts)
        self.report = report
        self.max_overhead = max_overhead
        self._requested_store = store
        self._requested_run = run
        self._reset()

    @property
    def store(self) -> Store | None:
        """The store of the current run; None before training starts and under ``fast_dev_run``."""
        return self._store

    @property
    def tracking_seconds(self) -> float:
        """Wall-clock time this process has spent on measuring, storing and logging in the current run."""
        return self._tracked.overhead.seconds if self._tracked else 0.0

    @property
    def state_key(self) -> str:
        metrics = metric_set(
            self.metrics, self.layers, token_positions=self.token_positions, probe_loss=self.probe_loss
        )
        return self._generate_state_key(name=self.name, metrics=metrics, model=self.model, run=self._requested_run)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and not any(isinstance(c, ViewsLast) and c.tracker is self for c in trainer.callbacks):  # type: ignore[attr-defined]
            trainer.callbacks.append(ViewsLast(self))  # type: ignore[attr-defined]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        if is_fresh(trainer):
            self._reset()
        validate_strategy(trainer)
        validate_names([c.name for c in trainer.callbacks if isinstance(c, RepresentationDynamics)])  # type: ignore[attr-defined]
        found = tracked_module(pl_module, self.model)
        self._resolve_probe(trainer)
        tracked = self._track(trainer)
        resumed = not is_fresh(trainer)
        tracked.begin(Ranks.of_job(), self._schedule.schedule, resumed, found, trainer.strategy.model)
        self._run = self._run and tracked.run  # another process may have had the name
        self._tracked = tracked

    def start(self, trainer: Trainer) -> None:
        self._required_run.start(trainer.global_step, self._schedule.schedule, trainer.estimated_stepping_batches)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._tokens_seen = add_tokens(self._tokens_seen, batch, trainer.world_size)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        # Lightning divides the loss that it passes here by the number of batches in a step
        n_batches = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        self._loss = loss * n_batches if isinstance(loss, Tensor) else None
        self._required_run.overhead.count_step(
            trainer.global_step, self._schedule.schedule, trainer.estimated_stepping_batches
        )
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def allows(self, trainer: Trainer) -> bool:
        return self._required_run.overhead.allows(trainer.global_step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._validation_loss = validation_loss(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._required_run.finish()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._tracked is not None:
            self._tracked.flush()

    def show_interrupted(self, exception: BaseException) -> None:
        """Draw what was measured before an exception; after SIGTERM, which leaves no time for that, name the commands.

        Called after all other callbacks have dealt with the exception.
        """
        if self._tracked is None:
            return
        if isinstance(exception, SIGTERMException):
            self._tracked.name_commands()
        else:
            self._tracked.finish(interrupted=True)

    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (trainer.fast_dev_run and self._has_acted) or trainer.received_sigterm:
            return  # a single measurement is enough; after SIGTERM the trainer saves next
        self._has_acted = True
        self._required_run.measure(
            tracked_module(pl_module, self.model),
            trainer.global_step,
            tokens_seen=None if self._tokens_seen is None else int(self._tokens_seen),
            scalars={
                LOSS: self._loss,
                LEARNING_RATE: learning_rate_of(next(iter(trainer.optimizers), None)),
                VALIDATION_LOSS: self._validation_loss,
            },
            root_module=trainer.strategy.model,
        )
        self._validation_loss = None
        trainer.should_stop |= self._required_run.should_stop

    def progress(self) -> dict[str, float]:
        return mean_dimension(self._required_run.latest)

    def state_dict(self) -> dict[str, Any]:
        # built-in types only, so that the checkpoint can be loaded with weights_only=True
        return {
            "store": self.store.location if self.store else None,
            "run": self._run,
            "probe": self.probe.hash if self.probe else None,
            "tokens_seen": None if self._tokens_seen is None else int(self._tokens_seen),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._store = open_store(state_dict["store"], refresh=False) if state_dict["store"] else None
        self._run = state_dict["run"]
        self._probe_hash = state_dict["probe"]
        self._tokens_seen = state_dict["tokens_seen"]

    def _reset(self) -> None:
        """Reset the state, since a tracker may be used for several trainings in turn."""
        self._tracked: TrackedRun | None = None
        self._store: Store | None = None
        self._run: str | None = None
        self._probe_hash: str | None = None
        self._tokens_seen: int | Tensor | None = 0
        self._loss: Tensor | None = None
        self._validation_loss: Tensor | None = None
        self._has_acted = False

    def _resolve_probe(self, trainer: Trainer) -> None:
        make_probe = getattr(getattr(trainer, "datamodule", None), "probe", None)
        if self.probe is None and callable(make_probe):
            self.probe = make_probe()
        probe = self._required_probe()
        if self._probe_hash not in {None, probe.hash}:
            raise ValueError(
                f"expected the probe that the resumed run was measured on, {self._probe_hash}, got {probe.hash} "
                f"({probe.name}); resume with the run's own configuration, or load its probe with Probe.load"
            )

    def _track(self, trainer: Trainer) -> TrackedRun:
        """Return the tracked run of this fit; a resumed one keeps its name and its store."""
        # called on all ranks, because the folder is broadcast
        folder, name = run_folder(trainer), self._requested_run or run_name(trainer)
        if not trainer.fast_dev_run:
            self._store = self._store or open_store(self._requested_store or folder / "repdyn", refresh=False)
            self._run = self._run or (f"{name}.{self.name}" if self.name else name)
        return TrackedRun(
            config=MeasurementConfig(
                probe=self._required_probe(),
                metrics=self.metrics,
                layers=self.layers,
                probe_loss=self.probe_loss,
                forward=self.forward,
                token_positions=self.token_positions,
                tokens_per_forward=self.tokens_per_forward,
                on_error=self.on_error,
                log_layers=self.log_layers,
            ),
            run=self._run or "fast_dev_run",
            store=self._store,
            loggers=lambda: trainer.loggers,
            name=self.name,
            rules=self.rules,
            report=self.report,
            overhead=Overhead(self.max_overhead),
        )

    @property
    def _required_run(self) -> TrackedRun:
        if self._tracked is None:
            raise RuntimeError(
                "expected on_fit_start to be called before the training; attach the tracker to a Trainer with "
                "callbacks=[...] and call trainer.fit"
            )
        return self._tracked

    def _required_probe(self) -> Probe:
        if self.probe is None:
            raise ValueError(
                "expected a probe, got none: pass RepresentationDynamics(probe=Probe.from_texts(texts, tokenizer)), or "
                "give the datamodule a method probe() that returns one"
            )
        return self.probe
