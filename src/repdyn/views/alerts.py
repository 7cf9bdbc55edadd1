"""Rules on measured values, and their evaluation on the rows of a run: during a training and over a
store alike.

A condition depends on the current and earlier observations only, and holds at the step of a change,
not for as long as the new state lasts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
import yaml

from repdyn.metrics.names import base_name
from repdyn.probe.design import DISTINCT, view_of
from repdyn.store.schema import SCHEMA, ReasonCode, shown_reason
from repdyn.utils.files import write_atomically
from repdyn.utils.numbers import number_text
from repdyn.utils.records import read_yaml
from repdyn.views.changes import MIN_JUMP, Changes, Key
from repdyn.views.display import is_dimension_of_neighbours
from repdyn.views.grid import NO_LAYER, Grid

if TYPE_CHECKING:
    import pandas as pd

    from repdyn.store.schema import Row

DEFAULT = "default"
"""Name that stands for :data:`RULES`."""
ALERT_COLUMNS = (
    "metric",
    "subset",
    "stack",
    "layer",
    "step",
    "value",
    "std",
    "reason",
    "reason_code",
    "n_unique",
    "n_vectors",
    "compared_to",
    "head",
    "run",
    "probe",
)
"""Columns of a store that rules are evaluated on."""
_REMEMBERED = 200  # measurements that a live evaluation remembers
_EVALUATED = tuple(name for name in ALERT_COLUMNS if name not in {"run", "probe"})
_EVALUATED_TYPES = pa.schema([SCHEMA.field(name).with_nullable(True) for name in _EVALUATED])


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
        """Return a line that describes the event, without the step."""
        return (
            f"{self.subject}{'' if self.layer is None else f' of layer {self.layer}'} "
            f"{self.event}: {self.detail}"
        )

    @property
    def log_change(self) -> float:
        """Return the absolute logarithm of the ratio to the value before; 0 if one of them is
        missing, 0 or infinite.
        """
        sizes = abs(self.value), abs(self.previous_value)
        return (
            abs(math.log(sizes[0]) - math.log(sizes[1]))
            if all(0 < size < math.inf for size in sizes)
            else 0.0
        )

    @property
    def subject(self) -> str:
        """Return the metric, with its stack and its vectors as legends call them."""
        vectors = None
        if self.subset is not None:
            # a rule holds on all vectors or on those without repeats, of tokens or of images
            vectors = "all vectors" if self.subset == "all" else view_of(self.subset).title
        known = ", ".join(filter(None, [self.stack, vectors]))
        return f"{self.metric} ({known})" if known else self.metric


class Cells(NamedTuple):
    """The rows of a metric for one subset and one stack, or those of a scalar of the run."""

    step: np.ndarray
    layer: np.ndarray
    """:data:`~repdyn.views.grid.NO_LAYER` for a scalar."""
    value: np.ndarray
    std: np.ndarray
    reason: np.ndarray
    """Why there is no value, as it is told; "" where there is one."""
    reason_code: np.ndarray
    """Of what kind the reason is; "" without one."""
    compares: np.ndarray
    """Whether the value compares the checkpoint with an earlier one."""

    def at(self, chosen: np.ndarray | list[int]) -> Cells:
        """Return some of the rows."""
        return Cells(*(column[chosen] for column in self))

    def followed_by(self, further: Cells) -> Cells:
        """Return these rows and further ones."""
        return Cells(*map(np.concatenate, zip(self, further, strict=True)))


def as_table(rows: pa.Table | pd.DataFrame | Iterable[Row]) -> pa.Table:
    """Return the columns that rules are evaluated on, of rows in any form."""
    if isinstance(rows, pa.Table):
        table: Any = rows
        return table.select(list(_EVALUATED)).cast(_EVALUATED_TYPES)
    # a data frame, for which pandas need not be imported here
    if hasattr(rows, "loc"):
        frame = cast("pd.DataFrame", rows)
        # column by column: a whole frame is converted with a description of each column
        columns = [
            pa.array(frame[field.name], from_pandas=True).cast(field.type)
            for field in _EVALUATED_TYPES
        ]
        return pa.Table.from_arrays(columns, schema=_EVALUATED_TYPES)
    records = [{name: getattr(row, name) for name in _EVALUATED} for row in rows]
    return pa.Table.from_pylist(records, schema=_EVALUATED_TYPES)


def cells_by_key(table: pa.Table) -> dict[Key, Cells]:
    """Return the rows of each metric and scalar of a run on one probe, without the values of single
    heads.

    ``table`` has the columns of :func:`as_table`. A value that is NaN has a reason.
    """
    is_scalar = table["layer"].is_null().to_numpy()
    has_reason = table["reason"].is_valid().to_numpy()
    is_of_head = table["head"].is_valid().to_numpy()
    rows = table.filter(pa.array(~is_of_head & ~(is_scalar & has_reason)))  # the others are many
    values = rows["value"].to_numpy()
    reasons = np.full(len(rows), "", object)
    codes = np.full(len(rows), "", object)
    columns = ("reason", "reason_code", "n_unique", "n_vectors")
    untold = zip(*(rows[name].to_pylist() for name in columns), strict=True)
    for index, (reason, code, n_unique, n_vectors) in enumerate(untold):
        if reason:
            reasons[index] = shown_reason(reason, code, n_unique, n_vectors)
            codes[index] = code or ""
        elif math.isnan(values[index]):  # a scalar of a trainer that is no number has none
            reasons[index] = "NaN"
            codes[index] = ReasonCode.NOT_FINITE
    cells = Cells(
        step=rows["step"].to_numpy(),
        layer=rows["layer"].fill_null(NO_LAYER).to_numpy(),
        value=values,
        std=rows["std"].to_numpy(),
        reason=reasons,
        reason_code=codes,
        compares=rows["compared_to"].is_valid().to_numpy(),
    )
    rows_of: dict[Key, list[int]] = {}
    keys = zip(*(rows[name].to_pylist() for name in ("metric", "subset", "stack")), strict=True)
    for index, key in enumerate(keys):
        rows_of.setdefault(key, []).append(index)
    return {key: cells.at(of_key) for key, of_key in rows_of.items()}


_ANY = (-math.inf, math.inf)
CONDITIONS: Mapping[str, tuple[str, tuple[float, float] | None]] = {
    "undefined": ("has no value", None),
    "falls": ("fell to {bound:g} of what it was or less", (0.0, 1.0)),
    "rises": ("rose to {bound:g} times what it was or more", (1.0, math.inf)),
    "above": ("rose above {bound:g}", _ANY),
    "below": ("fell below {bound:g}", _ANY),
    "jumps": ("jumped: a change {bound:g} times the usual one or more", (1.0, math.inf)),
}
"""By the name used in rules: the event, formatted with the bound, and the exclusive limits of the
bound, None for a condition without one. A whole profile jumps, the others concern single layers;
:meth:`Changes.holds` has their terms."""

_EVENTS_AT_FIRST = {"above": "is above {bound:g}", "below": "is below {bound:g}"}
"""The events of a value that is the first one, and therefore did not rise or fall."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A change between two measurements that raises an alert.

    Args:
        name: name of the rule, reported in alerts.
        when: the condition: a value is "undefined" (NaN, after a measurement with a value), "falls"
            or "rises" (to a fraction or multiple of the previous value, by more than twice the
            standard deviation of their difference), is "above" or "below" a bound (which the
            previous value was not), or its profile over depth "jumps" (changes by a multiple of its
            usual change between two measurements).
        metrics: patterns of the names of metrics, or of scalars such as "train/loss". A name
            without settings matches the metric without settings; "two_nn[discard=0.8]" matches it
            with this setting.
        bound: the fraction, multiple or bound; None for "undefined".
        subsets: subsets of tokens; all that are measured if empty. A dimension of nearest
            neighbours then changes on all vectors only if it does without repeats too, where that
            is measured: otherwise the repeated token makes the change.
        stop: whether an alert stops the training.
        settled: whether less is told while steps double: a value must fall or rise by the square of
            the bound, and is not told to be undefined, nor anywhere after fewer than four
            measurements with a value in a row. NaN and infinity are told at once.

    Raises:
        ValueError: a name, condition, metric or bound is missing or invalid.
    """

    name: str
    when: str
    metrics: tuple[str, ...]
    bound: float | None = None
    subsets: tuple[str, ...] = ()
    stop: bool = False
    settled: bool = False

    def __post_init__(self) -> None:
        for name in ("metrics", "subsets"):
            value = getattr(self, name)
            names = [value] if isinstance(value, str) else value
            is_list = isinstance(names, list | tuple)
            if not is_list or not all(isinstance(text, str) for text in names):
                raise ValueError(
                    f"expected {name} of the rule {self.name!r} to be a list of names, got "
                    f"{value!r}"
                )
            object.__setattr__(self, name, tuple(names))
        is_text = isinstance(self.name, str) and self.name.isprintable()
        self._require(is_text and bool(self.name), "name", "a name of printable text")
        is_condition = str(self.when) in CONDITIONS
        self._require(is_condition, "when", f"when: {' | '.join(CONDITIONS)}")
        self._require(bool(self.metrics), "metrics", "metrics")
        self._require_bound()
        self._require(isinstance(self.stop, bool), "stop", "stop: true or false")
        self._require(isinstance(self.settled, bool), "settled", "settled: true or false")

    def _require(self, is_valid: bool, field: str, expected: str) -> None:
        if not is_valid:
            received = getattr(self, field)
            raise ValueError(f"expected {expected} in the rule {self.name!r}, got {received!r}")

    def _require_bound(self) -> None:
        _, limits = CONDITIONS[self.when]
        if limits is None:
            self._require(self.bound is None, "bound", f"no bound with when: {self.when}")
            return
        low, high = limits
        is_number = isinstance(self.bound, int | float) and not isinstance(self.bound, bool)
        is_inside = is_number and low < (self.bound or 0) < high
        bounds = f"a bound between {low:g} and {high:g} with when: {self.when}"
        self._require(is_inside, "bound", bounds)


RULES: tuple[Rule, ...] = (
    Rule(name="no value", when="undefined", metrics=("*",), settled=True),
    Rule(
        name="dimension halved",
        when="falls",
        bound=0.5,
        settled=True,
        metrics=("two_nn", "gride_*", "levina_bickel", "effective_rank", "participation_ratio"),
    ),
    Rule(
        name="one direction",
        when="above",
        bound=0.99,
        metrics=("anisotropy",),
        subsets=("no_sink",),
    ),
    Rule(
        name="profile jumps",
        when="jumps",
        bound=5.0,
        metrics=("two_nn", "anisotropy", "effective_rank"),
    ),
    Rule(name="loss rises", when="rises", bound=1.25, metrics=("train/loss",)),
)
"""The default rules."""


RulesLike: TypeAlias = Sequence[Rule | Mapping[str, object]] | str | Path | None
"""Rules or their fields, a YAML file of them, "default", or None for no alerts."""


def resolve_rules(rules: RulesLike) -> tuple[Rule, ...]:
    """Return the rules that an argument stands for; errors as for :func:`read_rules`."""
    if rules is None:
        return ()
    if isinstance(rules, str | Path):
        return RULES if str(rules) == DEFAULT else read_rules(Path(rules))
    return tuple(rule if isinstance(rule, Rule) else _rule_of(rule, "alerts") for rule in rules)


def _rule_of(entry: object, source: str) -> Rule:
    """Return the rule of a mapping with its fields; ``source`` is where that stands."""
    names = [field.name for field in fields(Rule)]
    required = {"name", "when", "metrics"}
    if not isinstance(entry, Mapping) or set(entry) - {*names} or required - set(entry):
        raise ValueError(
            f"{source}: expected each rule to be a mapping with name, when and metrics, and "
            f"perhaps {', '.join(names[3:])}, got {entry!r}"
        )
    return Rule(**entry)


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Read the rules of a YAML file: a list, each with the fields of :class:`Rule`.

    Raises:
        ValueError: the file has other content.
        OSError: the file cannot be read.
    """
    entries = read_yaml(path)
    if not isinstance(entries, list):
        raise ValueError(
            f"expected a list of rules in {path}, got {type(entries).__name__}; begin each with '- "
            "name: ...'"
        )
    try:
        rules = [_rule_of(entry, str(path)) for entry in entries]
    except ValueError as error:
        message = str(error)
        raise ValueError(message if str(path) in message else f"{path}: {message}") from error
    return tuple(rules)


