"""The Lightning of the job: the package ``lightning``, or ``pytorch_lightning``, its other name."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

_HAS_CHOSEN_THE_OTHER = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules

if TYPE_CHECKING or not (_HAS_CHOSEN_THE_OTHER or find_spec("lightning") is None):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import rank_zero_warn
else:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer
        from pytorch_lightning.utilities import rank_zero_warn
    except ModuleNotFoundError as error:
        error.name = "lightning" if error.name == "pytorch_lightning" else error.name  # which the extra installs
        raise

__all__ = ["Callback", "LightningModule", "Trainer", "rank_zero_warn"]
