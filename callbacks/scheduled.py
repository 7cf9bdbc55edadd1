"""Acting once at each scheduled step of a training run: what the Lightning callbacks have in common."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from repdyn.callbacks.validation import validate_checkpoint_schedule
from repdyn.capture.blocks import hugging_face_model, unwrapped
from repdyn.capture.prepared_model import has_prompt
from repdyn.tracking.schedule import ScheduleLike, ScheduleState


class ScheduledCallback(Callback, ABC):
    """Calls :meth:`act` at step 0, at the steps of a schedule and at the end of training, once for each step."""

    def __init__(self, schedule: ScheduleLike) -> None:
        self._agenda = ScheduleState(schedule)

    @abstractmethod
    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do what is due at ``trainer.global_step``, unless it was done before the run was resumed."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_fresh(trainer):
            self._agenda = ScheduleState(self._agenda.schedule)
        if self._agenda.schedule.at_checkpoints:
            validate_checkpoint_schedule(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._agenda.starts(trainer.global_step):
            self.act(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._agenda.reaches(trainer.global_step):
            self.act(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._agenda.saves(trainer.global_step):
            self.act(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._agenda.ends(trainer.global_step):
            self.act(trainer, pl_module)


def is_fresh(trainer: Trainer) -> bool:
    """Whether a training begins, rather than goes on from a checkpoint or from an earlier call of ``fit``."""
    return trainer.ckpt_path is None and trainer.global_step == 0


def run_folder(trainer: Trainer) -> Path:
    """Where the files of this run go: the first logger's folder, or the trainer's root without one.

    All ranks must ask: the answer is broadcast from the first.
    """
    return Path(trainer.log_dir or trainer.default_root_dir)


def tracked_module(pl_module: nn.Module, model: str | None) -> nn.Module:
    """The module that is meant: the attribute named, else the only Hugging Face model inside, else all of it.

    An adapter that puts learned vectors before the tokens is run as a whole: without it the model is another one.

    Raises:
        ValueError: no such attribute, or one that is no module.
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
    prompted = (module for module in pl_module.modules() if has_prompt(module))
    return next(prompted, None) or hugging_face_model(pl_module) or pl_module