def stored_rules(path: Path) -> tuple[Rule, ...]:
    """Read the rules of a run from the file in its store; the default ones if there is none or,
    with a warning, if it cannot be read: no file of one run may take all others from a view."""
    try:
        return read_rules(path) if path.is_file() else RULES
    except (ValueError, OSError) as error:
        logging.getLogger(__name__).warning("using the default rules: %s", error)
        return RULES


def as_yaml(rules: Iterable[Rule]) -> str:
    """Return rules as YAML text, as read by :func:`read_rules`."""
    defaults = {field.name: field.default for field in fields(Rule)}
    entries = []
    for rule in rules:
        changed = {name: value for name, value in vars(rule).items() if value != defaults[name]}
        entries.append(
            {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in changed.items()
            }
        )
    return yaml.safe_dump(entries, sort_keys=False, default_flow_style=None, width=120)


def write_rules(rules: Iterable[Rule], path: Path) -> None:
    """Write rules to a file atomically."""
    text = as_yaml(rules)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def applies(rule: Rule, metric: str, subset: str | None) -> bool:
    """Return whether a rule applies to a metric and subset; a rule on subsets applies to
    no scalar.
    """
    if rule.subsets and subset not in rule.subsets:
        return False
    # brackets of settings, as in "two_nn[discard=*]", are literal
    patterns = (
        each.replace("[", "[[]") if base_name(each) != each else each for each in rule.metrics
    )
    return any(fnmatchcase(metric, pattern) for pattern in patterns)


