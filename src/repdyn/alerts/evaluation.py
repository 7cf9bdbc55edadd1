"""Evaluation of rules on the rows of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from repdyn.alerts.conditions import CONDITIONS
from repdyn.alerts.rules import RULES, Rule
from repdyn.alerts.series import Observation, PastObservations, SeriesKey, observations


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing that happened to one layer, or to a whole profile, at one step."""

    rule: str
    """The name of the rule."""
    step: int
    metric: str
    subset: str | None
    """None for a scalar of the run."""
    stack: str | None
    layer: int | None
    """None for a whole profile, and for a scalar."""
    value: float
    """NaN for a whole profile, and where there is none."""
    before: float
    """The last value before; NaN where there was none."""
    since: int | None
    """The step of that one."""
    words: str
    """What happened."""
    detail: str
    """The numbers, or the reason why there is none."""
    stop: bool
    """Whether the training is to stop."""

    @property
    def message(self) -> str:
        """A line that says what happened and where, without the step."""
        return f"{self.subject}{'' if self.layer is None else f' of layer {self.layer}'} {self.words}: {self.detail}"

    @property
    def subject(self) -> str:
        """The metric, stack and token subset it happened to."""
        known = ", ".join(filter(None, [self.stack, self.subset]))
        return f"{self.metric} ({known})" if known else self.metric


class Watcher:
    """Evaluates rules on the steps of a run, one after the other; keeps of the past what the rules need."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._rules = tuple(rules)
        self._seen: dict[SeriesKey, _Seen] = {}

    def see(self, frame: pd.DataFrame) -> list[Alert]:
        """Return the alerts at the steps of these rows.

        The last step may be given again with more rows. If a training has gone back to an earlier step, nothing is
        known of what came before.

        Args:
            frame: as for :func:`alerts_of`.

        Returns:
            As :func:`alerts_of`.
        """
        found = [
            (alert.step, place, alert)
            for key, moments in observations(frame)
            for now in moments
            for place, alert in self._alerts(key, now, self._past(key, now))
        ]
        return [alert for _, _, alert in sorted(found, key=lambda one: one[:2])]

    def _past(self, key: SeriesKey, now: Observation) -> PastObservations:
        last, past = self._seen.get(key), PastObservations(now.layers)
        if last is not None and last.step <= now.step:
            past = last.before if last.step == now.step else last.after
        self._seen[key] = _Seen(now.step, past, past.after(now))
        return past.of(now.layers)

    def _alerts(self, key: SeriesKey, now: Observation, past: PastObservations) -> Iterator[tuple[int, Alert]]:
        for place, rule in enumerate(self._rules):
            if rule.concerns(key.metric, key.subset):
                condition = CONDITIONS[rule.when]
                holds = condition.holds(now, past, rule.bound or 0.0)
                at = [_most_changed(now, past)] if condition.whole and holds[0] else []
                for layer in at if condition.whole else np.flatnonzero(holds).tolist():
                    yield place, _alert(key, rule, now, past, layer)


class _Seen(NamedTuple):
    step: int
    before: PastObservations
    after: PastObservations


def alerts_of(frame: pd.DataFrame, rules: Sequence[Rule] = RULES) -> list[Alert]:
    """Return the alerts of a run, by step.

    Args:
        frame: rows of one run on one probe, scalars among them; columns as the fields of
            :class:`repdyn.store.schema.Row`. Values of single attention heads are ignored.
        rules: those of the run.

    Returns:
        Alerts by step, then by rule, metric, subset and layer. Those of a step depend on the rows up to it alone.
    """
    return Watcher(rules).see(frame)


def _alert(key: SeriesKey, rule: Rule, now: Observation, past: PastObservations, at: int) -> Alert:
    condition = CONDITIONS[rule.when]
    value, before = float(now.values[at]), float(past.values[at])
    since = int(past.steps[at]) if past.steps[at] >= 0 else None
    detail = _detail(value, before, since, now.reasons[at])
    words = condition.words.format(bound=rule.bound)
    return Alert(
        rule=rule.name,
        step=now.step,
        metric=key.metric,
        subset=key.subset,
        stack=key.stack,
        layer=None if condition.whole else now.layers[at],
        value=math.nan if condition.whole else value,
        before=math.nan if condition.whole else before,
        since=since,
        words=f"{words} any more" if rule.when == "undefined" and since is not None else words,
        detail=f"most in layer {now.layers[at]}, {detail}" if condition.whole else detail,
        stop=rule.stop,
    )


def _most_changed(now: Observation, past: PastObservations) -> int:
    return int(np.nanargmax(past.difference(now)))


def _detail(value: float, before: float, since: int | None, reason: str | None) -> str:
    if math.isnan(value):
        return reason or "NaN"
    return f"{value:.3g}" if since is None else f"{before:.3g} at step {since:,}, now {value:.3g}"
