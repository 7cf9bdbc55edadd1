"""Views of a run: a page and heatmaps that follow it, and figures, a summary and the final page when it ends.

What draws is imported when something is drawn: a broken installation of its packages then costs the views that need
them, rather than the job.
"""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from repdyn.report import PAGE
from repdyn.store import Store
from repdyn.tracking.delivery import Loggers
from repdyn.utils.attempts import TimeoutRunner, attempts
from repdyn.utils.notices import print_above_bars, warn

log = logging.getLogger(__name__)

DRAWING_SECONDS = 600.0
"""How long a job waits for all views at the end."""
UPLOAD_SECONDS, INTERRUPTED_UPLOAD_SECONDS = 60.0, 2.0
"""How long the end of a training waits for the uploads to a remote store, also after an error or Ctrl-C."""
PAGE_SECONDS = 20.0
"""How long a training waits for a page."""
REFRESH_SECONDS = 15.0
"""How often an open page reloads its file."""
MAX_TIME_SHARE = 0.02
"""The largest share of the time that may go into pages, and as much again into heatmaps."""
FIRST_HEATMAPS = 4
"""Measurements before the first heatmaps."""
HEATMAP_GROWTH = 1.25
"""By how much the number of measurements grows before heatmaps are logged again, so that a long run has few."""


class Views:
    """The views of a run, made from its store alone.

    Args:
        store: where its rows are.
        run_id: of the run.
        probe: hash of the probe.
        loggers: those that get the figures.
        live: whether there is a page.
        prefix: leads the names in the loggers.
        schedule: of the measurements, for the configuration of the run in the loggers.
    """

    def __init__(
        self, store: Store, run_id: str, probe: str, loggers: Loggers, *, live: bool, prefix: str, schedule: str
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._probe = probe
        self._loggers = loggers
        self._live = live
        self._prefix = prefix
        self._schedule = schedule
        self._page = TimeoutRunner(PAGE_SECONDS)
        self._page_time, self._heatmap_time = _TimeShare(), _TimeShare()
        self._heatmaps_in = 0
        """Measurements until the next heatmaps."""
        self._is_described = False

    def refresh(self) -> None:
        """Write the page again and log how far the run has come: once what it is, at growing intervals its heatmaps.

        Raises:
            Exception: what the first failing part raised, once all have been tried.
        """
        with attempts() as attempt:
            with attempt():
                self._write_page()
            if self._loggers.now():
                with attempt():
                    self._describe()
                with attempt():
                    self._log_heatmaps()

    def _write_page(self) -> None:
        """Write the store's page again, unless the last one is too recent for what it cost.

        It shows all runs of the store, so that several trackers of one store do not overwrite each other's.
        """
        if not self._live or not self._page_time.is_left():
            return
        from repdyn.report import write_report

        path = self._store.output / PAGE
        with self._page_time.spent():
            self._page(f"writing {path}", partial(write_report, self._store, path, refresh_seconds=REFRESH_SECONDS))

    def _describe(self) -> None:
        """Log once what is known of the run."""
        store = self._store
        if self._is_described or not store.steps(self._run_id):  # a store that cannot be written may have none
            return
        self._is_described = True
        from repdyn.publish.description import log_config, provenance
        from repdyn.tables.frames import metrics_of, subsets_of

        frame = store.to_pandas(self._run_id, categorical=True)
        rows = frame.loc[(frame["probe"] == self._probe) & frame["layer"].notna()]
        metrics = ", ".join(f"{metric}@{one}" for metric in metrics_of(rows) for one in subsets_of(rows, metric))
        known = provenance(store, rows) | {"schedule": self._schedule, "metrics": metrics}
        known.pop("tokens_seen", None)  # they grow
        self._loggers.each(lambda logger: log_config(known, [logger], self._prefix))

    def _log_heatmaps(self) -> None:
        self._heatmaps_in -= 1
        if self._heatmaps_in > 0 or not self._heatmap_time.is_left():
            return
        # by the steps in the store, so that a resumed run goes on where it was; listed rarely, since they are many
        n_steps = len(self._store.steps(self._run_id))
        if n_steps < FIRST_HEATMAPS:
            self._heatmaps_in = FIRST_HEATMAPS - n_steps
            return
        self._heatmaps_in = math.ceil(n_steps * HEATMAP_GROWTH) - n_steps
        from repdyn.publish.description import log_heatmaps

        options = {"probe": self._probe, "prefix": self._prefix}
        with self._heatmap_time.spent():
            self._loggers.each(lambda logger: log_heatmaps(self._store, self._run_id, [logger], **options))

    def finish(self, **seconds: float) -> None:
        """Write figures beside the store and to the loggers, the final page, and a summary to the terminal.

        Args:
            seconds: those that :func:`repdyn.publish.results.show_run` takes.

        Raises:
            Exception: what the first failing part raised, once all have been tried.
        """
        name = self._store.run_name(self._run_id)
        print_above_bars(f"repdyn: drawing figures{' and the report' if self._live else ''} of {name}")
        try:
            TimeoutRunner(DRAWING_SECONDS)(f"drawing {name}", partial(self._finish, name, seconds))
        finally:
            self._wait_for_uploads(UPLOAD_SECONDS)

    def name_commands(self) -> None:
        """Log the commands that make the views from the store."""
        self._wait_for_uploads(INTERRUPTED_UPLOAD_SECONDS)
        store = shlex.quote(self._store.location)
        warn(
            log,
            f"training interrupted; make figures and report with: repdyn figures {store}; repdyn report {store}",
        )

    def _wait_for_uploads(self, seconds: float) -> None:
        if problem := self._store.drain(seconds):
            warn(log, problem)

    def _finish(self, name: str, seconds: dict[str, float]) -> None:
        store, loggers = self._store, self._loggers.now()
        page = store.output / PAGE if self._live else None
        with attempts() as attempt:
            with attempt():
                if page is not None:
                    from repdyn.report import write_report

                    write_report(store, page)
            with attempt():
                from repdyn.publish.results import show_run

                show_run(store, name, probe=self._probe, loggers=loggers, prefix=self._prefix, report=page, **seconds)
            with attempt():
                from repdyn.publish.media import log_stored_media

                options = {"probe": self._probe, "page": page, "prefix": self._prefix, "attempt": attempt}
                log_stored_media(store, name, loggers, **options)
            with attempt():
                from repdyn.publish.description import log_status

                log_status(store, name, loggers, probe=self._probe, prefix=self._prefix)


class _TimeShare:
    """A small share of the time, for work that is done again and again."""

    def __init__(self) -> None:
        self._not_before = 0.0

    def is_left(self) -> bool:
        """Return whether enough time has passed since the last work for what it took."""
        return time.perf_counter() >= self._not_before

    @contextmanager
    def spent(self) -> Iterator[None]:
        """Measure the time that the work takes, also if it fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self._not_before = end + (end - start) / MAX_TIME_SHARE
