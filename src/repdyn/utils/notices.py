"""What a training prints: lines above its progress bars, and none of the tips and deprecations of other packages."""

import logging
import sys
import warnings
from contextlib import suppress

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


def print_above_bars(text: str) -> None:
    """Print a line to standard error, above the bars of tqdm that are drawn there or on standard output.

    Printed directly, it would go on where a bar ends, on the same line. While rich draws, it has a stream of its own in
    the place of standard error, which does the same for its bars. Where standard error is closed or full, the line is
    lost: what is said of a training must not end it.
    """
    if sys.stderr is None:  # closed before Python started
        return
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)  # nobody draws a bar of what is not imported
    with suppress(OSError, ValueError):
        if tqdm is not None and len(tqdm._instances) > 0:
            tqdm.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)


def warn(log: logging.Logger, text: str) -> None:
    """Log a warning, unless the streams that it would go to are closed or full."""
    with suppress(OSError, ValueError):
        log.warning("%s", text)
