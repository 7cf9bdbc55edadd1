"""Rules on measured values, and their evaluation on the rows of a run: during a training and over a store alike.

A condition depends on the current and earlier observations only, and holds at the step of a change, not for as long as
the new state lasts.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import yaml

from repdyn.metrics.metric import base_name
from repdyn.utils.files import write_atomically
from repdyn.utils.records import read_yaml

if TYPE_CHECKING:
    import pandas as pd

    from repdyn.store.schema import Row

log = logging.getLogger(__name__)

DEFAULT = "default"
"""Name that stands for :data:`RULES`."""
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
    def log_change(self) -> float:
        """The absolute logarithm of the ratio to the value before; 0 if one of them is missing, 0 or infinite."""
        sizes = abs(self.value), abs(self.previous_value)
        return abs(math.log(sizes[0]) - math.log(sizes[1])) if all(0 < size < math.inf for size in sizes) else 0.0

    @property
    def subject(self) -> str:
        """The metric, with its stack and token subset."""
        known = ", ".join(filter(None, [self.stack, self.subset]))
        return f"{self.metric} ({known})" if known else self.metric


class SeriesKey(NamedTuple):
    """The identity of a series within a run."""

    metric: str
    subset: str | None
    stack: str | None


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
    medians = [median(before) if len(before) >= MIN_HISTORY else math.inf for before in now.last_changes]
    return (now.changes > np.maximum(MIN_JUMP, bound * np.array(medians)))[:, None]


class Condition(NamedTuple):
    """A condition on the values of a metric at a step."""

    event: str
    """Description of the change, formatted with {bound}."""
    bound: tuple[float, float] | None
    """Exclusive limits of the bound; None for a condition without one."""
    holds: Callable[[Course, float], np.ndarray]
    """Maps values and bound to bools of shape (n_steps, n_layers), or (n_steps, 1) for a whole profile."""
    whole_profile: bool = False
    """Whether it concerns the whole profile rather than single layers."""


_ANY = (-math.inf, math.inf)
CONDITIONS: Mapping[str, Condition] = {
    "undefined": Condition("has no value", None, _undefined),
    "falls": Condition("fell to {bound:g} of what it was or less", (0.0, 1.0), _moves),
    "rises": Condition("rose to {bound:g} times what it was or more", (1.0, math.inf), _moves),
    "above": Condition("rose above {bound:g}", _ANY, lambda now, bound: (now.values > bound) & ~(now.previous > bound)),
    "below": Condition("fell below {bound:g}", _ANY, lambda now, bound: (now.values < bound) & ~(now.previous < bound)),
    "jumps": Condition("jumped: a change {bound:g} times the usual one or more", (1.0, math.inf), _jumps, True),
}
"""By the name used in rules."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A change between two measurements that raises an alert.

    Args:
        name: name of the rule, reported in alerts.
        when: the condition: a value is "undefined" (NaN, after a measurement with a value), "falls" or "rises" (to a
            fraction or multiple of the previous value, by more than twice the standard deviation of their difference),
            is "above" or "below" a bound (which the previous value was not), or its profile over depth "jumps" (changes
            by a multiple of its usual change between two measurements).
        metrics: patterns of the names of metrics, or of scalars such as "train/loss". A name without settings matches
            the metric without settings; "two_nn[discard=0.8]" matches it with this setting.
        bound: the fraction, multiple or bound; None for "undefined".
        subsets: subsets of tokens; all that are measured if empty.
        stop: whether an alert stops the training.

    Raises:
        ValueError: a name, condition, metric or bound is missing or invalid.
    """

    name: str
    when: str
    metrics: tuple[str, ...]
    bound: float | None = None
    subsets: tuple[str, ...] = ()
    stop: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            raise ValueError(f"expected a rule to have a name of printable text, got {self.name!r}")
        if not isinstance(self.when, str) or self.when not in CONDITIONS:
            raise ValueError(
                f"expected a rule to have when: {' | '.join(CONDITIONS)}, got {self.when!r} in {self.name!r}"
            )
        for name in ("metrics", "subsets"):
            given = getattr(self, name)
            names = (given,) if isinstance(given, str) else given
            if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
                raise ValueError(f"expected {name} of the rule {self.name!r} to be a list of names, got {given!r}")
            object.__setattr__(self, name, tuple(names))
        if not self.metrics:
            raise ValueError(f"expected a rule to have metrics, got none in {self.name!r}")
        limits = CONDITIONS[self.when].bound
        if limits is None and self.bound is not None:
            raise ValueError(
                f"expected no bound with when: {self.when}, got {self.bound} in {self.name!r}; leave it out"
            )
        is_number = isinstance(self.bound, int | float) and not isinstance(self.bound, bool)
        if limits is not None and not (is_number and limits[0] < (self.bound or 0) < limits[1]):
            low, high = limits
            raise ValueError(
                f"expected a bound between {low:g} and {high:g} with when: {self.when}, got {self.bound!r} in "
                f"{self.name!r}"
            )
        if not isinstance(self.stop, bool):
            raise ValueError(f"expected stop: true or false, got {self.stop!r} in {self.name!r}")


RULES: tuple[Rule, ...] = (
    Rule(name="no value", when="undefined", metrics=("*",)),
    Rule(
        name="dimension halved",
        when="falls",
        bound=0.5,
        metrics=("two_nn", "gride_*", "levina_bickel", "effective_rank", "participation_ratio"),
    ),
    Rule(name="one direction", when="above", bound=0.9, metrics=("anisotropy",), subsets=("no_sink",)),
    Rule(name="profile jumps", when="jumps", bound=5.0, metrics=("two_nn", "anisotropy", "effective_rank")),
    Rule(name="loss rises", when="rises", bound=1.25, metrics=("train/loss",)),
)
"""The default rules."""


RulesLike: TypeAlias = Sequence[Rule] | str | Path | None
"""Rules, a YAML file of them, "default", or None for no alerts."""


def resolve_rules(rules: RulesLike) -> tuple[Rule, ...]:
    """Return the rules that an argument stands for; errors as for :func:`read_rules`."""
    if rules is None:
        return ()
    if isinstance(rules, str | Path):
        return RULES if str(rules) == DEFAULT else read_rules(Path(rules))
    if invalid := [rule for rule in rules if not isinstance(rule, Rule)]:
        raise ValueError(f"expected rules as repdyn.alerts.Rule, got {invalid[0]!r}")
    return _validate_names(rules)


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Read the rules of a YAML file: a list, each with the fields of :class:`Rule`.

    Raises:
        ValueError: the file has other content.
        OSError: the file cannot be read.
    """
    entries = read_yaml(path)
    if not isinstance(entries, list):
        raise ValueError(
            f"expected a list of rules in {path}, got {type(entries).__name__}; begin each with '- name: ...'"
        )
    known = [field.name for field in fields(Rule)]
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) - {*known} or {"name", "when", "metrics"} - set(entry):
            raise ValueError(
                f"{path}: expected each rule to be a mapping with name, when and metrics, and perhaps "
                f"{', '.join(known[3:])}, got {entry!r}"
            )
    try:
        return _validate_names([Rule(**entry) for entry in entries])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def stored_rules(path: Path) -> tuple[Rule, ...]:
    """Read the rules of a run from its store.

    The default rules are returned if there is no such file or, with a warning, if it cannot be read, so that a run
    with a damaged file can still be shown.
    """
    try:
        return read_rules(path) if path.is_file() else RULES  # a named pipe would be waited for
    except (ValueError, OSError) as error:
        log.warning("using the default rules, because those of the run cannot be read: %s", error)
        return RULES


