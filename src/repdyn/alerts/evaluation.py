"""Evaluation of rules on the rows of a run: series of values, what was known before each step, and the alerts.

A condition depends on the current and earlier observations only, and holds at the step of a change, not for as long as
the new state lasts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from repdyn.alerts.rules import CONDITIONS, RULES, Rule
from repdyn.metrics.metric import base_name

if TYPE_CHECKING:
    import pandas as pd

    from repdyn.store.schema import Row

ALERT_COLUMNS = (
    *("metric", "subset", "stack", "layer", "step", "value", "std", "reason", "compared_to"),
    *("head", "run", "probe"),
)
"""Columns of a store that rules are evaluated on."""
HISTORY = 8
"""Largest number of earlier changes with which a change of a profile is compared."""
MIN_STDS = 2.0
"""Distance beyond which two values differ, in standard deviations of their difference."""
MIN_JUMP = 0.2
"""Smallest jump of a profile, as mean relative change over layers."""
MIN_HISTORY = 4
"""Least number of earlier changes with which a change of a profile is compared."""
UNUSUAL = 2.0
"""How many times the largest of its last changes a scalar must change, on a logarithmic scale, to be said to fall or
rise."""
_REMEMBERED = 1000
"""Measurements that a live evaluation remembers."""
_KEY = ["metric", "subset", "stack"]


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
        self._courses: dict[SeriesKey, Course] = {}

    def update(self, frame: pd.DataFrame) -> list[Alert]:
        """Evaluate the rules on further rows and return the alerts at their steps.

        What is known from their first step on is discarded: the last step may be given again with additional rows.

        Args:
            frame: rows as for :func:`find_alerts`.

        Returns:
            Alerts in the order of :func:`find_alerts`.
        """
        found: list[tuple[int, int, Alert]] = []
        for key, new in courses(frame):
            course = self._courses[key] = new.after(self._courses.get(key))
            first = len(course.steps) - len(new.steps)
            for index, rule in enumerate(self._rules):
                if applies(rule, key):
                    holds = _HOLDS[rule.when](course, rule.bound or 0.0)[first:]
                    for place, layer in np.argwhere(holds).tolist():
                        alert = _alert(key, rule, course, first + place, layer)
                        found.append((alert.step, index, alert))
        return [alert for _, _, alert in sorted(found, key=lambda entry: entry[:2])]

    def update_with_rows(self, rows: Iterable[Row]) -> list[Alert]:
        """Evaluate the rules on the rows of a step as :meth:`update` does."""
        import pandas as pd  # which no import of a tracker waits for

        return self.update(pd.DataFrame([{name: getattr(row, name) for name in ALERT_COLUMNS} for row in rows]))


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


def _alert(key: SeriesKey, rule: Rule, course: Course, place: int, layer: int) -> Alert:
    condition = CONDITIONS[rule.when]
    if condition.whole_profile:
        layer = int(np.nanargmax(course.difference[place]))
    before = int(course.before[place, layer])
    previous_step = int(course.steps[before]) if before >= 0 else None
    value, previous_value = float(course.values[place, layer]), float(course.previous[place, layer])
    event = condition.event.format(bound=rule.bound)
    if math.isnan(value):
        detail = course.reasons[place, layer] or "NaN"
    elif previous_step is None:
        detail = f"{value:.3g}"
    else:
        detail = f"{previous_value:.3g} at step {previous_step:,}, now {value:.3g}"
    return Alert(
        rule=rule.name,
        step=int(course.steps[place]),
        metric=key.metric,
        subset=key.subset,
        stack=key.stack,
        layer=None if condition.whole_profile else course.layers[layer],
        value=math.nan if condition.whole_profile else value,
        previous_value=math.nan if condition.whole_profile else previous_value,
        previous_step=previous_step,
        event=f"{event} any more" if rule.when == "undefined" and previous_step is not None else event,
        detail=f"most in layer {course.layers[layer]}, {detail}" if condition.whole_profile else detail,
        stop=rule.stop,
    )


class SeriesKey(NamedTuple):
    """The identity of a series within a run."""

    metric: str
    subset: str | None
    stack: str | None


def applies(rule: Rule, key: SeriesKey) -> bool:
    """Return whether a rule applies to a metric and subset; a rule on subsets applies to no scalar."""
    if rule.subsets and key.subset not in rule.subsets:
        return False
    # brackets of settings, as in "two_nn[discard=*]", are literal
    patterns = (each.replace("[", "[[]") if base_name(each) != each else each for each in rule.metrics)
    return any(fnmatchcase(key.metric, pattern) for pattern in patterns)


@dataclass(eq=False)
class Course:
    """The values of a metric for one subset and one stack; or those of a scalar of the run, with the layer None."""

    layers: tuple[int | None, ...]
    """(n_layers,) ascending; (None,) for a scalar."""
    steps: np.ndarray
    """(n_steps,) ascending."""
    values: np.ndarray
    """(n_steps, n_layers) NaN if undefined, not comparable or not measured."""
    stds: np.ndarray
    """(n_steps, n_layers) standard deviation over batches; NaN if unknown."""
    reasons: np.ndarray
    """(n_steps, n_layers) why a value is NaN; None if there is no reason."""
    compares: np.ndarray
    """(n_steps,) whether any value compares the checkpoint with an earlier one."""
    before: np.ndarray = field(init=False)
    """(n_steps, n_layers) place of the last defined value before each step; -1 if there was none."""
    previous: np.ndarray = field(init=False)
    """(n_steps, n_layers) that value; NaN if there was none."""
    difference: np.ndarray = field(init=False)
    """(n_steps, n_layers) |value - previous|; NaN if one of them is missing."""
    exceeds_noise: np.ndarray = field(init=False)
    """(n_steps, n_layers) whether a value differs from the previous one by more than both vary over batches."""
    changes: np.ndarray = field(init=False)
    """(n_steps,) the mean over layers of |value - previous| / max(|value|, |previous|), in [0, 2]; NaN if no layer has
    both. Changes that do not exceed their noise count as 0."""
    last_changes: list[list[float]] = field(init=False)
    """The nonzero changes before each step, at most :data:`HISTORY`."""

    def __post_init__(self) -> None:
        n_steps, n_layers = self.values.shape
        places = np.where(np.isnan(self.values), -1, np.arange(n_steps)[:, None])
        self.before = np.vstack([np.full((1, n_layers), -1), np.maximum.accumulate(places, axis=0)[:-1]])
        self.previous, stds_before = (
            np.where(self.before < 0, np.nan, np.take_along_axis(of_step, self.before.clip(0), axis=0))
            for of_step in (self.values, self.stds)
        )
        with np.errstate(invalid="ignore"):  # inf - inf, 0 / 0
            self.difference = np.abs(self.values - self.previous)
            self.exceeds_noise = self.difference > MIN_STDS * np.nan_to_num(np.hypot(self.stds, stds_before))
            known = np.isfinite(self.difference)
            larger = np.fmax(np.abs(self.values), np.abs(self.previous))
            relative = np.zeros_like(larger)
            np.divide(self.difference, larger, out=relative, where=known & self.exceeds_noise)
            self.changes = relative.sum(axis=1) / known.sum(axis=1)
        recent = deque[float](maxlen=HISTORY)
        self.last_changes = []
        for change in self.changes.tolist():
            self.last_changes.append(list(recent))
            if change > 0:
                recent.append(change)

    def after(self, earlier: Course | None) -> Course:
        """Return the course with the last steps of an earlier one before its own, unless that is of other layers."""
        if earlier is None or earlier.layers != self.layers:
            return self
        kept = np.flatnonzero(earlier.steps < self.steps[0])[-_REMEMBERED:]
        parts = {name: np.concatenate([getattr(earlier, name)[kept], getattr(self, name)]) for name in _BY_STEP}
        return replace(self, **parts)


_BY_STEP = ("steps", "values", "stds", "reasons", "compares")


def courses(frame: pd.DataFrame) -> Iterator[tuple[SeriesKey, Course]]:
    """Yield the values of each metric and scalar of a run, by step; values of single heads are ignored.

    Args:
        frame: rows of one run on one probe; columns as the fields of :class:`repdyn.store.schema.Row`.
    """
    failed = frame["layer"].isna() & frame["reason"].notna()
    # the other columns are many, and copied by each selection of rows
    rows = frame.loc[frame["head"].isna() & ~failed, list(ALERT_COLUMNS[:-3])]
    # numbered in the order of their first rows; frames of the groups would copy all columns again
    number = rows.groupby(_KEY, sort=False, dropna=False, observed=True).ngroup().to_numpy()
    order = np.argsort(number, kind="stable")
    step, layer = rows["step"].to_numpy(int), rows["layer"].fillna(-1).to_numpy(int)
    value, std = rows["value"].to_numpy(float), rows["std"].to_numpy(float)
    reason, has_reason = rows["reason"].astype(object).to_numpy(object), rows["reason"].notna().to_numpy(bool)
    compares = rows["compared_to"].notna().to_numpy(bool)
    for members in np.split(order, np.flatnonzero(np.diff(number[order])) + 1) if len(rows) else ():
        metric, subset, stack = (rows[name].iat[members[0]] for name in _KEY)
        layers, column = np.unique(layer[members], return_inverse=True)
        steps, line = np.unique(step[members], return_inverse=True)
        values, stds = (np.full((len(steps), len(layers)), np.nan) for _ in range(2))
        values[line, column], stds[line, column] = value[members], std[members]
        reasons, explained = np.full(values.shape, None, object), has_reason[members]
        reasons[line[explained], column[explained]] = reason[members[explained]]
        comparing = np.zeros(len(steps), bool)
        comparing[line[compares[members]]] = True
        numbers = tuple(None if number < 0 else int(number) for number in layers)
        subset, stack = (name if isinstance(name, str) else None for name in (subset, stack))
        yield SeriesKey(str(metric), subset, stack), Course(numbers, steps, values, stds, reasons, comparing)


def _undefined(now: Course, _: float) -> np.ndarray:
    """Return which values are missing although the previous observation had them, or at first because of NaN or inf.

    Metrics that compare checkpoints are ignored: they have no value if the earlier checkpoint is not available.
    """
    missing = np.isnan(now.values)
    found = missing & ~np.vstack([missing[:1], missing[:-1]])
    unexplained = "the loss is NaN" if now.layers == (None,) else ""
    found[0] = missing[0] & [not {"NaN", "inf"}.isdisjoint((why or unexplained).split()) for why in now.reasons[0]]
    found[np.logical_or.accumulate(now.compares)] = False
    return found


def _moves(now: Course, bound: float) -> np.ndarray:
    """Return which values fell to a bound below 1 of what they were, or rose to one above, beyond their noise.

    The loss of a batch fluctuates, so a scalar must change more than usual, too: else a sound training with small
    batches has an alert every few steps.
    """
    reached = now.values <= bound * now.previous if bound < 1 else now.values >= bound * now.previous
    found = reached & (now.previous > 0) & now.exceeds_noise
    if now.layers != (None,) or not found.any():
        return found
    # a relative change c = 1 - 1 / ratio is that of a ratio whose logarithm is -log(1 - c)
    # the first change has nothing to be compared with
    largest = [max(before, default=math.inf) for before in now.last_changes]
    with np.errstate(divide="ignore", invalid="ignore"):
        usual = -np.log1p(-np.minimum(largest, 1.0))
        change = np.abs(np.log(now.values / now.previous))
    return found & ((change > UNUSUAL * usual[:, None]) | ~np.isfinite(change))


def _jumps(now: Course, bound: float) -> np.ndarray:
    """Return whether the profile changes by more than ``bound`` times the median of its last changes.

    Steps without a change are ignored: the first ones, at a low learning rate, are not representative.
    """
    medians = [float(np.median(before)) if len(before) >= MIN_HISTORY else math.inf for before in now.last_changes]
    return (now.changes > np.maximum(MIN_JUMP, bound * np.array(medians)))[:, None]


_HOLDS: Mapping[str, Callable[[Course, float], np.ndarray]] = {
    "undefined": _undefined,
    "falls": _moves,
    "rises": _moves,
    "above": lambda now, bound: (now.values > bound) & ~(now.previous > bound),
    "below": lambda now, bound: (now.values < bound) & ~(now.previous < bound),
    "jumps": _jumps,
}
"""Map values and bound to bools of shape (n_steps, n_layers), or (n_steps, 1) for a whole profile."""
