"""What happened in a run: a status, and ranked statements with their evidence."""

from repdyn.diagnosis.insight import STATUSES, Insight, RunInsights, Severity, Status
from repdyn.diagnosis.run import DescribedRun, described_runs, doubts, insights, stacks_of_run

__all__ = [
    "STATUSES",
    "DescribedRun",
    "Insight",
    "RunInsights",
    "Severity",
    "Status",
    "described_runs",
    "doubts",
    "insights",
    "stacks_of_run",
]