def as_yaml(rules: Iterable[Rule]) -> str:
    """Return rules as YAML text, as read by :func:`read_rules`."""
    defaults = {field.name: field.default for field in fields(Rule)}
    entries = []
    for rule in rules:
        given = {name: value for name, value in vars(rule).items() if value != defaults[name]}
        entries.append({name: list(value) if isinstance(value, tuple) else value for name, value in given.items()})
    return yaml.safe_dump(entries, sort_keys=False, default_flow_style=None, width=120)


def write_rules(rules: Iterable[Rule], path: Path) -> None:
    """Write rules to a file atomically."""
    text = as_yaml(rules)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _validate_names(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    rules = tuple(rules)
    names = [rule.name for rule in rules]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"expected rules with distinct names, got {duplicates[0]!r} twice")
    return rules


def applies(rule: Rule, key: SeriesKey) -> bool:
    """Return whether a rule applies to a metric and subset; a rule on subsets applies to no scalar."""
    if rule.subsets and key.subset not in rule.subsets:
        return False
    # brackets of settings, as in "two_nn[discard=*]", are literal
    patterns = (each.replace("[", "[[]") if base_name(each) != each else each for each in rule.metrics)
    return any(fnmatchcase(key.metric, pattern) for pattern in patterns)


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
                    holds = CONDITIONS[rule.when].holds(course, rule.bound or 0.0)[first:]
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
