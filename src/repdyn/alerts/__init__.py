"""Alerts: rules on what is measured, evaluated while a model trains and over a store, by the same arithmetic."""

from repdyn.alerts.evaluation import Alert, Watcher, alerts_of
from repdyn.alerts.rules import RULES, Rule, RulesLike, as_yaml, kept_rules, read_rules, rules_from, write_rules

__all__ = [
    "RULES",
    "Alert",
    "Rule",
    "RulesLike",
    "Watcher",
    "alerts_of",
    "as_yaml",
    "kept_rules",
    "read_rules",
    "rules_from",
    "write_rules",
]
