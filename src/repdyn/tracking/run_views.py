"""Views of a run: a page that follows it, and figures, a summary and the final page when it ends."""

from __future__ import annotations

import logging
import shlex
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

log = logging.getLogger(__name__)

_COMMANDS = "training interrupted; make figures and report with: repdyn figures {store}; repdyn report {store}"

DRAWING_SECONDS = 600.0
"""How long a job waits for all views at the end."""
PAGE_SECONDS = 60.0
"""How long a training waits for a page."""
REFRESH_SECONDS = 15.0
"""How often an open page reloads its file."""
MAX_TIME_SHARE = 0.02
"""The largest share of the time that may go into pages."""


class RunViews:
    """The views of a run, made from its store alone.

    Args:
        store: None makes no views.
        loggers: returns those that get the figures.
        live: whether there is a page.
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
        """Write the store's page again, unless the last one is too recent for what it cost.

        It shows all runs of the store, so that several trackers of one store do not overwrite each other's.

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
            self._not_before = end + (end - start) / MAX_TIME_SHARE

    def finish(self, run: str, probe: str, **seconds: float) -> None:
        """Write figures beside the store and to the loggers, the final page, and a summary to the terminal.

        Args:
            seconds: those that :func:`repdyn.publish.results.show_run` takes.

        Raises:
            Exception: what the first failing part raised, once all have been tried.
        """
        if self._store is None:
            return
        TimeoutRunner(DRAWING_SECONDS)(f"drawing {run}", partial(self._finish, self._store, run, probe, seconds))

    def name_commands(self) -> None:
        """Log the commands that make the views from the store."""
        if self._store is not None:
            log.warning(_COMMANDS.format(store=shlex.quote(str(self._store.path))))

    def _finish(self, store: Store, run: str, probe: str, seconds: dict[str, float]) -> None:
        page = store.path / PAGE if self._live else None
        with attempts() as attempt:
            with attempt():
                if page is not None:
                    write_report(store, page)
            with attempt():
                show_run(store, run, probe=probe, loggers=self._loggers(), prefix=self._prefix, report=page, **seconds)
            with attempt():
                options = {"probe": probe, "page": page, "prefix": self._prefix, "attempt": attempt}
                log_stored_media(store, run, self._loggers(), **options)
