"""Suppression of transformers' progress bars and warnings."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils.logging import (
    disable_progress_bar,
    enable_progress_bar,
    get_verbosity,
    is_progress_bar_enabled,
    set_verbosity,
    set_verbosity_error,
)


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars: one for each of many small files would disrupt the run's own."""
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            enable_progress_bar()


@contextmanager
def without_reports() -> Iterator[None]:
    """Hide transformers' progress bars and warnings, for code that handles the loading report itself."""
    verbosity = get_verbosity()
    set_verbosity_error()
    try:
        with without_progress_bars():
            yield
    finally:
        set_verbosity(verbosity)
