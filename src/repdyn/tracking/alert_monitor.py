"""Alerts while a model trains: in the log, in the loggers, and a stop where a rule asks for one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import pandas as pd
from lightning.pytorch.loggers import Logger

from repdyn.alerts import Rule, Watcher, kept_rules, write_rules
from repdyn.publish.loggers import log_alerts
from repdyn.store import Store
from repdyn.store.schema import Row, to_pandas, to_table
from repdyn.tables.alert_text import told

log = logging.getLogger(__name__)


class AlertMonitor:
    """Holds the rows of a run against rules, each time there are more of them.

    Args:
        rules: none watch nothing.
        loggers: gives those that are to hear of an alert.
        prefix: of the tracker's names, to tell several apart.
    """

    def __init__(self, rules: Sequence[Rule], loggers: Callable[[], Iterable[Logger]], prefix: str = "") -> None:
        self._rules = tuple(rules)
        self._watcher = Watcher(self._rules)
        self._loggers = loggers
        self._whose = f"{prefix.rstrip('_')}: " if prefix else ""
        self._stored: pd.DataFrame | None = None
        self._told: set[str] = set()
        self._untold: list[str] = []

    def begin(self, store: Store, run: str, probe: str, *, resumed: bool) -> None:
        """Keep the rules beside the rows, for whoever looks at them later; a run that goes on has a history.

        Raises:
            OSError, ValueError: the store cannot be written, or its rows cannot be read.
        """
        path = store.alerts_path(run)
        if not (path.exists() and kept_rules(path) == self._rules):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_rules(self._rules, path)
        if self._rules and resumed and store.steps(run):
            rows = store.to_pandas(run)
            self._stored = rows.loc[rows["probe"] == probe]

    def see(self, rows: Sequence[Row]) -> bool:
        """Log what the rules find at the step that these rows are of, and have not found there before.

        Args:
            rows: everything that is known of the step; more may be known later.

        Returns:
            Whether the training is to stop.
        """
        if not self._rules or not rows:
            return False
        step = rows[0].step
        if self._stored is not None:
            # what the store has from there on is of a branch that the training has gone back from
            self._watcher.see(self._stored.loc[self._stored["step"] < step])
            self._stored = None
        found = self._watcher.see(to_pandas(to_table(rows)))
        lines = [f"{self._whose}{line}" for line in told(found)]
        self._untold = [line for line in lines if line not in self._told]
        self._told = set(lines)
        for line in self._untold:
            log.warning("alert at %s", line)
        stopping = sorted({alert.rule for alert in found if alert.stop})
        if stopping and self._untold:
            log.warning("the training is to stop at step %d, as asked for by: %s", step, ", ".join(stopping))
        return bool(stopping)

    def tell(self, step: int) -> None:
        """Tell the loggers what was found at a step.

        Raises:
            Exception: what the first failing logger raised, once all have been served.
        """
        lines, self._untold = self._untold, []
        log_alerts(lines, self._loggers(), step)
