"""What happened in a run, and in what runs differ: a status, and ranked statements with their
evidence.
"""

from repdyn.diagnosis.comparison import comparison_statements
from repdyn.diagnosis.insight import STATUSES, Insight, RunInsights, Severity, Status
from repdyn.diagnosis.run import DescribedRun, stacks_of_run
from repdyn.diagnosis.stores import DescribedRuns, described_rows, described_runs, doubts, insights

__all__ = [
    "STATUSES",
    "DescribedRun",
    "DescribedRuns",
    "Insight",
    "RunInsights",
    "Severity",
    "Status",
    "comparison_statements",
    "described_rows",
    "described_runs",
    "doubts",
    "insights",
    "stacks_of_run",
]
