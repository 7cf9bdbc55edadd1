"""Alerts: rules on measured values, evaluated identically during a training and over a store."""

from repdyn.alerts.evaluation import ALERT_COLUMNS, Alert, AlertEvaluator, find_alerts
from repdyn.alerts.rules import RULES, Rule, RulesLike, as_yaml, read_rules, resolve_rules, stored_rules, write_rules

__all__ = [
    "ALERT_COLUMNS",
    "RULES",
    "Alert",
    "AlertEvaluator",
    "Rule",
    "RulesLike",
    "as_yaml",
    "find_alerts",
    "read_rules",
    "resolve_rules",
    "stored_rules",
    "write_rules",
]
