"""Checkpoints in Hugging Face format, so that a run can be swept afterwards like a published one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from transformers import PreTrainedModel

from repdyn.callbacks.scheduled import (
    ScheduledCallback,
    is_fresh,
    run_folder,
    tracked_module,
    validate_not_sharded,
)
from repdyn.tracking.schedule import ScheduleLike
from repdyn.utils.distributed import Ranks
from repdyn.utils.quiet import without_progress_bars


class SavePretrainedCheckpoint(ScheduledCallback):
    """Saves ``step0``, ``step1``, ... as folders that ``AutoModel.from_pretrained`` loads.

    Each folder is written atomically. The tokenizer is saved with the weights where the datamodule has one. A resumed
    run continues in the folder it began in, and keeps what it had saved there.

    Args:
        schedule: which steps to save, as for :class:`RepresentationDynamics`.
        dirpath: folder to save in; by default ``hf_checkpoints`` in the run's folder.
        model: attribute of the LightningModule that holds the model; by default the only Hugging Face model in it.

    Raises:
        ValueError: when training starts, where there is no Hugging Face model to save, the folder holds the
            checkpoints of another run, or the strategy shards the model.
    """

    def __init__(
        self, schedule: ScheduleLike = "pythia", dirpath: str | Path | None = None, model: str | None = None
    ) -> None:
        super().__init__(schedule)
        self.model = model
        self._given_dirpath = dirpath
        self.dirpath: Path | None = None
        """Where the current run saves; None before training starts."""

    @property
    def state_key(self) -> str:
        return self._generate_state_key(dirpath=str(self._given_dirpath), model=self.model)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        validate_not_sharded(trainer)
        found = tracked_module(pl_module, self.model)
        if not isinstance(found, PreTrainedModel):
            raise ValueError(
                f"expected a Hugging Face model to save, found {type(found).__name__}; name the attribute that holds "
                "it with model=, or use Lightning's ModelCheckpoint"
            )
        default = run_folder(trainer) / "hf_checkpoints"
        if is_fresh(trainer) or self.dirpath is None:
            self.dirpath = Path(self._given_dirpath or default)
        if is_fresh(trainer):
            Ranks.of_job().on_rank_zero(self._check_folder_is_free)

    def _check_folder_is_free(self) -> None:
        if self.dirpath is not None and any(self.dirpath.glob("step*")):
            raise ValueError(
                f"expected a folder without checkpoints, but {self.dirpath} holds some of another run; choose another "
                "dirpath=, or resume that run with ckpt_path="
            )

    def state_dict(self) -> dict[str, Any]:
        return {"dirpath": str(self.dirpath)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.dirpath = Path(state_dict["dirpath"])

    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.dirpath is None or not trainer.is_global_zero or trainer.fast_dev_run:
            return
        target = self.dirpath / f"step{trainer.global_step}"
        if target.exists():
            return
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        model = tracked_module(pl_module, self.model)
        tokenizer = getattr(getattr(trainer, "datamodule", None), "tokenizer", None)
        with isolate_rng(), without_progress_bars():
            for part in filter(None, (model, tokenizer)):
                part.save_pretrained(partial)
        os.replace(partial, target)
