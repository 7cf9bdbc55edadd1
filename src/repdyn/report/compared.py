"""The lines of a report's comparisons: single runs, and groups of seeds of one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from repdyn.figures.colours import run_colours
from repdyn.report.runs import ReportRun
from repdyn.tables.runs import Key
from repdyn.tables.seed_series import SeedSeries
from repdyn.tables.seeds import Compared, SeedGroup, with_seeds
from repdyn.tables.series import MetricSeries


class ComparedMember(NamedTuple):
    """A run that has a metric, or several that are seeds of one model."""

    number: int
    """Number of the run, or of the first seed."""
    run: Compared
    series: MetricSeries | SeedSeries
    seeds: Sequence[int] = ()
    """Numbers of the seeds."""


def compared_with(runs: Sequence[ReportRun], seeds: Sequence[SeedGroup], key: tuple[str, str]) -> list[ComparedMember]:
    """Return the members of a comparison of a metric on a token subset, each of which has a line of its own.

    Seeds without a common step at which all have the metric are returned as single runs.
    """
    numbers = {run.measured.key: number for number, run in enumerate(runs)}
    groups = [group for group in seeds if key in group.series]
    members = []
    for run in with_seeds([run.measured for run in runs if key in run.series], groups):
        of_seeds = [numbers[member.key] for member in run.members] if isinstance(run, SeedGroup) else []
        members.append(ComparedMember((of_seeds or [numbers[run.key]])[0], run, run.series[key], of_seeds))
    return members


def compared_colours(runs: Sequence[ReportRun], seeds: Sequence[SeedGroup]) -> dict[Key, str]:
    """Return a colour for each group of seeds, which its members share, and for each other run."""
    colours = run_colours(with_seeds([run.measured for run in runs], seeds))
    return colours | {member.key: colours[group.key] for group in seeds for member in group.members}
