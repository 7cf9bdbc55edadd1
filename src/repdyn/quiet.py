"""Silence where others would draw over our own progress."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled


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
