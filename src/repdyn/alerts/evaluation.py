"""Evaluation of rules on the rows of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from repdyn.alerts.conditions import CONDITIONS
from repdyn.alerts.rules import RULES, Rule
from repdyn.alerts.series import COLUMNS, Course, Past, SeriesKey, StoredRow, courses, courses_of_rows

if TYPE_CHECKING:
    import pandas as pd

ALERT_COLUMNS = (*COLUMNS, "head", "run", "probe")
"""Columns of a store that rules are evaluated on."""


@dataclass(frozen=True, slots=True)
class Alert:
    """The event that a rule holds at one step, for one layer, a whole profile, or a scalar."""

    rule: str
    """Name of the rule."""
    step: int
    metric: str
    subset: str | None
    """None for a scalar of the run."""
    stack: str | None
    layer: int | None
    """None for a whole profile, and for a scalar."""
    value: float
    """NaN for a whole profile, and if undefined."""
    previous_value: float
    """The last defined value before; NaN for a whole profile, and if there was none."""
    previous_step: int | None
    """The step of the previous value; None if there was none."""
    event: str
    """Description of the change."""
    detail: str
    """The values, or the reason why there is none."""
    stop: bool
    """Whether the training should stop."""

    @property
    def message(self) -> str:
        """A line that describes the event, without the step."""
        return f"{self.subject}{'' if self.layer is None else f' of layer {self.layer}'} {self.event}: {self.detail}"

    @property
    def subject(self) -> str:
        """The metric, with its stack and token subset."""
        known = ", ".join(filter(None, [self.stack, self.subset]))
        return f"{self.metric} ({known})" if known else self.metric


class AlertEvaluator:
    """Stateful evaluation of rules on the steps of a run, one after the other."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._rules = tuple(rules)
        self._states: dict[SeriesKey, _SeriesState] = {}

    def update(self, frame: pd.DataFrame) -> list[Alert]:
        """Evaluate the rules on further rows and return the alerts at their steps.

        The last step may be given again with additional rows. If the training was rolled back to an earlier step, the
        history is discarded.

        Args:
            frame: rows as for :func:`find_alerts`.

        Returns:
            Alerts in the order of :func:`find_alerts`.
        """
        return self._evaluate(courses(frame))

    def update_with_rows(self, rows: Iterable[StoredRow]) -> list[Alert]:
        """Evaluate the rules on the rows of a step as :meth:`update` does, without a data frame of them."""
        return self._evaluate(courses_of_rows(rows))

    def _evaluate(self, observed: Iterable[tuple[SeriesKey, Course]]) -> list[Alert]:
        found = [
            (alert.step, rule_index, alert)
            for key, now in observed
            for past in [self._past(key, now)]
            for rule_index, rule in self._rules_for(key)
            for alert in _alerts(rule, key, now, past)
        ]
        return [alert for _, _, alert in sorted(found, key=lambda entry: entry[:2])]

    def _past(self, key: SeriesKey, now: Course) -> Past:
        """Return what was known before each step, and remember what is known after the last."""
        state, known = self._states.get(key), Past.empty(now.layers)
        if state is not None and state.step <= now.steps[0]:
            known = state.past if state.step == now.steps[0] else state.updated
        past, *ends = known.before(now)
        self._states[key] = _SeriesState(int(now.steps[-1]), *ends)
        return past

    def _rules_for(self, key: SeriesKey) -> list[tuple[int, Rule]]:
        return [(index, rule) for index, rule in enumerate(self._rules) if rule.applies_to(key.metric, key.subset)]


def _alerts(rule: Rule, key: SeriesKey, now: Course, past: Past) -> Iterator[Alert]:
    condition = CONDITIONS[rule.when]
    for place, layer in np.argwhere(condition.holds(now, past, rule.bound or 0.0)).tolist():
        yield _alert(key, rule, now, past, place, layer)


class _SeriesState(NamedTuple):
    """The last observed step of a series, with its past without and with this step."""

    step: int
    past: Past
    updated: Past


def find_alerts(frame: pd.DataFrame, rules: Sequence[Rule] = RULES) -> list[Alert]:
    """Return the alerts of a run, by step.

    Args:
        frame: rows of one run on one probe, including scalars; columns as the fields of
            :class:`repdyn.store.schema.Row`. Values of single attention heads are ignored.
        rules: the rules to evaluate.

    Returns:
        Alerts by step, then by rule, metric, subset and layer. Those of a step depend only on the rows up to it.
    """
    return AlertEvaluator(rules).update(frame)


def _alert(key: SeriesKey, rule: Rule, now: Course, past: Past, place: int, layer: int) -> Alert:
    condition = CONDITIONS[rule.when]
    if condition.whole_profile:
        layer = int(np.nanargmax(past.difference(now)[place]))
    value, previous_value = float(now.values[place, layer]), float(past.values[place, layer])
    previous_step = int(past.steps[place, layer]) if past.steps[place, layer] >= 0 else None
    detail = _detail(value, previous_value, previous_step, now.reasons[place, layer])
    event = condition.event.format(bound=rule.bound)
    return Alert(
        rule=rule.name,
        step=int(now.steps[place]),
        metric=key.metric,
        subset=key.subset,
        stack=key.stack,
        layer=None if condition.whole_profile else now.layers[layer],
        value=math.nan if condition.whole_profile else value,
        previous_value=math.nan if condition.whole_profile else previous_value,
        previous_step=previous_step,
        event=f"{event} any more" if rule.when == "undefined" and previous_step is not None else event,
        detail=f"most in layer {now.layers[layer]}, {detail}" if condition.whole_profile else detail,
        stop=rule.stop,
    )


def _detail(value: float, previous_value: float, previous_step: int | None, reason: str | None) -> str:
    if math.isnan(value):
        return reason or "NaN"
    if previous_step is None:
        return f"{value:.3g}"
    return f"{previous_value:.3g} at step {previous_step:,}, now {value:.3g}"
