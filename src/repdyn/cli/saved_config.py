"""The configuration of train.py, saved beside the run and logged with it."""

from __future__ import annotations

from pathlib import Path

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_warn

from repdyn.publish.stored_run import log_config
from repdyn.utils.files import write_atomically
from repdyn.utils.redaction import redacted


class SaveConfig(SaveConfigCallback):
    """Saves and logs the configuration without the passwords and tokens that somebody's loggers may be given."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        folder = trainer.log_dir  # all ranks must ask
        if trainer.is_global_zero and folder is not None:
            text = redacted(self.parser.dump(self.config, skip_none=False))
            write_atomically(Path(folder) / self.config_filename, lambda path: path.write_text(text, encoding="utf-8"))
            try:
                log_config({"config": yaml.safe_load(text)}, trainer.loggers)
            except Exception as error:  # whatever a logger raises, the training goes on
                rank_zero_warn(f"the configuration could not be logged: {redacted(str(error))}")
