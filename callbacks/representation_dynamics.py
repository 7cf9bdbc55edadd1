"""Tracking the geometry of a model's layers while it trains."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from repdyn.blocks import find_blocks
from repdyn.callbacks.refusals import refuse_namesakes, refuse_sharding, refuse_two_settings
from repdyn.callbacks.scheduled import ScheduledCallback, is_fresh, run_folder, tracked_module
from repdyn.callbacks.tokens import add_tokens
from repdyn.measurement import measure, metric_set
from repdyn.metrics import DEFAULT_METRICS, Metric, resolve
from repdyn.probe import Probe, ProbeBatch
from repdyn.records import Checkpoint, Row, failure_rows, scalar_row
from repdyn.schedule import ScheduleLike
from repdyn.store import Key, Store, open_store
from repdyn.views.figures import LOSS
from repdyn.views.loggers import log_rows
from repdyn.views.show import show_run

log = logging.getLogger(__name__)


class RepresentationDynamics(ScheduledCallback):
    """Measures every layer's anisotropy and intrinsic dimension at scheduled steps of a training run.

    Attaching it changes nothing in the training: losses, weights, RNG state and each module's train/eval flag are bit
    for bit those of a run without it. Rows go to the store first, then to every logger of the trainer. At the end
    (or on Ctrl-C) figures are written beside the store and a summary is printed.

    Args:
        probe: the tokens to measure on; None asks the datamodule for its ``probe()``.
        schedule: a number of steps, a list of steps, "pythia" (0, 1, 2, 4 ... 512, then every 1000), "checkpoints"
            (whenever the trainer saves one), or a :class:`repdyn.Schedule`. Step 0 and the end are always measured.
        metrics: names in :data:`repdyn.metrics.METRICS` ("two_nn", "two_nn@no_sink") or Metric objects.
        layers: name pattern of the blocks ("model.layers.*"), or several; None finds them.
        store: folder for the rows; by default ``repdyn`` in the run's folder.
        on_error: "warn" logs a failing measurement once and lets the training go on; "raise" stops it.
        model: attribute of the LightningModule that holds the model; by default the only Hugging Face model in it,
            or else the LightningModule itself.
        forward: ``forward(model, batch)`` runs the model on a :class:`repdyn.probe.ProbeBatch`; None calls it with
            ``input_ids`` and, where it takes one, ``attention_mask``.
        tokens_per_forward: bounds the size of one forward pass over the probe.
        run: name of the run in the rows; by default the first logger's name and version.
        name: tells several trackers of one trainer apart: it is added to the run's name and leads the names in the
            loggers ("teacher_anisotropy/layer_00").

    Raises:
        ValueError: when training starts, where the configuration cannot work: an unknown metric, blocks that cannot be
            told, no probe, another probe than the resumed run had, a store that holds another run under the same
            name, two trackers of one name, a strategy that shards the model.
    """

    def __init__(
        self,
        probe: Probe | None = None,
        schedule: ScheduleLike = "pythia",
        metrics: Sequence[str | Metric] = DEFAULT_METRICS,
        layers: str | Sequence[str] | None = None,
        store: str | Path | None = None,
        on_error: Literal["warn", "raise"] = "warn",
        *,
        model: str | None = None,
        forward: Callable[[nn.Module, ProbeBatch], Any] | None = None,
        tokens_per_forward: int = 8192,
        run: str | None = None,
        name: str = "",
    ) -> None:
        super().__init__(schedule)
        if on_error not in {"warn", "raise"}:
            raise ValueError(f'expected on_error "warn" or "raise", got {on_error!r}')
        refuse_two_settings(metrics)
        self.probe = probe
        self.metrics = tuple(metrics)
        self.layers = layers
        self.on_error = on_error
        self.model = model
        self.forward = forward
        self.tokens_per_forward = tokens_per_forward
        self.name = name
        self._given_store = store
        self._given_run = run
        self._forget()

    @property
    def store(self) -> Store | None:
        """The store of the current run; None before training starts and under ``fast_dev_run``."""
        return self._store

    @property
    def state_key(self) -> str:
        return self._generate_state_key(
            name=self.name, metrics=metric_set(self.metrics, self.layers), model=self.model, run=self._given_run
        )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        if is_fresh(trainer):
            self._forget()
        refuse_sharding(trainer)
        refuse_namesakes([c.name for c in trainer.callbacks if isinstance(c, RepresentationDynamics)])  # type: ignore[attr-defined]
        find_blocks(tracked_module(pl_module, self.model), self.layers)
        self._settle_probe(trainer)
        # Before the question of rank: asking for the folder is a broadcast.
        folder, name = run_folder(trainer), _run_name(trainer)
        if trainer.is_global_zero and not trainer.fast_dev_run:
            self._open_store(folder, self._given_run or name, resumed=not is_fresh(trainer))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._training_start = time.perf_counter()
        super().on_train_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._tokens_seen = add_tokens(self._tokens_seen, batch, trainer.world_size)
        self._loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        try:
            self._show(trainer)
        except Exception as error:
            self._complain(error, trainer.global_step)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        try:
            self._show(trainer)
        except Exception as error:  # what ended the training is what its user must see
            log.warning("the figures of what was measured could not be made: %s", error)

    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        start = time.perf_counter()
        try:
            with isolate_rng():
                rows = self._measured(trainer, pl_module)
                log_rows(rows, trainer.loggers, trainer.global_step, prefix=f"{self.name}_" if self.name else "")
        except Exception as error:
            self._complain(error, trainer.global_step)
        self.tracking_seconds += time.perf_counter() - start

    def state_dict(self) -> dict[str, Any]:
        # Built-in types only: anything else would keep the user's checkpoint from loading with weights_only=True.
        return {
            "store": str(self._store.path) if self._store else None,
            "run": self._run,
            "probe": self.probe.hash if self.probe else None,
            "tokens_seen": None if self._tokens_seen is None else int(self._tokens_seen),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._store = open_store(state_dict["store"]) if state_dict["store"] else None
        self._run = state_dict["run"]
        self._probe_hash = state_dict["probe"]
        self._tokens_seen = state_dict["tokens_seen"]

    def _forget(self) -> None:
        """As before any training: one tracker may serve several trainings, one after the other."""
        self._store: Store | None = None
        self._run: str | None = None
        self._probe_hash: str | None = None
        self._tokens_seen: int | Tensor | None = 0
        self._loss: Tensor | None = None
        self._complaints: set[str] = set()
        self._training_start: float | None = None
        self.tracking_seconds = 0.0
        """Wall-clock time this process has spent on measuring, storing and logging."""
        self.kernel_seconds = 0.0
        """How much of it went into the metrics themselves."""

    def _settle_probe(self, trainer: Trainer) -> None:
        of_datamodule = getattr(getattr(trainer, "datamodule", None), "probe", None)
        if self.probe is None and callable(of_datamodule):
            self.probe = of_datamodule()
        probe = self._required_probe()
        if self._probe_hash not in {None, probe.hash}:
            raise ValueError(
                f"expected the probe that the resumed run was measured on, {self._probe_hash}, got {probe.hash} "
                f"({probe.name}); resume with the run's own configuration, or load its probe with Probe.load"
            )

    def _open_store(self, folder: Path, run: str, resumed: bool) -> None:
        """Continue the store of a resumed run; start one for a new run, but never on top of another run."""
        store = self._store or open_store(self._given_store or folder / "repdyn")
        run = self._run or (f"{run}.{self.name}" if self.name else run)
        if not resumed and store.steps(run):
            raise ValueError(
                f"expected a new run, but the store {store.path} already holds steps of {run!r}; resume it "
                "with trainer.fit(..., ckpt_path=...), or choose another run= or store="
            )
        store.save_probe(self._required_probe())
        self._store, self._run = store, run

    def _measured(self, trainer: Trainer, pl_module: LightningModule) -> list[Row]:
        """The rows of this step: from the store where it holds them since before a resume, else measured and stored."""
        probe = self._required_probe()
        run = self._run or "fast_dev_run"
        key = Key(run, trainer.global_step, probe.hash, metric_set(self.metrics, self.layers))
        if self._store is not None and key in self._store:
            return self._store.read(key)
        model = tracked_module(pl_module, self.model)
        tokens_seen = None if self._tokens_seen is None else int(self._tokens_seen)
        checkpoint = Checkpoint(run, type(model).__name__, key.step, tokens_seen)
        try:
            profile = measure(
                model,
                probe,
                self.metrics,
                self.layers,
                forward=self.forward,
                tokens_per_forward=self.tokens_per_forward,
                checkpoint=checkpoint,
                on_error="raise" if self.on_error == "raise" else "record",
            )
        except Exception as error:
            self._file_failure(key, checkpoint, error)
            raise
        self.kernel_seconds += profile.kernel_seconds
        rows = profile.rows
        if self._store is not None:
            loss = [] if self._loss is None else [scalar_row(checkpoint, LOSS, float(self._loss), probe=probe.hash)]
            self._store.write(key, [*rows, *loss])
            self._store.discard_failures(key)
        return rows

    def _file_failure(self, key: Key, checkpoint: Checkpoint, error: Exception) -> None:
        """A row for each metric that says why it is missing; the step is tried again should the run be resumed here."""
        if self._store is None:
            return
        names = [metric.name for metric, _ in resolve(self.metrics)]
        rows = failure_rows(checkpoint, names, f"{type(error).__name__}: {error}", probe=key.probe)
        try:
            self._store.write(key.failed, rows)
        except OSError as unwritable:
            log.warning("the failure at step %d could not be stored: %s", key.step, unwritable)

    def _complain(self, error: Exception, step: int) -> None:
        if self.on_error == "raise":
            raise error
        complaint = f"{type(error).__name__}: {error}"
        if complaint not in self._complaints:
            self._complaints.add(complaint)
            log.warning("tracking at step %d failed, training goes on: %s", step, complaint, exc_info=error)

    def _show(self, trainer: Trainer) -> None:
        if self._store is None or self._run is None or self._training_start is None:
            return  # not the first rank, or training never began
        if not self._store.steps(self._run):
            return
        with isolate_rng():
            show_run(
                self._store,
                self._run,
                probe=self._required_probe().hash,
                loggers=trainer.loggers,
                tracking_seconds=self.tracking_seconds,
                kernel_seconds=self.kernel_seconds,
                total_seconds=time.perf_counter() - self._training_start,
            )

    def _required_probe(self) -> Probe:
        if self.probe is None:
            raise ValueError(
                "expected a probe, got none: pass RepresentationDynamics(probe=Probe.from_texts(texts, tokenizer)), or "
                "give the datamodule a method probe() that returns one"
            )
        return self.probe


def _run_name(trainer: Trainer) -> str:
    if trainer.logger is None or not trainer.logger.name:
        return run_folder(trainer).resolve().name
    return f"{trainer.logger.name}/{trainer.logger.version}"
