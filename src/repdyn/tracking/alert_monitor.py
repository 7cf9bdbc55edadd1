"""Alerts while a model trains: in the log, in the loggers, and a request to stop where a rule says so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from repdyn.alerts import AlertEvaluator, Rule, stored_rules, write_rules
from repdyn.alerts.evaluation import ALERT_COLUMNS
from repdyn.publish.loggers import log_alerts
from repdyn.store import Store
from repdyn.store.schema import Row, to_table

if TYPE_CHECKING:
    import pandas as pd
    from lightning.pytorch.loggers import Logger

log = logging.getLogger(__name__)


class AlertMonitor:
    """A monitor that checks the rows of a run against rules, step by step.

    Args:
        rules: without any, nothing is checked.
        loggers: returns those that get the alerts.
        prefix: of the tracker's names, to distinguish several.
    """

    def __init__(self, rules: Sequence[Rule], loggers: Callable[[], Iterable[Logger]], prefix: str = "") -> None:
        self._rules = tuple(rules)
        self._evaluator = AlertEvaluator(self._rules)
        self._loggers = loggers
        self._origin = f"{prefix.rstrip('_')}: " if prefix else ""
        self._read_history: Callable[[], pd.DataFrame] | None = None
        self._logged: set[str] = set()
        self._unpublished: list[str] = []

    def begin(self, store: Store, run: str, probe: str, *, resumed: bool) -> None:
        """Store the rules with the rows, for later views; the history of a resumed run is read at the first check.

        Raises:
            OSError, ValueError: the store or the rules in it cannot be written or read.
        """
        path = store.alerts_path(run)
        if not (path.exists() and stored_rules(path) == self._rules):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_rules(self._rules, path)
        if resumed:
            self._read_history = partial(_history, store, run, probe)

    def check(self, rows: Sequence[Row]) -> bool:
        """Log what the rules find at the step of these rows and have not found there before.

        Args:
            rows: all rows of the step so far; the loss may follow later.

        Returns:
            Whether a rule requests to stop the training.
        """
        if not self._rules or not rows:
            return False

        from repdyn.tables.lines import alert_lines

        step = rows[0].step
        if self._read_history is not None:
            stored, self._read_history = self._read_history(), None
            self._evaluator.update(stored.loc[stored["step"] < step])
        found = self._evaluator.update_with_rows(rows)
        lines = [f"{self._origin}{line}" for line in alert_lines(found)]
        self._unpublished = [line for line in lines if line not in self._logged]
        self._logged = set(lines)
        for line in self._unpublished:
            log.warning("alert at %s", line)
        stops = sorted({alert.rule for alert in found if alert.stop})
        if stops and self._unpublished:
            log.warning("the training is to stop at step %d, as requested by: %s", step, ", ".join(stops))
        return bool(stops)

    def publish(self, step: int) -> None:
        """Send new alerts of a step to the loggers.

        Raises:
            Exception: what the first failing logger raised, once all have been tried.
        """
        lines, self._unpublished = self._unpublished, []
        log_alerts(lines, self._loggers(), step)


def _history(store: Store, run: str, probe: str) -> pd.DataFrame:
    from repdyn.store.frame import to_pandas

    rows = store.to_pandas(run, columns=ALERT_COLUMNS) if store.steps(run) else to_pandas(to_table([]))
    return rows.loc[rows["probe"] == probe]
