"""What cannot work is refused before training starts: each message says what was required, what came, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy


def validate_trainer(trainer: Trainer) -> None:
    """Strategies under which no forward pass of ours has been tried, or that split single layers."""
    strategy = trainer.strategy
    if isinstance(strategy, DeepSpeedStrategy):
        raise ValueError(
            "expected a strategy under which the model can be run beside the training, got DeepSpeedStrategy; use DDP "
            "or FSDP, or save checkpoints during training and measure them afterwards with analyze_checkpoints.py"
        )
    if isinstance(strategy, ModelParallelStrategy) and (size := strategy.device_mesh["tensor_parallel"].size()) > 1:
        raise ValueError(
            f"expected each layer to be run by one device, got ModelParallelStrategy(tensor_parallel_size={size}); "
            "shard with data_parallel_size alone, or save checkpoints during training and measure them afterwards with "
            "analyze_checkpoints.py"
        )


def validate_not_sharded(trainer: Trainer) -> None:
    """For what must have the whole model on one device."""
    if isinstance(trainer.strategy, FSDPStrategy | DeepSpeedStrategy | ModelParallelStrategy):
        raise ValueError(
            f"expected a strategy that keeps the whole model on each device, got {type(trainer.strategy).__name__}; "
            "save checkpoints with Lightning's ModelCheckpoint"
        )


def validate_checkpoint_schedule(trainer: Trainer) -> None:
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


def validate_unique_names(names: Sequence[str]) -> None:
    """Trackers of one name would write to the same places."""
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"expected trackers of different names in one trainer, got several called {repeated[0]!r}; give each its "
            "own name="
        )
