"""Rules on the values of a run as a sink: in the log, in the loggers, and a request to stop."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow.compute as pc

from repdyn.store.schema import Row
from repdyn.tracking.budget import Spent
from repdyn.tracking.options import TrackingOptions
from repdyn.tracking.sinks import RunInfo, StopRequest
from repdyn.utils.printing import warn
from repdyn.views.alerts import (
    ALERT_COLUMNS,
    RULES,
    AlertEvaluator,
    applies,
    resolve_rules,
    write_rules,
)
from repdyn.views.publish.loggers import target_of
from repdyn.views.tables.words import OWN_WINDOW, alert_lines, own_window_sentence

log = logging.getLogger(__name__)


class AlertSink:
    """Checks the rows of a run against rules, step by step."""

    what = "checking alerts"
    seconds = 20.0
    is_urgent = True

    def __init__(self, options: TrackingOptions) -> None:
        self._rules = resolve_rules(options.alerts)
        self.may_stop = any(rule.stop for rule in self._rules)
        self._evaluator = AlertEvaluator(self._rules)
        self._needs_history = False
        self._has_mentioned_windows = False

    def begin(self, run: RunInfo) -> None:
        """Store the rules with the rows, for later views, and mention those that nothing is
        measured for.
        """
        self._run = run
        self._needs_history = run.has_history
        for rule in self._rules:
            # losses come with the training, and need not be among what is measured
            is_of_scalar = any("/" in metric for metric in rule.metrics)
            is_measured = any(applies(rule, *metric) for metric in run.metrics)
            if rule not in RULES and not is_of_scalar and not is_measured:
                names = ", ".join(rule.metrics)
                warn(log, f"the rule {rule.name!r} raises no alert: {names} is not measured")
        if run.store is not None and run.id is not None:
            write_rules(self._rules, run.store.alerts_path(run.id))

    def rows(self, step: int, rows: Sequence[Row]) -> StopRequest | None:
        """Log what the rules find in rows of a step, and ask to stop where a rule does."""
        self._mention_windows(step, rows)
        if not self._rules or not rows:
            return None
        # a resumed run would take its first step for the first of all, which nothing comes before
        if self._needs_history:
            self._needs_history = False
            self._remember(step, rows[0].probe)
        alerts = self._evaluator.update(rows)
        if not alerts:
            return None
        label = f"{self._run.label}: " if self._run.label else ""
        lines = [f"{label}{line}" for line in alert_lines(alerts)]
        for line in lines:
            warn(log, f"alert at {line}")
        # through all loggers in turn: one that fails must not keep the others from hearing of it
        self._run.loggers.each(lambda logger: target_of(logger).log_alerts(lines, step), step)
        stops = sorted({alert.rule for alert in alerts if alert.stop})
        return StopRequest(step, ", ".join(stops)) if stops else None

    def end(self, spent: Spent, *, interrupted: bool) -> None:
        """Do nothing: each step is judged when it is measured."""

    def _remember(self, step: int, probe: str | None) -> None:
        """Read the steps before the first one, of the runs that this one goes on from."""
        store = self._run.store
        run_id = self._run.id
        if store is not None and run_id is not None and store.steps(run_id):
            stored = store.to_arrow(run_id, columns=ALERT_COLUMNS)
            # rows of another probe are of other vectors, and a step that is measured again is not
            # its own past
            is_earlier = (pc.field("probe") == probe) & (pc.field("step") < step)
            self._evaluator.update(stored.filter(is_earlier))

    def _mention_windows(self, step: int, rows: Sequence[Row]) -> None:
        """Mention once that many nearest neighbours are of a vector's own window of text."""
        if self._has_mentioned_windows:
            return
        counting = [
            row
            for row in rows
            if row.own_window_excluded is False and row.same_window_share is not None
        ]
        share = max((row.same_window_share for row in counting), default=0.0)
        if share > OWN_WINDOW:
            self._has_mentioned_windows = True
            sentence = own_window_sentence(counting[0].metric, share, share)
            warn(log, f"step {step}: {sentence}")
