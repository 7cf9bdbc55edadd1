"""Base class of the Lightning callbacks, which act once at each scheduled step, and what they read
of a trainer.

The order of hooks at the end of a batch is what makes this long. Lightning calls, one after
another, ``on_train_batch_end`` of

1. :class:`_First`, which counts the step;
2. other callbacks, such as WeightAveraging, which may change the weights;
3. the :class:`ScheduledCallback` itself, which acts on the final weights of the step;
4. callbacks that save checkpoints, in whose hook the state of this one must be complete;
5. :class:`_Last`, for exceptions alone;
6. the LightningModule, which may change the weights as well. Where it has such hooks, the third
   waits: it acts as soon as anything comes after them, which :class:`_First` notices.

:meth:`ScheduledCallback.setup` brings the callbacks into this order.
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
        """True if the current step is one to act at."""
        self._is_settled = True
        """True once nothing is left to do at the current step."""

    @abstractmethod
    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Perform the action at :attr:`step`."""

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prepare for a training that starts or goes on.

        Called before the first action, when Lightning has restored everything.
        """

    def count(self, trainer: Trainer, batch: Any) -> None:
        """Count what each batch contains.

        Called before the hooks of other callbacks, any of which may end the training.
        """

    def settle(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Act at the current step if it is due, unless that has been done.

        Called as soon as the weights of the step are final. That is at the end of the batch; or,
        where the LightningModule has hooks of its own there, after these, before the next batch, a
        validation, an epoch or the end of the training. Where a checkpoint is saved before these
        hooks, the action comes before them too, so that it sees the weights of the checkpoint.
        """
        if not self._is_settled:
            self._is_settled = True
            if self._is_due:
                self.act(trainer, pl_module)
            self.close()

    def close(self) -> None:
        """End the current step, called when it is settled, whether it was due or not."""

    def is_monitored(self, trainer: Trainer) -> bool:
        """Return whether other callbacks decide by values of this one."""
        return False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_training = False
        self._is_settled = True
        if self._schedule.schedule.at_checkpoints and not trainer.fast_dev_run:
            warn_of_checkpointing(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # a callback may serve several trainings in turn: each step is due once in each
        self._schedule = ScheduleState(self._schedule.schedule)
        loop = trainer.fit_loop.epoch_loop
        batches = loop.batch_progress.total
        # Lightning counts a step after the hooks of its batch: the count in a checkpoint that was
        # saved in such a hook lacks this step, whose weights it has
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
        """Bring the trainer's callbacks into the order that the module describes.

        This one goes behind all others except for those that save checkpoints: it then sees
        averages of the same step, and checkpoint callbacks see its values.
        """
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        is_in_order = any(
            isinstance(callback, _First) and callback.owner is self for callback in callbacks
        )
        if stage != "fit" or is_in_order:
            return
        saving = [callback for callback in callbacks if callback in trainer.checkpoint_callbacks]
        ends = [callback for callback in callbacks if isinstance(callback, _Last)]
        behind = [*saving, *ends, self]
        others = [callback for callback in callbacks if callback not in behind]
        in_order = [_First(self), *others, self, *saving, *ends, _Last(self)]
        # a new list, because Lightning is iterating over the old one
        trainer.callbacks = in_order  # type: ignore[attr-defined]

    def interrupted(self, exception: BaseException) -> None:
        """Handle an exception that ends the training; called after all other callbacks."""


class _First(Callback):
    """Counts steps, and lets its owner act before other callbacks change the weights.

    It counts first, so that a checkpoint which another callback saves has the right step. The owner
    acts here at steps that waited for hooks of the LightningModule, and at the end of the training,
    before weight averaging puts the average into the model.
    """

    def __init__(self, owner: ScheduledCallback) -> None:
        self.owner = owner

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.steps_ahead: int | None = None
        """How many steps too many Lightning counts; None before the first batch."""

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.owner.settle(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.owner.settle(trainer, pl_module)
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        averaging = [
            callback for callback in callbacks if is_a(callback, "StochasticWeightAveraging")
        ]
        if any(trainer.current_epoch > callback.swa_end for callback in averaging):
            # an epoch that trains nothing, but gives the average its statistics of batch
            # normalisation: the training has ended before it
            self.owner.end(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.owner.settle(trainer, pl_module)
        # a search for a batch size leaves Lightning's count one step ahead
        if self.steps_ahead is None:
            self.steps_ahead = trainer.fit_loop.epoch_loop._batches_that_stepped - self.owner.step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loop = trainer.fit_loop.epoch_loop
        # Lightning's count, one for each batch that stepped whatever the number of optimizers, has
        # this batch only after the hook
        counted = loop._batches_that_stepped - (self.steps_ahead or 0)
        self.owner.step = counted if loop._should_accumulate() else counted + 1
        self.owner.count(trainer, batch)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.owner.end(trainer, pl_module)


class _Last(Callback):
    """Lets its owner handle an exception last: callbacks that save a checkpoint on an exception
    must not wait for figures.
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
    own hook: it saves the weights of this moment, and may monitor values of them.
    """
    intervals = [
        getattr(callback, "_every_n_train_steps", 0) for callback in trainer.checkpoint_callbacks
    ]
    return any(n_steps and trainer.global_step % n_steps == 0 for n_steps in intervals)


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
    # the version of a W&B run is a random id; its name can be recognised, and is made up by the
    # server where the user gives none, so that there is none offline
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
        return unwrapped(_named_module(pl_module, model))
    for module in pl_module.modules():
        adapter = getattr(module, "active_peft_config", None)
        if getattr(adapter, "is_prompt_learning", False):
            return module
    return hugging_face_model(pl_module) or pl_module


def _named_module(pl_module: nn.Module, name: str) -> nn.Module:
    """Return the module that an attribute such as "student.encoder" holds; ValueError if none."""
    try:
        module: Any = operator.attrgetter(name)(pl_module)
    except AttributeError:
        module = None
    if not isinstance(module, nn.Module):
        children = ", ".join(child for child, _ in pl_module.named_children())
        raise ValueError(
            f"expected model= to name a module inside {type(pl_module).__name__}, got {name!r}; it "
            f"has {children}"
        )
    return module


def warn_of_checkpointing(trainer: Trainer) -> None:
    """Warn where schedule="checkpoints" measures hardly a step: where no checkpoint is saved, or
    Lightning does not notify callbacks of them.
    """
    checkpointing: list[Any] = [
        callback for callback in trainer.checkpoint_callbacks if is_a(callback, "ModelCheckpoint")
    ]
    if not checkpointing:
        rank_zero_warn(
            'schedule="checkpoints", but the trainer has no ModelCheckpoint: steps are measured '
            "where trainer.save_checkpoint() is called, and at the start and the end"
        )
    elif all(callback.save_weights_only for callback in checkpointing):
        rank_zero_warn(
            'schedule="checkpoints", but Lightning does not notify callbacks of '
            "ModelCheckpoint(save_weights_only=True): the start and the end are measured; save "
            "complete checkpoints, or measure at fixed steps with schedule=1000"
        )
