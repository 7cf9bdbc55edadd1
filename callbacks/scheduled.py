"""Base class of the Lightning callbacks, which act once at each scheduled step, and what they read
of a trainer.
"""

from __future__ import annotations

import operator
import sys
from abc import ABC, abstractmethod
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from repdyn.capture.blocks import hugging_face_model
from repdyn.capture.wrappers import is_a, unwrapped
from repdyn.tracking.schedule import ScheduleLike, ScheduleState

# a job has imported lightning, or pytorch_lightning, its other name with classes of its own
_IS_OLDER = "pytorch_lightning" in sys.modules or (
    not find_spec("lightning") and find_spec("pytorch_lightning")
)
if TYPE_CHECKING or "lightning.pytorch" in sys.modules or not _IS_OLDER:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import rank_zero_warn
else:
    from pytorch_lightning import Callback, LightningModule, Trainer
    from pytorch_lightning.utilities import rank_zero_warn


class ScheduledCallback(Callback, ABC):
    """A callback that calls :meth:`act` once at step 0, at each scheduled step and at the end of
    training.

    It acts between ``on_train_start`` and ``on_train_end`` alone: hooks that fire in a search for a
    learning rate or a batch size, a validation or a test do nothing.

    Lightning calls a LightningModule's own ``on_train_start``, ``on_train_batch_end`` and
    ``on_train_epoch_end`` after those of callbacks. A module that defines them may change weights
    there, as a momentum teacher or a projection does, so that the step waits for them: see
    :meth:`settle`.
    """

    def __init__(self, schedule: ScheduleLike) -> None:
        self._schedule = ScheduleState(schedule)
        self._is_training = False
        self.step = 0
        """Optimizer steps taken, as the trainer's loggers count them."""
        self._is_due = False
        self._is_settled = True
        """Whether nothing is left to do at the current step, and whether it is one to act at."""

    @abstractmethod
    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Perform the action at :attr:`step`."""

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called where the training starts or goes on, when everything is restored, before the
        first action.
        """

    def count(self, trainer: Trainer, batch: Any) -> None:
        """Called with each batch before other callbacks, in whose hooks a training may be
        stopped.
        """

    def settle(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Act at the current step if it is due, unless that has been done.

        Called as soon as the weights of the step are final: at the end of the batch, or where the
        LightningModule has hooks of its own for that, once they have run, before the next batch,
        a validation, an epoch or the end of the training. A checkpoint that is saved before has
        the weights as they are then, and so has what is done here.
        """
        if not self._is_settled:
            self._is_settled = True
            if self._is_due:
                self.act(trainer, pl_module)
            self.close()

    def close(self) -> None:
        """Called when the current step is settled, whether it was due or not."""

    def is_monitored(self, trainer: Trainer) -> bool:
        """Return whether other callbacks decide by what this one does."""
        return False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_training = False
        self._is_settled = True
        if self._schedule.schedule.at_checkpoints and not trainer.fast_dev_run:
            warn_of_checkpointing(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._schedule = ScheduleState(self._schedule.schedule)
        loop = trainer.fit_loop.epoch_loop
        batches = loop.batch_progress.total
        # a checkpoint that was saved at the end of a batch has a count without this batch, which is
        # added with the next
        was_saved_within = (
            loop.restarting
            and batches.completed < batches.processed
            and not loop._should_accumulate()
        )
        self.step = loop._batches_that_stepped + was_saved_within
        self.begin(trainer, pl_module)
        self._is_training = True
        self._is_due = self._schedule.is_due(self.step, "start")
        self._is_settled = False
        if not _defines(pl_module, "on_train_start"):
            self.settle(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._is_training:
            return
        self._is_due = self._schedule.is_due(self.step)
        self._is_settled = False
        if not _defines(pl_module, "on_train_batch_end", "on_train_epoch_end") or _saves_now(
            trainer
        ):
            self.settle(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # after this hook come the module's, then that of callbacks that monitor values
        if not _defines(pl_module, "on_train_epoch_end") or self.is_monitored(trainer):
            self.settle(trainer, pl_module)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.settle(trainer, pl_module)
        if self._is_training and self._schedule.is_due(self.step, "checkpoint"):
            self.act(trainer, pl_module)

    def end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Act at the last step, before any other callback changes the weights."""
        self.settle(trainer, pl_module)
        if self._is_training and self._schedule.is_due(self.step, "end"):
            self.act(trainer, pl_module)
        self._is_training = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Go behind all other callbacks but those that save checkpoints, to see averages of the
        same step while they see its values; put its companions first and last."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if stage != "fit" or any(
            isinstance(one, _First) and one.owner is self for one in callbacks
        ):
            return
        saving = [one for one in callbacks if one in trainer.checkpoint_callbacks]
        ends = [one for one in callbacks if isinstance(one, _Last)]
        others = [one for one in callbacks if one not in [*saving, *ends] and one is not self]
        # another list: Lightning is going through this one
        trainer.callbacks = [_First(self), *others, self, *saving, *ends, _Last(self)]  # type: ignore[attr-defined]

    def interrupted(self, exception: BaseException) -> None:
        """Deal with an exception that ends the training, after all other callbacks have."""


