"""What happened in a run: a status, and ranked statements with their evidence."""

from repdyn.diagnosis.insight import Insight, LossCorrelation, LossCorrelations, RunInsights, Severity, Status
from repdyn.diagnosis.run import continuity_statements, describe_run, insights

__all__ = [
    "Insight",
    "LossCorrelation",
    "LossCorrelations",
    "RunInsights",
    "Severity",
    "Status",
    "continuity_statements",
    "describe_run",
    "insights",
]
