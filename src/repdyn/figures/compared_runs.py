"""The runs of a comparison, with seeds of one model grouped: colours, markers, legend and captions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

import pandas as pd

from repdyn.figures.charts import Line
from repdyn.figures.colours import run_looks
from repdyn.figures.drawing import LEGEND_ROWS
from repdyn.tables.designs import intervals
from repdyn.tables.runs import differences, measured_runs
from repdyn.tables.seed_series import INTERVAL
from repdyn.tables.seeds import Compared, SeedGroup, seed_groups, with_seeds
from repdyn.tables.style import KINDS
from repdyn.tables.texts import concatenated

BAND_OPACITY, SEEDS_OPACITY = 0.1, 0.2


class ComparedRuns:
    """Comparable runs in order, with the colour and marker of each; runs that are seeds of one model are one group.

    Args:
        frame: rows of several runs, each measured on one probe.
        seeds: as for :func:`repdyn.tables.seeds.seed_groups`.

    Raises:
        ValueError: a run with several models or probes; runs that do not compare; seeds that differ in more.
    """

    def __init__(self, frame: pd.DataFrame, seeds: Sequence[str] | None = None) -> None:
        runs = measured_runs(frame)
        if why := differences(runs):
            raise ValueError(f"expected runs that compare, got {why}; choose among them")
        self.runs = with_seeds(runs, seed_groups(runs, seeds))
        looks = run_looks(self.runs)
        opacity = {run.key: SEEDS_OPACITY if isinstance(run, SeedGroup) else BAND_OPACITY for run in self.runs}
        self.looks = {key: {**look, "band_opacity": opacity[key]} for key, look in looks.items()}
        self.at_end = concatenated([run.at_end() for run in self.runs])

    def legend(self, runs: Sequence[Compared], suffixes: Sequence[str]) -> list[Line | str]:
        """Return the legend: the runs under a heading for each kind, with a suffix for each name."""
        entries: list[Line | str] = []
        for kind, members in groupby(zip(runs, suffixes, strict=True), key=lambda member: member[0].causal):
            group = list(members)
            entries.append(_plural(kind, len(group)))
            entries += [Line(x=(), y=(), label=run.label + end, **self.looks[run.key]) for run, end in group]
        return entries


def bands(runs: Sequence[Compared], rows: Mapping[str, pd.DataFrame]) -> str:
    """Describe what the bands of runs and of groups of seeds mean, or why there is none.

    Args:
        runs: those that are drawn.
        rows: the drawn rows of each, by its label.
    """
    single = [rows[run.label] for run in runs if not isinstance(run, SeedGroup)]
    texts = [intervals(concatenated(single))] if single else []
    if len(single) < len(runs):
        texts.append(f"{'band of seeds' if single else 'band'}: {INTERVAL}, each a thin line")
    return "; ".join(filter(None, texts))


def legend_width(legend: Sequence[Line | str]) -> float:
    """Return the width of the legend in inches, with room for headings."""
    labels = [entry.label for entry in legend if isinstance(entry, Line)]
    return math.ceil((len(labels) + len(KINDS)) / LEGEND_ROWS) * (0.7 + 0.085 * max(map(len, labels)))


def count_kinds(runs: Sequence[Compared]) -> str:
    """Return the number of runs of each kind as text."""
    kinds = [(kind, len(list(members))) for kind, members in groupby(runs, key=lambda run: run.causal)]
    return ", ".join(f"{number} {_plural(kind, number)}" for kind, number in kinds)


def _plural(kind: bool | None, number: int) -> str:
    return f"{KINDS[kind]}{'s' * (number > 1)}" if kind is not None else "of unknown kind"


def end_checkpoints(runs: Sequence[Compared]) -> tuple[str, list[str]]:
    """Return the checkpoints of the profiles as text, and a suffix for the name of each run if they differ."""
    last = {run.steps[-1] for run in runs if not run.finished}
    if not last:
        return "finished models", [""] * len(runs)
    if len(last) == 1:
        return f"at step {last.pop():,}{' or finished' * any(run.finished for run in runs)}", [""] * len(runs)
    return "at the last measured step", ["" if run.finished else f", step {run.steps[-1]:,}" for run in runs]
