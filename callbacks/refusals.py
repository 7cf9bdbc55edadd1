"""What cannot work is refused before training starts: each message says what was required, what came, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from repdyn.metrics import Metric, resolve


def refuse_sharding(trainer: Trainer) -> None:
    if isinstance(trainer.strategy, FSDPStrategy | DeepSpeedStrategy | ModelParallelStrategy):
        raise ValueError(
            f"expected a strategy that keeps the whole model on each device, got {type(trainer.strategy).__name__}; "
            "save checkpoints during training and measure them afterwards with analyze_checkpoints.py"
        )


def refuse_silent_checkpoints(trainer: Trainer) -> None:
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


def refuse_two_settings(metrics: Sequence[str | Metric]) -> None:
    pairs = [(metric.name, subset) for metric, subset in resolve(metrics)]
    if repeated := sorted({pair for pair in pairs if pairs.count(pair) > 1}):
        metric, subset = repeated[0]
        raise ValueError(
            f"expected one setting of each metric, got several of {metric} on {subset}; attach a tracker for each, "
            "with different name="
        )


def refuse_namesakes(names: Sequence[str]) -> None:
    """Trackers of one name would write to the same places."""
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"expected trackers of different names in one trainer, got several called {repeated[0]!r}; give each its "
            "own name="
        )
