"""Alerts: rules on what is measured, evaluated while a model trains and over a store, by the same arithmetic."""

from repdyn.alerts.evaluation import Alert, Watcher, alerts_of
from repdyn.alerts.rules import RULES, Rule, RulesLike, as_yaml, read_rules, resolve_rules, stored_rules, write_rules

__all__ = [
    "RULES",
    "Alert",
    "Rule",
    "RulesLike",
    "Watcher",
    "alerts_of",
    "as_yaml",
    "read_rules",
    "resolve_rules",
    "stored_rules",
    "write_rules",
]
