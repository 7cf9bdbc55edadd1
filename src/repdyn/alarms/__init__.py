"""Alarms: rules on what is measured, evaluated while a model trains and over a store, by the same arithmetic."""

from repdyn.alarms.evaluation import Alarm, Watcher, alarms_of
from repdyn.alarms.rules import RULES, Rule, RulesLike, as_yaml, kept_rules, read_rules, rules_from, write_rules

__all__ = [
    "RULES",
    "Alarm",
    "Rule",
    "RulesLike",
    "Watcher",
    "alarms_of",
    "as_yaml",
    "kept_rules",
    "read_rules",
    "rules_from",
    "write_rules",
]
