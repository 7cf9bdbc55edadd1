"""Evaluation of rules on the rows of a run: series of values, what was known before each step, and the alerts.

A condition depends on the current and earlier observations only, and holds at the step of a change, not for as long as
the new state lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from repdyn.alerts.rules import CONDITIONS, RULES, Rule

if TYPE_CHECKING:
    import pandas as pd

    from repdyn.store.schema import Row

Layers: TypeAlias = tuple[int | None, ...]
"""Indices of layers, ascending; (None,) for a scalar."""

COLUMNS = ["metric", "subset", "stack", "layer", "step", "value", "std", "reason", "compared_to"]
"""Columns of the rows that a course is taken from, apart from the head."""
ALERT_COLUMNS = (*COLUMNS, "head", "run", "probe")
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

    def update_with_rows(self, rows: Iterable[Row]) -> list[Alert]:
        """Evaluate the rules on the rows of a step as :meth:`update` does, without a data frame of them."""
        return self._evaluate(courses_of_rows(rows))

    def _evaluate(self, observed: Iterable[tuple[SeriesKey, Course]]) -> list[Alert]:
        found: list[tuple[int, int, Alert]] = []
        for key, now in observed:
            past = self._past(key, now)
            for index, rule in enumerate(self._rules):
                if rule.applies_to(key.metric, key.subset):
                    for place, layer in np.argwhere(_HOLDS[rule.when](now, past, rule.bound or 0.0)).tolist():
                        found.append((int(now.steps[place]), index, _alert(key, rule, now, past, place, layer)))
        return [alert for _, _, alert in sorted(found, key=lambda entry: entry[:2])] if found else []

    def _past(self, key: SeriesKey, now: Course) -> Past:
        """Return what was known before each step, and remember what is known after the last."""
        state, known = self._states.get(key), Past.empty(now.layers)
        if state is not None and state.step <= now.steps[0]:
            known = state.past if state.step == now.steps[0] else state.updated
        past, *ends = known.before(now)
        self._states[key] = _SeriesState(int(now.steps[-1]), *ends)
        return past


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


@dataclass(frozen=True)
class SeriesKey:
    """The identity of a series within a run."""

    metric: str
    subset: str | None
    stack: str | None


@dataclass(frozen=True, eq=False)
class Course:
    """The values of a metric for one subset and one stack; or those of a scalar of the run, with the layer None."""

    steps: np.ndarray
    """(n_steps,) ascending."""
    layers: Layers
    """(n_layers,) ascending; (None,) for a scalar."""
    values: np.ndarray
    """(n_steps, n_layers) NaN if undefined, not comparable or not measured."""
    stds: np.ndarray
    """(n_steps, n_layers) standard deviation over batches; NaN if unknown."""
    reasons: np.ndarray
    """(n_steps, n_layers) why a value is NaN; None if there is no reason."""
    compares_checkpoints: np.ndarray
    """(n_steps,) whether any value compares the checkpoint with an earlier one."""


@dataclass(frozen=True, eq=False)
class Past:
    """Summaries of what was observed before each of several steps, layer by layer."""

    layers: Layers
    values: np.ndarray
    """(n_steps, n_layers) the last value that was not NaN."""
    stds: np.ndarray
    """(n_steps, n_layers) standard deviation over batches of this value."""
    steps: np.ndarray
    """(n_steps, n_layers) the step of this value; -1 if there was none."""
    is_missing: np.ndarray
    """(n_steps, n_layers) whether the previous observation had no value."""
    is_empty: np.ndarray
    """(n_steps,) whether there was no observation."""
    compares_checkpoints: np.ndarray
    """(n_steps,) whether any value compared two checkpoints."""
    changes: tuple[tuple[float, ...], ...]
    """(n_steps,) the last nonzero changes of the profile, at most :data:`HISTORY`."""

    @classmethod
    def empty(cls, layers: Layers) -> Past:
        """Return the summary before the first step."""
        shape = 1, len(layers)
        missing = np.full(shape, np.nan), np.full(shape, np.nan), np.full(shape, -1), np.full(shape, True)
        return cls(layers, *missing, np.array([True]), np.array([False]), ((),))

    def at(self, place: int) -> Past:
        """Return the summary before a single step."""
        one = slice(place, place + 1)
        return replace(self, **{name: getattr(self, name)[one] for name in _OF_STEPS})

    def change(self, now: Course) -> np.ndarray:
        """Return the mean over layers of |value - previous| / max(|value|, |previous|), in [0, 2]; NaN if none has
        both.

        Changes that do not exceed their noise count as 0. Shape (n_steps,).
        """
        difference = self.difference(now)
        known = np.isfinite(difference)
        larger = np.fmax(np.abs(now.values), np.abs(self.values))
        differs = known & (difference > MIN_STDS * self.noise(now))
        relative = np.divide(difference, larger, out=np.zeros_like(difference), where=differs)
        found = relative.mean(axis=1)
        for place in np.flatnonzero(~known.all(axis=1)):
            found[place] = relative[place, known[place]].mean() if known[place].any() else np.nan
        return found

    def difference(self, now: Course) -> np.ndarray:
        """Return |value - previous| of shape (n_steps, n_layers); NaN if one of them is missing."""
        with np.errstate(invalid="ignore"):  # inf - inf
            return np.abs(now.values - self.values)

    def noise(self, now: Course) -> np.ndarray:
        """Return the standard deviation of the difference, of shape (n_steps, n_layers); 0 if unknown."""
        return np.nan_to_num(np.hypot(now.stds, self.stds))

    def select(self, layers: Layers) -> Past:
        """Return the summaries of the given layers, in their order; unknown ones are empty."""
        if layers == self.layers:
            return self
        return Past.empty(layers)._with(self)

    def before(self, now: Course) -> tuple[Past, Past, Past]:
        """Return what was known before each step of a course, given one summary before its first.

        Returns:
            The summaries before each step; that before the last step and that after it, with the layers of both.
        """
        known = self.select(now.layers)
        has_value = ~np.isnan(now.values)
        # row 0 is what was known at first, row i + 1 the i-th observation
        values, stds = np.vstack([known.values, now.values]), np.vstack([known.stds, now.stds])
        steps = np.vstack([known.steps, np.broadcast_to(now.steps[:, None], has_value.shape)])
        rows = np.vstack([np.zeros_like(known.steps), np.where(has_value, np.arange(1, len(steps))[:, None], 0)])
        last = np.maximum.accumulate(rows, axis=0), np.arange(len(now.layers))
        compares = np.logical_or.accumulate(np.concatenate([known.compares_checkpoints, now.compares_checkpoints]))
        whole = Past(
            now.layers,
            values[last],
            stds[last],
            steps[last],
            np.vstack([known.is_missing, ~has_value]),
            np.concatenate([known.is_empty, np.full(len(now.steps), False)]),
            compares,
            ((),) * len(steps),
        )
        past = replace(whole.at(0), **{name: getattr(whole, name)[:-1] for name in _OF_STEPS})
        found, changes = list(known.changes[0]), [known.changes[0]]
        for change in past.change(now).tolist():
            found += [change] if change > 0 else []
            changes.append(tuple(found[-HISTORY:]))
        whole = replace(whole, changes=tuple(changes))
        everything = tuple(sorted({*self.layers, *now.layers}, key=lambda layer: -1 if layer is None else layer))
        last_two = [self.select(everything)._with(whole.at(len(now.steps) + end)) for end in (-1, 0)]
        return replace(past, changes=tuple(changes[:-1])), last_two[0], last_two[1]

    def _with(self, other: Past) -> Past:
        """Return one summary that is replaced by another one at the layers of that."""
        if other.layers == self.layers:
            return other
        places = {layer: place for place, layer in enumerate(self.layers)}
        shared = [place for place, layer in enumerate(other.layers) if layer in places]
        at = [places[other.layers[place]] for place in shared]
        changed = {}
        for name in ("values", "stds", "steps", "is_missing"):
            changed[name] = getattr(self, name).copy()
            changed[name][:, at] = getattr(other, name)[:, shared]
        return replace(other, layers=self.layers, **changed)


_OF_STEPS = ("values", "stds", "steps", "is_missing", "is_empty", "compares_checkpoints", "changes")


def courses(frame: pd.DataFrame) -> Iterator[tuple[SeriesKey, Course]]:
    """Yield the values of each metric and scalar of a run, by step; values of single heads are ignored.

    Args:
        frame: rows of one run on one probe; columns as the fields of :class:`repdyn.store.schema.Row`.
    """
    failed = frame["layer"].isna() & frame["reason"].notna()
    # the other columns are many, and copied by each selection of rows
    rows = frame.loc[frame["head"].isna() & ~failed, COLUMNS]
    # numbered in the order of their first rows; frames of the groups would copy all columns again
    number = rows.groupby(_KEY, sort=False, dropna=False, observed=True).ngroup().to_numpy()
    order = np.argsort(number, kind="stable")
    columns = _Columns.of(rows)
    for members in np.split(order, np.flatnonzero(np.diff(number[order])) + 1) if len(rows) else ():
        metric, subset, stack = (rows[name].iat[members[0]] for name in _KEY)
        yield SeriesKey(str(metric), _text(subset), _text(stack)), columns.course(members)


def courses_of_rows(rows: Iterable[Row]) -> Iterator[tuple[SeriesKey, Course]]:
    """Yield what :func:`courses` does, from few rows: a data frame of them takes most of the time."""
    found: dict[SeriesKey, list[Row]] = {}
    for row in rows:
        if row.head is None and not (row.layer is None and row.reason is not None):
            found.setdefault(SeriesKey(row.metric, row.subset, row.stack), []).append(row)
    for key, members in found.items():
        columns = _Columns(
            np.array([row.step for row in members]),
            np.array([-1 if row.layer is None else row.layer for row in members]),
            np.array([row.value for row in members], float),
            np.array([row.std for row in members], float),
            np.array([row.reason for row in members], object),
            np.array([row.reason is not None for row in members]),
            np.array([row.compared_to is not None for row in members]),
        )
        yield key, columns.course(np.arange(len(members)))


@dataclass(frozen=True, eq=False)
class _Columns:
    """The columns of all rows as arrays."""

    step: np.ndarray
    layer: np.ndarray
    value: np.ndarray
    std: np.ndarray
    reason: np.ndarray
    has_reason: np.ndarray
    compares: np.ndarray

    @classmethod
    def of(cls, rows: pd.DataFrame) -> _Columns:
        step, layer = rows["step"].to_numpy(int), rows["layer"].fillna(-1).to_numpy(int)
        value, std, reason = rows["value"].to_numpy(float), rows["std"].to_numpy(float), rows["reason"]
        texts, compares = reason.astype(object).to_numpy(object), rows["compared_to"].notna().to_numpy(bool)
        return cls(step, layer, value, std, texts, reason.notna().to_numpy(bool), compares)

    def course(self, members: np.ndarray) -> Course:
        """Return the values of one series, by the places of its rows."""
        layers, layer = np.unique(self.layer[members], return_inverse=True)
        steps, step = np.unique(self.step[members], return_inverse=True)
        values, stds = (np.full((len(steps), len(layers)), np.nan) for _ in range(2))
        values[step, layer], stds[step, layer] = self.value[members], self.std[members]
        reasons, explained = np.full(values.shape, None, object), self.has_reason[members]
        reasons[step[explained], layer[explained]] = self.reason[members[explained]]
        compares = np.zeros(len(steps), bool)
        compares[step[self.compares[members]]] = True
        numbers = tuple(None if number < 0 else int(number) for number in layers)
        return Course(steps, numbers, values, stds, reasons, compares)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _undefined(now: Course, past: Past, _: float) -> np.ndarray:
    """Return which values are missing although the previous observation had them, or at first because of NaN or inf.

    Metrics that compare checkpoints are ignored: they have no value if the earlier checkpoint is not available.
    """
    missing = np.isnan(now.values)
    found = missing & ~past.is_missing
    for place in np.flatnonzero(past.is_empty):
        found[place] = missing[place] & [_is_not_finite(now, reason) for reason in now.reasons[place]]
    found[past.compares_checkpoints | now.compares_checkpoints] = False
    return found


def _is_not_finite(now: Course, reason: str | None) -> bool:
    text = reason or ("the loss is NaN" if now.layers == (None,) else "")
    return any(word in text.split() for word in ("NaN", "inf"))


def _moves(now: Course, past: Past, bound: float) -> np.ndarray:
    """Return which values fell to a bound below 1 of what they were, or rose to one above, beyond their noise.

    The loss of a batch fluctuates, so a scalar must change more than usual, too: else a sound training with small
    batches has an alert every few steps.
    """
    values = now.values <= bound * past.values if bound < 1 else now.values >= bound * past.values
    found = values & (past.values > 0) & (past.difference(now) > MIN_STDS * past.noise(now))
    if now.layers != (None,) or not found.any():
        return found
    # a relative change c = 1 - 1 / ratio is that of a ratio whose logarithm is -log(1 - c)
    # the first change has nothing to be compared with
    largest = [max(before, default=math.inf) for before in past.changes]
    with np.errstate(divide="ignore", invalid="ignore"):
        usual = -np.log1p(-np.minimum(largest, 1.0))
        change = np.abs(np.log(now.values / past.values))
    return found & ((change > UNUSUAL * usual[:, None]) | ~np.isfinite(change))


def _above(now: Course, past: Past, bound: float) -> np.ndarray:
    return (now.values > bound) & ~(past.values > bound)


def _below(now: Course, past: Past, bound: float) -> np.ndarray:
    return (now.values < bound) & ~(past.values < bound)


def _jumps(now: Course, past: Past, bound: float) -> np.ndarray:
    """Return whether the profile changes by more than ``bound`` times the median of its last changes.

    Steps without a change are ignored: the first ones, at a low learning rate, are not representative.
    """
    medians = [float(np.median(before)) if len(before) >= MIN_HISTORY else math.inf for before in past.changes]
    with np.errstate(invalid="ignore"):
        return (past.change(now) > np.maximum(MIN_JUMP, bound * np.array(medians)))[:, None]


_HOLDS: Mapping[str, Callable[[Course, Past, float], np.ndarray]] = {
    "undefined": _undefined,
    "falls": _moves,
    "rises": _moves,
    "above": _above,
    "below": _below,
    "jumps": _jumps,
}
"""Map values, past and bound to bools of shape (n_steps, n_layers), or (n_steps, 1) for a whole profile."""
