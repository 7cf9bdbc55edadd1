"""Suppression of what other packages print on a run that works: tips, versions, deprecations of their own."""

import logging
import warnings

_LOGGERS = (
    "lightning.pytorch",
    "lightning.fabric",
    "lightning.pytorch.utilities.rank_zero",
    "lightning.fabric.utilities.rank_zero",
)
_WARNINGS = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    "The '[a-z_]+_dataloader' does not have many workers",
    "Precision .* is not supported by the model summary",
)


def silence_notices() -> None:
    """Hide Lightning's tips and state of the hardware, and warnings that concern nothing a user has written.

    Other warnings and all errors are still shown.
    """
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in _WARNINGS:
        warnings.filterwarnings("ignore", message)