class AlertEvaluator:
    """Stateful evaluation of rules on the steps of a run, one after the other."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._rules = tuple(rules)
        self._cells: dict[Key, Cells] = {}

    def update(self, rows: pa.Table | pd.DataFrame | Iterable[Row]) -> list[Alert]:
        """Evaluate the rules on further rows, or records, and return the alerts at their steps as
        :func:`find_alerts`.

        What is known from their first step on is discarded: the last step may be given again with
        additional rows.
        """
        changes: dict[Key, Changes] = {}
        n_known: dict[Key, int] = {}
        for key, further in cells_by_key(as_table(rows)).items():
            first = int(further.step.min())
            cells = further
            if (earlier := self._cells.get(key)) is not None:
                before_first = earlier.at(earlier.step < first)
                known_steps = np.unique(before_first.step)[-_REMEMBERED:]
                remembered = earlier.at(np.isin(earlier.step, known_steps))
                cells = remembered.followed_by(further)
            self._cells[key] = cells
            changes[key] = Changes(key, Grid(cells._asdict()))
            n_known[key] = int(np.searchsorted(changes[key].steps, first))
        alerts: list[tuple[int, int, Alert]] = []
        for key, of_key in changes.items():
            beside = _without_repeats(key, changes)
            for index, rule in enumerate(self._rules):
                raised = _raised(rule, of_key, n_known[key], beside)
                alerts += [(alert.step, index, alert) for alert in raised]
        # alerts themselves cannot be compared; those of one step and rule keep the order of their
        # keys
        return [alert for _, _, alert in sorted(alerts, key=lambda entry: entry[:2])]


def find_alerts(frame: pd.DataFrame | pa.Table, rules: Sequence[Rule] = RULES) -> list[Alert]:
    """Return the alerts of a run, by step.

    Args:
        frame: rows of one run on one probe, including scalars; columns as the fields of
            :class:`repdyn.store.schema.Row`. Values of single attention heads are ignored.
        rules: the rules to evaluate.

    Returns:
        Alerts by step, then by rule, metric, subset and layer. Those of a step depend only on the
        rows up to it.
    """
    return AlertEvaluator(rules).update(frame)


def _raised(
    rule: Rule, changes: Changes, n_known: int, beside: Sequence[Changes]
) -> Iterator[Alert]:
    """Yield the alerts of a rule on the changes behind the known steps, but for those that the
    changes beside them deny."""
    if not applies(rule, changes.metric, changes.subset):
        return
    holds = _held(rule, changes)[n_known:]
    for place, layer in np.argwhere(holds).tolist():
        alert = _alert(rule, changes, n_known + place, layer)
        if not _is_of_repeats(alert, rule, beside):
            yield alert


def _without_repeats(key: Key, measured: Mapping[Key, Changes]) -> list[Changes]:
    """Return those on which a change has to be seen too: of a dimension of all vectors, those
    without repeats."""
    metric, subset, stack = key
    if subset != "all" or not is_dimension_of_neighbours(metric):
        return []
    keys = [(metric, name, stack) for name in DISTINCT]
    return [measured[other] for other in keys if other in measured]


def _is_of_repeats(alert: Alert, rule: Rule, beside: Iterable[Changes]) -> bool:
    """Return whether a change of all vectors is one of repeated tokens alone: the first of the
    subsets without repeats on which it can be judged has it not. What a rule says of a subset by
    name is taken as it is."""
    for changes in [] if rule.subsets else beside:
        # the step or the layer may not have been measured on that subset: the next one is asked
        row = int(np.searchsorted(changes.steps, alert.step))
        if row == len(changes.steps) or changes.steps[row] != alert.step:
            continue
        column = 0
        if alert.layer is not None:
            column = int(np.searchsorted(changes.layers, alert.layer))
            if column == len(changes.layers) or changes.layers[column] != alert.layer:
                continue
        if changes.is_judged(rule.when)[row, column]:
            return not _held(rule, changes)[row, column]
    return False


def _held(rule: Rule, changes: Changes) -> np.ndarray:
    """Return where a rule holds, in the shape of :meth:`Changes.holds`."""
    holds = changes.holds(rule.when, rule.bound or 0.0)
    if not rule.settled or changes.is_scalar:
        return holds
    if rule.when == "undefined":
        is_broken = changes.codes == ReasonCode.NOT_FINITE
        return holds & (is_broken | (changes.is_established & ~changes.is_doubling))
    # sound trainings change more where steps double: a quarter is told there in place of a half
    if rule.when in {"falls", "rises"}:
        of_doubling = changes.holds(rule.when, (rule.bound or 0.0) ** 2)
        return np.where(changes.is_doubling, of_doubling, holds)
    return holds


def _alert(rule: Rule, changes: Changes, row: int, layer: int) -> Alert:
    of_profile = rule.when == "jumps"
    most = ""
    if of_profile:
        layer = int(np.nanargmax(np.where(changes.in_means, changes.difference[row], np.nan)))
        # what goes wrong in one layer changes those after it, the more the further
        first = int(np.argmax(changes.in_means & (changes.relative[row] >= MIN_JUMP)))
        most = f"most in layer {changes.layers[layer]}, "
        if first < layer:
            most = f"first in layer {changes.layers[first]}, {most}"
    before = int(changes.before[row, layer])
    previous_step = int(changes.steps[before]) if before >= 0 else None
    event = CONDITIONS[rule.when][0]
    if previous_step is None:
        event = _EVENTS_AT_FIRST.get(rule.when, event)
    elif rule.when == "undefined":
        event = f"{event} any more"
    value = float(changes.values[row, layer])
    previous_value = float(changes.previous[row, layer])
    if math.isnan(value):
        detail = changes.reasons[row, layer]
    elif previous_step is None:
        detail = number_text(value)
    else:
        before_value = number_text(previous_value)
        detail = f"{before_value} at step {previous_step:,}, now {number_text(value)}"
    return Alert(
        rule=rule.name,
        step=int(changes.steps[row]),
        metric=changes.metric,
        subset=changes.subset,
        stack=changes.stack,
        layer=None if of_profile or changes.is_scalar else int(changes.layers[layer]),
        value=math.nan if of_profile else value,
        previous_value=math.nan if of_profile else previous_value,
        previous_step=previous_step,
        event=event.format(bound=rule.bound),
        detail=f"{most}{detail}",
        stop=rule.stop,
    )
