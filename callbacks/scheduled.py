"""Acting once at each scheduled step of a training run: what the callbacks have in common."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from transformers import PreTrainedModel

from repdyn.schedule import Schedule, ScheduleLike


class ScheduledCallback(Callback, ABC):
    """Calls :meth:`act` at step 0, at the steps of a schedule and at the end of training, once for each step."""

    def __init__(self, schedule: ScheduleLike) -> None:
        self.schedule = Schedule.parse(schedule)
        self._last_step: int | None = None

    @abstractmethod
    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do what is due at ``trainer.global_step``."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.schedule.at_checkpoints:
            _refuse_silent_checkpoints(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == 0:
            self._act_once(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Under gradient accumulation this fires several times at one step; only the first time acts.
        if trainer.global_step > 0 and trainer.global_step in self.schedule:
            self._act_once(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self.schedule.at_checkpoints:
            self._act_once(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._act_once(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        # Built-in types only: anything else would keep the user's checkpoint from loading with weights_only=True.
        return {"last_step": self._last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._last_step = state_dict["last_step"]

    def _act_once(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step != self._last_step:
            self._last_step = trainer.global_step
            self.act(trainer, pl_module)


def run_folder(trainer: Trainer) -> Path:
    """Where the files of this run go: the first logger's folder, or the trainer's root without one."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def tracked_module(pl_module: LightningModule, model: str | None) -> nn.Module:
    """The module that is meant: the attribute named, else the only Hugging Face model inside, else all of it.

    Raises:
        ValueError: no such attribute, or one that is no module.
    """
    if model is not None:
        try:
            found = operator.attrgetter(model)(pl_module)
        except AttributeError:
            found = None
        if not isinstance(found, nn.Module):
            children = ", ".join(name for name, _ in pl_module.named_children())
            raise ValueError(
                f"expected model= to name a module inside {type(pl_module).__name__}, got {model!r}; it has {children}"
            )
        return found
    outermost: list[PreTrainedModel] = []
    for module in pl_module.modules():
        inside_another = any(module is inner for outer in outermost for inner in outer.modules())
        if isinstance(module, PreTrainedModel) and not inside_another:
            outermost.append(module)
    return outermost[0] if len(outermost) == 1 else pl_module


def _refuse_silent_checkpoints(trainer: Trainer) -> None:
    checkpointing = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
    if not checkpointing:
        raise ValueError(
            'expected a ModelCheckpoint for schedule="checkpoints", got a trainer without one; add one, or measure '
            "every so many steps with schedule=1000"
        )
    if all(c.save_weights_only for c in checkpointing):
        raise ValueError(
            'expected checkpoints with trainer state for schedule="checkpoints": Lightning does not announce those of '
            "ModelCheckpoint(save_weights_only=True); save whole ones, or measure at fixed steps with schedule=1000"
        )
