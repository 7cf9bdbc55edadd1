"""Save checkpoints in Hugging Face format, so that a run can be measured later like a published
one.
"""

import os
import shutil
from itertools import chain, count
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from repdyn.callbacks.scheduled import (
    LightningModule,
    ScheduledCallback,
    Trainer,
    run_folder,
    tracked_module,
)
from repdyn.capture.wrappers import is_a
from repdyn.tracking.schedule import ScheduleLike
from repdyn.utils.caller_state import isolated_rng
from repdyn.utils.printing import without_reports


class SavePretrainedCheckpoint(ScheduledCallback):
    """Save folders ``step0``, ``step1``, ... that ``AutoModel.from_pretrained`` can load.

    Each folder is written atomically. The tokenizer is saved with the weights if the datamodule has
    one. A resumed run continues in its folder and does not overwrite existing checkpoints; a new
    one takes a folder of its own, ``hf_checkpoints-2``, where there are checkpoints of another.

    Args:
        schedule: the steps to save, as for :class:`RepresentationDynamics`.
        dirpath: folder of the checkpoints; by default ``hf_checkpoints`` in the run's folder.
        model: attribute of the LightningModule that holds the model; by default the only Hugging
            Face model in it.

    Raises:
        ValueError: at the start of training, if there is no Hugging Face model to save, or the
            strategy shards it.
    """

    def __init__(
        self,
        schedule: ScheduleLike = "pythia",
        dirpath: str | Path | None = None,
        model: str | None = None,
    ) -> None:
        super().__init__(schedule)
        self.model = model
        self._requested_dirpath = dirpath
        self.dirpath: Path | None = None
        """The folder of the current run; None before training starts."""

    @property
    def state_key(self) -> str:
        return self._generate_state_key(dirpath=str(self._requested_dirpath), model=self.model)

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_a(trainer.strategy, "FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy"):
            raise ValueError(
                "expected a strategy that keeps the whole model on each device, got "
                f"{type(trainer.strategy).__name__}; save checkpoints with Lightning's "
                "ModelCheckpoint"
            )
        module = tracked_module(pl_module, self.model)
        if not isinstance(module, PreTrainedModel):
            raise ValueError(
                f"expected a Hugging Face model to save, got {type(module).__name__}; give its "
                "attribute as model=, or use Lightning's ModelCheckpoint"
            )
        folder = Path(self._requested_dirpath or run_folder(trainer) / "hf_checkpoints").absolute()
        if self.step == 0:
            # a new training: hf_checkpoints, or the first numbered folder without checkpoints
            numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
            self.dirpath = next(
                path for path in chain([folder], numbered) if not any(path.glob("step*"))
            )
        elif self.dirpath is None:
            self.dirpath = folder

    def state_dict(self) -> dict[str, Any]:
        return {"dirpath": str(self.dirpath)} if self.dirpath is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.dirpath = Path(state_dict["dirpath"]) if state_dict else None

    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.dirpath is None or not trainer.is_global_zero or trainer.fast_dev_run:
            return
        target = self.dirpath / f"step{self.step}"
        if target.exists():
            return
        # of an attempt that was killed, which a rename would not replace
        incomplete = target.with_name(f".{target.name}.partial")
        shutil.rmtree(incomplete, ignore_errors=True)
        model: Any = tracked_module(pl_module, self.model)
        tokenizer = getattr(getattr(trainer, "datamodule", None), "tokenizer", None)
        with isolated_rng(), without_reports():
            model.save_pretrained(incomplete)
            if tokenizer is not None:
                tokenizer.save_pretrained(incomplete)
        os.replace(incomplete, target)
