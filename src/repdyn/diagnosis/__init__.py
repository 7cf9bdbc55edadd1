"""What happened in a run: a status, and ranked statements with their evidence."""

from repdyn.diagnosis.insight import STATUSES, Insight, RunInsights, Severity, Status
from repdyn.diagnosis.run import (
    DescribedRun,
    continuity_statements,
    described_runs,
    insights,
    stacks_of_run,
)

__all__ = [
    "STATUSES",
    "DescribedRun",
    "Insight",
    "RunInsights",
    "Severity",
    "Status",
    "continuity_statements",
    "described_runs",
    "insights",
    "stacks_of_run",
]
