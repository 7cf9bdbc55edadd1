"""What happened in a run, and in what runs differ: a status, and ranked statements with their
evidence.
"""

from repdyn.views.judging.comparison import comparison_statements
from repdyn.views.judging.insight import STATUSES, Insight, RunInsights, Severity, Status
from repdyn.views.judging.run import DescribedRun, stacks_of_run
from repdyn.views.judging.stores import (
    DescribedRuns,
    Yardstick,
    described_rows,
    described_runs,
    doubts,
    insights,
)

__all__ = [
    "STATUSES",
    "DescribedRun",
    "DescribedRuns",
    "Insight",
    "RunInsights",
    "Severity",
    "Status",
    "Yardstick",
    "comparison_statements",
    "described_rows",
    "described_runs",
    "doubts",
    "insights",
    "stacks_of_run",
]
