"""The pictures of a training as a sink: a page and heatmaps that follow it, figures and a summary
at its end.

What draws is imported when something is drawn: a broken installation of its packages then costs
these views, rather than the job.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from repdyn.measurement.rows import provenance_of_process
from repdyn.store import Store
from repdyn.store.schema import Row
from repdyn.tracking.budget import Spent
from repdyn.tracking.options import TrackingOptions
from repdyn.tracking.sinks import RunInfo
from repdyn.utils.attempts import attempts
from repdyn.utils.extras import require
from repdyn.utils.printing import print_above_bars, warn
from repdyn.views.publish.loggers import named_config, target_of
from repdyn.views.report import PAGE

log = logging.getLogger(__name__)

REFRESH_SECONDS = 15.0  # after which an open page reloads its file
# of the time may go into pages, and as much into charts for loggers
MAX_TIME_SHARE = 0.01
# measurements before the first heatmaps; twice as many before the next, so that a long run has few
FIRST_HEATMAPS = 4


class _StoredRun(NamedTuple):
    """A run with the store that has its rows."""

    info: RunInfo
    store: Store
    id: str


class _Pace:
    """Spaces out drawing, so that it takes at most :data:`MAX_TIME_SHARE` of the time."""

    def __init__(self) -> None:
        self._free_at = 0.0  # by time.perf_counter

    @property
    def allows_more(self) -> bool:
        """Return whether the share of time allows another drawing now."""
        return time.perf_counter() >= self._free_at

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what is drawn inside, even if it fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            # a drawing that took a second is followed by a hundred without one
            self._free_at = end + (end - start) / MAX_TIME_SHARE


class ReportSink:
    """Draws a run of the trained weights on one probe, whose page shows that of averaged ones too.

    Only a live one has a page during the training.
    """

    what = "drawing"
    seconds = 20.0  # for a page
    may_stop = False
    is_replaceable = True

    def __init__(self, options: TrackingOptions) -> None:
        self._is_live = options.report
        self._run: _StoredRun | None = None
        self._last_step: int | None = None
        self._log_layers = options.log_layers
        self._pages = _Pace()
        self._charts = _Pace()
        self._n_measured = 0
        self._heatmaps_at = FIRST_HEATMAPS
        """How many measurements there are before the next heatmaps."""
        self._is_described = False

    def begin(self, run: RunInfo) -> None:
        """Note the run; MissingPackageError where nothing of it can be drawn."""
        if run.store is not None and run.id is not None and run.weights_kind == "raw":
            require("views", "a picture of the run", "matplotlib", "pandas", "rich")
            self._run = _StoredRun(info=run, store=run.store, id=run.id)

    def rows(self, step: int, rows: Sequence[Row]) -> None:
        """Write the page again and log how far the run has come: once what it is, from the second
        measurement on its charts, at growing intervals its heatmaps.
        """
        run = self._run
        if run is None or step == self._last_step:  # a loss is in the next page
            return
        self._last_step = step
        self._n_measured += 1
        with attempts() as attempt:
            if self._is_live and self._pages.allows_more:
                with attempt():
                    self._write_page(run)
            # charts are drawn for loggers; without any there is the page alone
            if not list(run.info.loggers.current()):
                return
            if not self._is_described:
                with attempt():
                    self._describe(run, step)
            has_course = self._n_measured > 1 or run.info.has_history
            if self._is_described and has_course and self._charts.allows_more:
                with attempt(), self._charts.timed():
                    self._log_charts(run, step)
            # all heatmaps of a run together are drawn as often as its measurements double
            if self._is_described and self._n_measured >= self._heatmaps_at:
                self._heatmaps_at = 2 * self._n_measured
                with attempt():
                    self._log_heatmaps(run, step)

    def end(self, spent: Spent, *, interrupted: bool) -> None:
        """Draw everything, or name the commands that do where there is no time for it."""
        run = self._run
        if run is None or not run.store.steps(run.id):
            return
        # who presses Ctrl-C wants an end, and a cluster that needs the machine gives seconds
        if interrupted:
            store = shlex.quote(run.store.location)
            warn(
                log,
                f"interrupted before the last figures; the rows are stored, and a training that is "
                f"resumed from a checkpoint goes on with them; make figures and report with: "
                f"repdyn figures {store}; repdyn report {store}",
            )
        else:
            self.draw_all(run, spent)

    def draw_all(self, run: _StoredRun, spent: Spent) -> None:
        """Write figures beside the store and to the loggers, the final page, and a summary."""
        path = run.store.path_of(run.id)
        name = run.id if path is None else path.name
        what = "figures and the report" if self._is_live else "figures"
        print_above_bars(f"repdyn: drawing {what} of {name}")
        from repdyn.views.publish.results import show_run

        show_run(
            run.store,
            name,
            probe=run.info.probe,
            loggers=list(run.info.loggers.current()),
            prefix=run.info.prefix,
            report=run.store.output / PAGE if self._is_live else None,
            spent=spent.as_dict,
            log_layers=self._log_layers,
        )

    def _write_page(self, run: _StoredRun) -> None:
        """Write the page of all runs of the store, so that several trackers of it do not overwrite
        each other's.
        """
        from repdyn.views.report import write_report

        with self._pages.timed():
            write_report(run.store, run.store.output / PAGE, refresh_seconds=REFRESH_SECONDS)

    def _describe(self, run: _StoredRun, step: int) -> None:
        """Log once what is known of the run."""
        if not run.store.steps(run.id):  # a store that cannot be written may have none
            return
        self._is_described = True
        from repdyn.views.publish.results import provenance

        frame = run.store.to_pandas(run.id, categorical=True)
        is_of_probe = frame["probe"] == run.info.probe
        facts = provenance(run.store, frame.loc[is_of_probe])
        facts.pop("tokens_seen", None)  # they grow
        facts |= provenance_of_process()
        metrics = ", ".join(f"{metric}@{subset}" for metric, subset in run.info.metrics)
        about = {"schedule": run.info.schedule, "metrics": metrics, **facts}
        config = {**run.info.configuration, **named_config(about, run.info.prefix)}
        run.info.loggers.each(lambda logger: target_of(logger).log_config(config), step)

    def _log_charts(self, run: _StoredRun, step: int) -> None:
        from repdyn.views.publish.results import log_live_charts

        def log_to(logger: Any) -> None:
            log_live_charts(
                run.store,
                run.id,
                target_of(logger),
                probe=run.info.probe,
                prefix=run.info.prefix,
                log_layers=self._log_layers,
            )

        run.info.loggers.each(log_to, step)

    def _log_heatmaps(self, run: _StoredRun, step: int) -> None:
        from repdyn.views.publish.results import log_heatmaps

        def log_to(logger: Any) -> None:
            log_heatmaps(
                run.store, run.id, target_of(logger), probe=run.info.probe, prefix=run.info.prefix
            )

        run.info.loggers.each(log_to, step)
