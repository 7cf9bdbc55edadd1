"""What people look at: a page that follows the run; figures, a summary and the last page when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from lightning.pytorch.loggers import Logger

from repdyn.publish.media import log_stored_media
from repdyn.publish.results import show_run
from repdyn.report import PAGE, write_report
from repdyn.store import Store
from repdyn.utils.attempts import attempts
from repdyn.utils.timeout import TimeoutRunner

DRAWING_SECONDS = 600.0
"""How long a job waits for all of it at the end."""
PAGE_SECONDS = 60.0
"""How long it waits for a page."""
REFRESH_SECONDS = 15.0
"""Between two looks of an open page at its file."""
SHARE = 0.02
"""Of the time, at most, goes into pages."""


class RunViews:
    """Views of a run's store, made from it alone.

    Args:
        store: None shows nothing.
        loggers: gives those that get the figures.
        live: whether there is a page while the run goes on.
        prefix: leads the names in the loggers.
    """

    def __init__(
        self, store: Store | None, loggers: Callable[[], Iterable[Logger]], *, live: bool, prefix: str = ""
    ) -> None:
        self._store = store
        self._loggers = loggers
        self._live = live
        self._prefix = prefix
        self._page = TimeoutRunner(PAGE_SECONDS)
        self._not_before = 0.0

    def refresh(self) -> None:
        """Write the store's page anew, unless the last one was too short a while ago for what it cost.

        It shows all runs of the store, so that several trackers of one store do not take it from each other.

        Raises:
            OSError, TimeoutError, ValueError: it cannot be written.
        """
        start = time.perf_counter()
        if self._store is None or not self._live or start < self._not_before:
            return
        path = self._store.path / PAGE
        write = partial(write_report, self._store, path, refresh_seconds=REFRESH_SECONDS)
        try:
            self._page(f"writing {path}", write)
        finally:
            end = time.perf_counter()
            self._not_before = end + (end - start) / SHARE

    def finish(
        self, run: str, probe: str, *, tracking_seconds: float, kernel_seconds: float, total_seconds: float
    ) -> None:
        """Figures beside the store and in the loggers, a page that stays as it is, a summary in the terminal.

        Raises:
            Exception: what the first failing part raised, once all that can be done is done.
        """
        if self._store is None:
            return
        seconds = {
            "tracking_seconds": tracking_seconds,
            "kernel_seconds": kernel_seconds,
            "total_seconds": total_seconds,
        }
        TimeoutRunner(DRAWING_SECONDS)(f"drawing {run}", partial(self._finish, self._store, run, probe, seconds))

    def _finish(self, store: Store, run: str, probe: str, seconds: dict[str, float]) -> None:
        page = store.path / PAGE if self._live else None
        with attempts() as attempt:
            with attempt():
                if page is not None:
                    write_report(store, page)
            with attempt():
                show_run(store, run, probe=probe, loggers=self._loggers(), prefix=self._prefix, report=page, **seconds)
            with attempt():
                told = {"probe": probe, "page": page, "prefix": self._prefix, "attempt": attempt}
                log_stored_media(store, run, self._loggers(), **told)
