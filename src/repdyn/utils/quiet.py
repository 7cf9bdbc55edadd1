"""Silence where others would draw over our own progress."""

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
    """Without transformers' bars: one for each of many small files would tear the run's own to pieces."""
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            enable_progress_bar()


@contextmanager
def without_reports() -> Iterator[None]:
    """Without transformers' bars and warnings, for code that reads the loading report itself and acts on it."""
    verbosity = get_verbosity()
    set_verbosity_error()
    try:
        with without_progress_bars():
            yield
    finally:
        set_verbosity(verbosity)
