"""The loggers of a training as a sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from repdyn.metrics.logged import logged_values
from repdyn.store.schema import Row
from repdyn.tracking.budget import Spent
from repdyn.tracking.options import TrackingOptions
from repdyn.tracking.sinks import RunInfo
from repdyn.views.publish.loggers import target_of


class LoggerSink:
    """Logs the values of each step at once, when nothing more comes of it."""

    what = "logging"
    seconds = 20.0  # for all loggers, each of which has less
    may_stop = False

    def __init__(self, options: TrackingOptions) -> None:
        self._log_layers = options.log_layers
        self._unsent: dict[int, dict[str, float]] = {}

    @staticmethod
    def check_logger(logger: Any) -> None:
        """Raise TypeError for what is no logger."""
        target_of(logger)

    def begin(self, run: RunInfo) -> None:
        """Note the loggers of a run."""
        self._run = run

    def rows(self, step: int, rows: Sequence[Row]) -> None:
        """Keep the values of rows, so that they are logged with those that follow."""
        values = logged_values(rows, self._log_layers)
        if values:
            prefix = self._run.prefix
            unsent = self._unsent.setdefault(step, {})
            unsent.update({f"{prefix}{name}": value for name, value in values.items()})

    def step_over(self, step: int) -> None:
        """Log what is kept."""
        # also of steps whose rows the store took later, after their end
        unsent = self._unsent
        self._unsent = {}
        for kept_step, values in unsent.items():
            job = partial(_log_values, values=values, step=kept_step)
            self._run.loggers.each(job, kept_step)

    def end(self, spent: Spent, *, interrupted: bool) -> None:
        """Do nothing: each step is logged when it is over."""


def _log_values(logger: Any, values: Mapping[str, float], step: int) -> None:
    target_of(logger).log_values(values, step)
