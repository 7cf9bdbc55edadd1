"""Rules on measured values: defining, reading and writing them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import yaml

from repdyn.utils.files import write_atomically
from repdyn.utils.records import read_yaml

log = logging.getLogger(__name__)

DEFAULT = "default"
"""Name that stands for :data:`RULES`."""


@dataclass(frozen=True)
class Condition:
    """A condition on the values of a metric at a step, which :mod:`repdyn.alerts.evaluation` evaluates."""

    event: str
    """Description of the change, formatted with {bound}."""
    bound: tuple[float, float] | None
    """Exclusive limits of the bound; None for a condition without one."""
    whole_profile: bool = False
    """Whether it concerns the whole profile rather than single layers."""


CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "undefined": Condition("has no value", None),
        "falls": Condition("fell to {bound:g} of what it was or less", (0.0, 1.0)),
        "rises": Condition("rose to {bound:g} times what it was or more", (1.0, math.inf)),
        "above": Condition("rose above {bound:g}", (-math.inf, math.inf)),
        "below": Condition("fell below {bound:g}", (-math.inf, math.inf)),
        "jumps": Condition("jumped: a change {bound:g} times the usual one or more", (1.0, math.inf), True),
    }
)
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
