"""Alerts: rules on measured values, evaluated identically during a training and over a store."""

from repdyn.alerts.rules import (
    ALERT_COLUMNS,
    RULES,
    Alert,
    AlertEvaluator,
    Rule,
    RulesLike,
    as_yaml,
    find_alerts,
    read_rules,
    resolve_rules,
    stored_rules,
    write_rules,
)

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
