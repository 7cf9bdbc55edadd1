"""Base class of the Lightning callbacks, which act once at each scheduled step, and checks of the trainer."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch import Tensor, nn

from repdyn.callbacks.progress import RunProgressBar
from repdyn.capture.blocks import hugging_face_model, unwrapped
from repdyn.capture.prepared_model import has_prompt
from repdyn.tracking.schedule import ScheduleLike, ScheduleState


class ScheduledCallback(Callback, ABC):
    """A callback that calls :meth:`act` once at step 0, at each scheduled step and at the end of training."""

    activity = "measuring"
    """What a progress bar says meanwhile."""

    def __init__(self, schedule: ScheduleLike) -> None:
        self._schedule = ScheduleState(schedule)

    @abstractmethod
    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Perform the action at ``trainer.global_step``; not called again for a step that a resumed run has done
        before."""

    def start(self, trainer: Trainer) -> None:
        """Called before the first action, where the training starts or goes on."""

    def allows(self, trainer: Trainer) -> bool:
        """Return whether to act at a scheduled step; the first and the last are not asked about."""
        return True

    def progress(self) -> dict[str, float]:
        """Return values for the progress bar, by their names in it, after the action."""
        return {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_fresh(trainer):
            self._schedule = ScheduleState(self._schedule.schedule)
        if self._schedule.schedule.at_checkpoints:
            validate_checkpointing(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.start(trainer)
        if self._schedule.start(trainer.global_step):
            self._act(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._schedule.advance(trainer.global_step):
            self._act_if_allowed(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._schedule.save(trainer.global_step):
            self._act_if_allowed(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._schedule.claim(trainer.global_step):
            self._act(trainer, pl_module)

    def _act_if_allowed(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.allows(trainer):
            self._act(trainer, pl_module)
        else:
            self._schedule.release()

    def _act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        bar = trainer.progress_bar_callback
        if not isinstance(bar, RunProgressBar):
            self.act(trainer, pl_module)
            return
        with bar.doing(f"{self.activity} step {trainer.global_step}"):
            self.act(trainer, pl_module)
        bar.show(self.progress())


_VALIDATION_LOSSES = ("val/loss", "val_loss", "validation/loss", "validation_loss", "valid_loss", "eval_loss")
"""Names under which a LightningModule may log its validation loss; the first that is logged is stored."""


def validation_loss(trainer: Trainer) -> Tensor | None:
    """Return the validation loss that the LightningModule logged last; None if it logs none."""
    logged = trainer.callback_metrics
    return next((logged[name] for name in _VALIDATION_LOSSES if name in logged), None)


def is_fresh(trainer: Trainer) -> bool:
    """Return whether a training starts, rather than continues from a checkpoint or an earlier call of ``fit``."""
    return trainer.ckpt_path is None and trainer.global_step == 0


def run_folder(trainer: Trainer) -> Path:
    """Return the folder of this run's files: the first logger's, or the trainer's root without one.

    All ranks must call it, because the result is broadcast from rank zero.
    """
    return Path(trainer.log_dir or trainer.default_root_dir)


def run_name(trainer: Trainer) -> str:
    """Return the name and version of the first logger, or the name of the run's folder without one."""
    if trainer.logger is None or not trainer.logger.name:
        return run_folder(trainer).resolve().name
    return f"{trainer.logger.name}/{trainer.logger.version}"


def tracked_module(pl_module: nn.Module, model: str | None) -> nn.Module:
    """Return the named attribute, else the only Hugging Face model inside, else the module itself.

    An adapter that prepends learned vectors to the tokens is returned as a whole, because it changes the states.

    Raises:
        ValueError: the attribute does not exist or is not a module.
    """
    if model is not None:
        try:
            found: Any = operator.attrgetter(model)(pl_module)
        except AttributeError:
            found = None
        if not isinstance(found, nn.Module):
            children = ", ".join(name for name, _ in pl_module.named_children())
            raise ValueError(
                f"expected model= to name a module inside {type(pl_module).__name__}, got {model!r}; it has {children}"
            )
        return unwrapped(found)
    adapters = (module for module in pl_module.modules() if has_prompt(module))
    return next(adapters, None) or hugging_face_model(pl_module) or pl_module


def validate_names(names: Sequence[str]) -> None:
    """Check that the names of the trackers of one trainer differ.

    Raises:
        ValueError: two are equal.
    """
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"expected trackers of different names in one trainer, got several called {repeated[0]!r}; give each "
            "its own name="
        )


def validate_strategy(trainer: Trainer) -> None:
    """Check that each layer can be run on one device.

    Raises:
        ValueError: the strategy is DeepSpeed, which is not supported, or uses tensor parallelism.
    """
    strategy = trainer.strategy
    if isinstance(strategy, DeepSpeedStrategy):
        raise ValueError(
            "expected a strategy that can run the model outside of the training step, got DeepSpeedStrategy; "
            "use DDP or FSDP, or save checkpoints during training and measure them afterwards with "
            "analyze_checkpoints.py"
        )
    if isinstance(strategy, ModelParallelStrategy) and (size := strategy.device_mesh["tensor_parallel"].size()) > 1:
        raise ValueError(
            f"expected each layer on one device, got ModelParallelStrategy(tensor_parallel_size={size}); "
            "shard with data_parallel_size alone, or save checkpoints during training and measure them afterwards with "
            "analyze_checkpoints.py"
        )


def validate_not_sharded(trainer: Trainer) -> None:
    """Check that the whole model is on each device.

    Raises:
        ValueError: the strategy shards the model.
    """
    if isinstance(trainer.strategy, FSDPStrategy | DeepSpeedStrategy | ModelParallelStrategy):
        raise ValueError(
            f"expected a strategy that keeps the whole model on each device, got {type(trainer.strategy).__name__}; "
            "save checkpoints with Lightning's ModelCheckpoint"
        )


def validate_checkpointing(trainer: Trainer) -> None:
    """Check that callbacks are notified when the trainer saves a checkpoint.

    Raises:
        ValueError: the trainer saves no checkpoints, or saves them without trainer state.
    """
    checkpointing = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
    if not checkpointing:
        raise ValueError(
            'expected a ModelCheckpoint for schedule="checkpoints", got a trainer without one; add one, or measure '
            "at fixed steps with schedule=1000"
        )
    if all(c.save_weights_only for c in checkpointing):
        raise ValueError(
            'expected checkpoints with trainer state for schedule="checkpoints", got '
            "ModelCheckpoint(save_weights_only=True), of which Lightning does not notify callbacks; save complete "
            "checkpoints, or measure at fixed steps with schedule=1000"
        )
