"""What is printed: short lists, sizes, lines above progress bars, and no remarks of other
packages.
"""

import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

MAX_LISTED = 6


def shorten_list(names: Sequence[str]) -> str:
    """Join names with commas, leaving out the middle of a long list.

    >>> shorten_list(["a", "b"]), shorten_list([str(n) for n in range(20)])
    ('a, b', '0, 1, 2, 3, 4 .. 19 (20)')
    """
    if len(names) <= MAX_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[: MAX_LISTED - 1])} .. {names[-1]} ({len(names)})"


def plural(n: int, noun: str, several: str = "") -> str:
    """Return a noun as it stands after a number; ``several`` where it is not the noun with an s.

    >>> plural(1, "layer"), plural(0, "layer"), plural(2, "batch", "batches")
    ('layer', 'layers', 'batches')
    """
    return noun if n == 1 else several or f"{noun}s"


def gigabytes(n_bytes: float) -> str:
    """Return a number of bytes in gigabytes.

    >>> gigabytes(0), gigabytes(3_649_400_000_000), gigabytes(21_560_000_000), gigabytes(1_400_000)
    ('0 GB', '3649 GB', '21.6 GB', '0.0014 GB')
    """
    if n_bytes >= 1e12:
        return f"{n_bytes / 1e9:.0f} GB"
    return f"{n_bytes / 1e9:.3g} GB" if n_bytes >= 1e7 else f"{n_bytes / 1e9:.2g} GB"


def print_above_bars(text: str) -> None:
    """Print a line to standard error, above the bars that are drawn there or on standard output.

    Where standard error is closed or full, the line is lost: a message about a training must not
    end it.
    """
    if sys.stderr is None:  # closed before Python started
        return
    with suppress(OSError, ValueError), _bars_cleared():
        print(text, file=sys.stderr, flush=True)


@contextmanager
def _bars_cleared() -> Iterator[None]:
    """Take the bars of tqdm off the screen while a line is written: it would go on where a bar
    ends, on the same line.

    Rich needs no such help: it replaces standard error while it draws.
    """
    # where tqdm is not imported, nobody draws its bars
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is None or len(tqdm._instances) == 0:
        yield
        return
    with tqdm.external_write_mode(file=sys.stderr):
        yield


class Lossy:
    """A stream that loses what it cannot write, being closed or full: a message about a training
    must not end it.
    """

    def __init__(self, stream: Any, *errors: type[Exception]) -> None:
        self._stream = stream
        self._errors = errors or (OSError, ValueError)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(*self._errors):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(*self._errors):
            self._stream.flush()


def warn(log: logging.Logger, text: str) -> None:
    """Log a warning, above any bars, unless the streams that it would go to are closed or full."""
    with suppress(OSError, ValueError), _bars_cleared():
        log.warning("repdyn: %s", text)


_WARNINGS = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    "The '[a-z_]+_dataloader' does not have many workers",
    "Precision .* is not supported by the model summary",
)


def silence_notices() -> None:
    """Hide Lightning's tips and state of the hardware, and warnings that concern nothing a user has
    written.

    Other warnings and all errors are still shown.
    """
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in _WARNINGS:
        warnings.filterwarnings("ignore", message)


@contextmanager
def without_reports() -> Iterator[None]:
    """Hide transformers' warnings and its progress bars, of which each of many small files
    has one.
    """
    from transformers.utils import logging as reports  # here, so that --help need not wait for it

    verbosity = reports.get_verbosity()
    shown = reports.is_progress_bar_enabled()
    reports.disable_progress_bar()
    reports.set_verbosity_error()
    try:
        yield
    finally:
        reports.set_verbosity(verbosity)
        if shown:
            reports.enable_progress_bar()