class _First(Callback):
    """Counts steps before another callback saves a checkpoint, and lets the owner act before other
    callbacks change the weights: at steps that waited, and at the end of the training, where weight
    averaging puts the average into the model."""

    def __init__(self, owner: ScheduledCallback) -> None:
        self.owner = owner

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.too_many: int | None = None

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.owner.settle(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.owner.settle(trainer, pl_module)
        averaging: list[Any] = [
            c for c in trainer.callbacks if is_a(c, "StochasticWeightAveraging")
        ]  # type: ignore[attr-defined]
        if any(trainer.current_epoch > each.swa_end for each in averaging):
            # nothing is trained: the average gets statistics of batch normalisation
            self.owner.end(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.owner.settle(trainer, pl_module)
        # a search for a batch size leaves Lightning's count one step ahead
        if self.too_many is None:
            self.too_many = trainer.fit_loop.epoch_loop._batches_that_stepped - self.owner.step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loop = trainer.fit_loop.epoch_loop
        # counted after this hook, once a batch whatever the number of optimizers
        self.owner.step = (
            loop._batches_that_stepped + (not loop._should_accumulate()) - (self.too_many or 0)
        )
        self.owner.count(trainer, batch)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.owner.end(trainer, pl_module)


class _Last(Callback):
    """Lets a callback deal with an exception after all others: one that saves does not wait for
    figures.
    """

    def __init__(self, owner: ScheduledCallback) -> None:
        self.owner = owner

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.owner.interrupted(exception)


def _defines(pl_module: LightningModule, *hooks: str) -> bool:
    """Return whether a LightningModule has one of these hooks of its own."""
    return any(
        getattr(type(pl_module), hook, None) is not getattr(LightningModule, hook)
        or hook in vars(pl_module)
        for hook in hooks
    )


def _saves_now(trainer: Trainer) -> bool:
    """Return whether a ModelCheckpoint saves at the end of this batch, before the LightningModule's
    own hook: what it saves, and what it may monitor, is of this moment."""
    every = [getattr(one, "_every_n_train_steps", 0) for one in trainer.checkpoint_callbacks]
    return any(n_steps and trainer.global_step % n_steps == 0 for n_steps in every)


def run_folder(trainer: Trainer) -> Path:
    """Return the folder of this run's files, an absolute path: the first logger's, or the trainer's
    root without one.

    All ranks must call it, because the result is broadcast from rank zero.
    """
    return Path(trainer.log_dir or trainer.default_root_dir).absolute()


def run_name(trainer: Trainer) -> str:
    """Return the name and version of the first logger, or the name of the run's folder
    without one.
    """
    if trainer.logger is None or not trainer.logger.name:
        return run_folder(trainer).resolve().name
    logger: Any = trainer.logger
    version = logger.version
    # by a name that a person recognises; W&B makes one up only online
    if is_a(logger, "WandbLogger"):
        names = (
            getattr(logger, "_wandb_init", {}).get("name"),
            getattr(logger.experiment, "name", None),
        )
        now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        version = next((name for name in names if isinstance(name, str) and name), now)
    return f"{trainer.logger.name}/{version}"


def tracked_module(pl_module: nn.Module, model: str | None) -> nn.Module:
    """Return the named attribute, else the only Hugging Face model inside, else the module itself.

    An adapter that puts learned vectors before the tokens or their keys is returned as a whole,
    since it changes the states.

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
                f"expected model= to name a module inside {type(pl_module).__name__}, got "
                f"{model!r}; it has {children}"
            )
        return unwrapped(found)
    configs = (
        (module, getattr(module, "active_peft_config", None)) for module in pl_module.modules()
    )
    adapters = (
        module for module, config in configs if getattr(config, "is_prompt_learning", False)
    )
    return next(adapters, None) or hugging_face_model(pl_module) or pl_module


def warn_of_checkpointing(trainer: Trainer) -> None:
    """Warn where a trainer does not notify callbacks of checkpoints, or saves them without being
    called.
    """
    checkpointing: list[Any] = [
        each for each in trainer.checkpoint_callbacks if is_a(each, "ModelCheckpoint")
    ]
    if not checkpointing:
        rank_zero_warn(
            'schedule="checkpoints", but the trainer has no ModelCheckpoint: steps are measured '
            "where "
            "trainer.save_checkpoint() is called, and at the start and the end"
        )
    elif all(c.save_weights_only for c in checkpointing):
        rank_zero_warn(
            'schedule="checkpoints", but Lightning does not notify callbacks of '
            "ModelCheckpoint(save_weights_only=True): the start and the end are measured; save "
            "complete checkpoints, "
            "or measure at fixed steps with schedule=1000"
        )
