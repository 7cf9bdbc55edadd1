"""Rules on what is measured: which values they watch, what they report, and whether the training is to stop."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from repdyn.alerts.conditions import CONDITIONS
from repdyn.metrics.names import base_name
from repdyn.utils.atomic_files import write_atomically
from repdyn.utils.plain_yaml import read_yaml

log = logging.getLogger(__name__)

DEFAULT = "default"
"""Stands for :data:`RULES`."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A change between two measurements that raises an alert.

    Args:
        name: of the rule, as alerts report it.
        when: what happens to a value: it is "undefined" (NaN where the measurement before had a value), "falls" or
            "rises" (to a share or a multiple of the value before, by more than twice their spread over batches), is
            "above" or "below" a bound (where the value before was not), or its whole profile over depth "jumps"
            (changes by a multiple of what it usually changes by between two measurements).
        metrics: patterns of the names of metrics, or of scalars such as "train/loss". A name without settings is that
            of the metric without any; "two_nn[discard=0.8]" names it with this setting.
        bound: the share, multiple or bound; None for "undefined".
        subsets: of tokens; none for every one that was measured.
        stop: whether a training is to stop there.

    Raises:
        ValueError: no name, no such condition, no metric, a bound that it cannot have.
    """

    name: str
    when: str
    metrics: tuple[str, ...]
    bound: float | None = None
    subsets: tuple[str, ...] = ()
    stop: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isprintable():
            raise ValueError(f"expected a rule to have a name of printable text, got {self.name!r}")
        if not isinstance(self.when, str) or self.when not in CONDITIONS:
            raise ValueError(
                f"expected a rule to have when: {' | '.join(CONDITIONS)}, got {self.when!r} in {self.name!r}"
            )
        for name in ("metrics", "subsets"):
            object.__setattr__(self, name, _names(getattr(self, name), f"{name} of the rule {self.name!r}"))
        if not self.name or not self.metrics:
            raise ValueError(
                f"expected a rule to have a name and metrics, got name {self.name!r}, metrics {self.metrics}"
            )
        between = CONDITIONS[self.when].bound
        if between is None and self.bound is not None:
            raise ValueError(
                f"expected no bound with when: {self.when}, got {self.bound} in {self.name!r}; leave it out"
            )
        if between is not None and not (_is_number(self.bound) and between[0] < (self.bound or 0) < between[1]):
            low, high = between
            raise ValueError(
                f"expected a bound between {low:g} and {high:g} with when: {self.when}, got {self.bound!r} in "
                f"{self.name!r}"
            )
        if not isinstance(self.stop, bool):
            raise ValueError(f"expected stop: true or false, got {self.stop!r} in {self.name!r}")

    def concerns(self, metric: str, subset: str | None) -> bool:
        """Return whether the rule watches this metric and subset; a rule on subsets watches no scalar."""
        named = any(fnmatchcase(metric, _literal_settings(pattern)) for pattern in self.metrics)
        return named and (not self.subsets or subset in self.subsets)


RulesLike: TypeAlias = Sequence[Rule] | str | Path | None
"""Rules, a YAML file of them, "default", or None for no alerts."""


def resolve_rules(given: RulesLike) -> tuple[Rule, ...]:
    """Return the rules that an argument stands for.

    Raises:
        ValueError: a file that holds no rules; two rules of one name; something else than a rule.
        OSError: a file that cannot be read.
    """
    if given is None:
        return ()
    if isinstance(given, str | Path):
        return RULES if str(given) == DEFAULT else read_rules(Path(given))
    if strange := [rule for rule in given if not isinstance(rule, Rule)]:
        raise ValueError(f"expected rules as repdyn.alerts.Rule, got {strange[0]!r}")
    return _distinct(given)


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Read the rules of a YAML file: a list, each with the fields of :class:`Rule`.

    Raises:
        ValueError: the file holds something else.
        OSError: it cannot be read.
    """
    listed = read_yaml(path)
    if not isinstance(listed, list):
        raise ValueError(
            f"expected a list of rules in {path}, got {type(listed).__name__}; begin each with '- name: ...'"
        )
    try:
        return _distinct([_rule(entry) for entry in listed])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def stored_rules(path: Path) -> tuple[Rule, ...]:
    """Read the rules that a run was watched by from its store.

    The default ones if the file does not exist or, with a warning in the log, cannot be read: a run with a damaged file
    can still be shown.
    """
    try:
        return read_rules(path) if path.exists() else RULES
    except (ValueError, OSError) as error:
        log.warning("alerts by the default rules, since those of the run cannot be read: %s", error)
        return RULES


def as_yaml(rules: Iterable[Rule]) -> str:
    """Return rules as text for :func:`read_rules`."""
    defaults = {field.name: field.default for field in fields(Rule)}
    listed = [{name: _plain(value) for name, value in vars(rule).items() if value != defaults[name]} for rule in rules]
    return yaml.safe_dump(listed, sort_keys=False, default_flow_style=None, width=120)


def write_rules(rules: Iterable[Rule], path: Path) -> None:
    """Write rules to a file, whole or not at all."""
    text = as_yaml(rules)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _rule(entry: Any) -> Rule:
    known = [field.name for field in fields(Rule)]
    if not isinstance(entry, dict):
        raise ValueError(f"expected each rule to be a mapping with {', '.join(known)}, got {entry!r}")
    if unknown := [key for key in entry if key not in known]:
        raise ValueError(f"expected a rule to have {', '.join(known)}, got {unknown[0]!r}")
    if missing := [key for key in ("name", "when", "metrics") if key not in entry]:
        raise ValueError(f"expected a rule to have name, when and metrics, got none of {missing[0]!r} in {entry}")
    return Rule(**entry)


def _distinct(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    found = tuple(rules)
    names = [rule.name for rule in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"expected each rule to have a name of its own, got {twice[0]!r} twice")
    return found


def _names(given: Any, what: str) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"expected {what} to be a list of names, got {given!r}")
    return tuple(names)


def _literal_settings(pattern: str) -> str:
    """Return a pattern in which the brackets of settings, as in "two_nn[discard=*]", are literal."""
    return pattern.replace("[", "[[]") if base_name(pattern) != pattern else pattern


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


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
