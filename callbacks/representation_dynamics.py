"""Tracking the geometry of a model's layers while it trains."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from repdyn.blocks import find_blocks
from repdyn.callbacks.scheduled import ScheduledCallback, run_folder, tracked_module
from repdyn.measure import measure, metric_set
from repdyn.metrics import DEFAULT_METRICS, Metric, resolve
from repdyn.probe import Probe, ProbeBatch
from repdyn.records import Checkpoint, Row, scalar_row
from repdyn.schedule import ScheduleLike
from repdyn.store import Key, Store, open_store
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

    Raises:
        ValueError: when training starts, where the configuration cannot work: an unknown metric, blocks that cannot be
            told, no probe, a store that holds another run under the same name, a strategy that shards the model.
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
    ) -> None:
        super().__init__(schedule)
        if on_error not in {"warn", "raise"}:
            raise ValueError(f'expected on_error "warn" or "raise", got {on_error!r}')
        resolve(metrics)  # a mistyped metric is refused here, not hours later
        self.probe = probe
        self.metrics = tuple(metrics)
        self.layers = layers
        self.on_error = on_error
        self.model = model
        self.forward = forward
        self.tokens_per_forward = tokens_per_forward
        self._given_store = store
        self._given_run = run
        self._store: Store | None = None
        self._run: str | None = None
        self._tokens_seen: int | Tensor | None = 0
        self._complaints: set[str] = set()
        self._training_start = 0.0
        self.tracking_seconds = 0.0
        """Wall-clock time this process has spent on measuring, storing and logging."""

    @property
    def store(self) -> Store | None:
        """The store of the current run; None before training starts and under ``fast_dev_run``."""
        return self._store

    @property
    def state_key(self) -> str:
        return self._generate_state_key(
            metrics=metric_set(self.metrics, self.layers), model=self.model, store=str(self._given_store)
        )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        _refuse_sharding(trainer)
        self.probe = self.probe or _probe_of(trainer)
        find_blocks(tracked_module(pl_module, self.model), self.layers)
        if trainer.is_global_zero and not trainer.fast_dev_run:
            self._open_store(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._training_start = time.perf_counter()
        super().on_train_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._tokens_seen = _add_tokens(self._tokens_seen, batch, trainer.world_size)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        try:
            self._show(trainer)
        except Exception as error:
            self._handle(error, trainer.global_step)

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
                self._measure(trainer, pl_module)
        except Exception as error:
            self._record_failure(error, trainer)
            self._handle(error, trainer.global_step)
        self.tracking_seconds += time.perf_counter() - start

    def state_dict(self) -> dict[str, Any]:
        store = str(self._store.path) if self._store else None
        return {**super().state_dict(), "store": store, "run": self._run, "tokens_seen": _as_int(self._tokens_seen)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._store = open_store(state_dict["store"]) if state_dict["store"] else None
        self._run = state_dict["run"]
        self._tokens_seen = state_dict["tokens_seen"]

    def _open_store(self, trainer: Trainer) -> None:
        """Continue the store of a resumed run; start one for a new run, but never on top of another run."""
        resumed = self._store is not None or trainer.ckpt_path is not None
        self._store = self._store or open_store(self._given_store or run_folder(trainer) / "repdyn")
        self._run = self._run or self._given_run or _run_name(trainer)
        if not resumed and self._store.steps(self._run):
            raise ValueError(
                f"expected a new run, but the store {self._store.path} already holds steps of {self._run!r}; resume it "
                "with trainer.fit(..., ckpt_path=...), or choose another run= or store="
            )
        self._store.save_probe(self._required_probe())

    def _measure(self, trainer: Trainer, pl_module: LightningModule) -> None:
        probe, step = self._required_probe(), trainer.global_step
        key = Key(self._run or "fast_dev_run", step, probe.hash, metric_set(self.metrics, self.layers))
        if self._store is not None and key in self._store:
            return  # measured before this run was resumed
        tokens_seen = _as_int(self._tokens_seen)
        profile = measure(
            tracked_module(pl_module, self.model),
            probe,
            self.metrics,
            self.layers,
            forward=self.forward,
            tokens_per_forward=self.tokens_per_forward,
            run=key.run,
            step=step,
            tokens_seen=tokens_seen,
            on_error="raise" if self.on_error == "raise" else "record",
        )
        scalars = _scalar_rows(trainer, Checkpoint(key.run, profile.rows[0].model, step, tokens_seen), probe)
        if self._store is not None:
            self._store.write(key, [*profile.rows, *scalars])
        log_rows(profile.rows, trainer.loggers, step)

    def _record_failure(self, error: Exception, trainer: Trainer) -> None:
        """A row for each metric that says why it is missing; the step is tried again should the run be resumed."""
        if self._store is None or self._run is None:
            return
        probe = self._required_probe().hash
        checkpoint = Checkpoint(self._run, "unknown", trainer.global_step)
        reason = f"{type(error).__name__}: {error}"
        rows = [scalar_row(checkpoint, m.name, math.nan, probe=probe, reason=reason) for m, _ in resolve(self.metrics)]
        try:
            self._store.write(Key(self._run, trainer.global_step, probe, "failed"), rows)
        except OSError as unwritable:
            log.warning("the failure at step %d could not be stored: %s", trainer.global_step, unwritable)

    def _handle(self, error: Exception, step: int) -> None:
        if self.on_error == "raise":
            raise error
        complaint = f"{type(error).__name__}: {error}"
        if complaint not in self._complaints:
            self._complaints.add(complaint)
            log.warning("measuring at step %d failed, training goes on: %s", step, complaint, exc_info=error)

    def _show(self, trainer: Trainer) -> None:
        if self._store is None or self._run is None or not self._store.steps(self._run):
            return  # not the first rank, or nothing measured yet
        with isolate_rng():
            show_run(
                self._store,
                self._run,
                probe=self._required_probe().hash,
                loggers=trainer.loggers,
                tracking_seconds=self.tracking_seconds,
                total_seconds=time.perf_counter() - self._training_start,
            )

    def _required_probe(self) -> Probe:
        if self.probe is None:
            raise ValueError(
                "expected a probe, got none: pass RepresentationDynamics(probe=Probe.from_texts(texts, tokenizer)), or "
                "give the datamodule a method probe() that returns one"
            )
        return self.probe


def _probe_of(trainer: Trainer) -> Probe | None:
    of_datamodule = getattr(getattr(trainer, "datamodule", None), "probe", None)
    return of_datamodule() if callable(of_datamodule) else None


def _refuse_sharding(trainer: Trainer) -> None:
    if isinstance(trainer.strategy, FSDPStrategy | DeepSpeedStrategy | ModelParallelStrategy):
        raise ValueError(
            f"expected a strategy that keeps the whole model on each device, got {type(trainer.strategy).__name__}; "
            "save checkpoints during training and measure them afterwards with analyze_checkpoints.py"
        )


def _run_name(trainer: Trainer) -> str:
    if trainer.logger is None or not trainer.logger.name:
        return run_folder(trainer).resolve().name
    return f"{trainer.logger.name}/{trainer.logger.version}"


def _scalar_rows(trainer: Trainer, checkpoint: Checkpoint, probe: Probe) -> list[Row]:
    """What the training has logged by now, so that its loss can be drawn beside its geometry."""
    return [
        scalar_row(checkpoint, name, float(value), probe=probe.hash) for name, value in trainer.callback_metrics.items()
    ]


def _add_tokens(seen: int | Tensor | None, batch: Any, world_size: int) -> int | Tensor | None:
    """Tokens so far with those of one more batch; None from the first batch that does not show its tokens.

    The sum stays a tensor until somebody reads it: reading would wait for the device at every batch.
    """
    if seen is None or not isinstance(batch, Mapping):
        return None
    if isinstance(batch.get("attention_mask"), Tensor):
        return seen + batch["attention_mask"].sum() * world_size
    if isinstance(batch.get("input_ids"), Tensor):
        return seen + batch["input_ids"].numel() * world_size
    return None


def _as_int(tokens: int | Tensor | None) -> int | None:
    return None if tokens is None else int(tokens)
