"""Several runs in the terminal: one line each, and one for seeds of one model, with the published findings as marks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repdyn.store.schema import FINISHED
from repdyn.tables.designs import sampling_of_runs
from repdyn.tables.effects import Verdict
from repdyn.tables.findings import COLOURS, MEANINGS, VERSION, Finding, findings, findings_over_seeds
from repdyn.tables.frames import LayerMean
from repdyn.tables.runs import MeasuredRun, differences, listed
from repdyn.tables.seeds import SeedGroup
from repdyn.tables.style import short_count, short_value, subset_title
from repdyn.utils.console import PrintableConsole
from repdyn.utils.printing import in_one_line

MAX_WIDTH = 100
MARKS: dict[Verdict, str] = {"shown": "+", "not shown": "-", "cannot be judged": "?"}
_KINDS = {True: "dec", False: "enc", None: "?"}
_FEWER = "*"
_MEANS = (("anisotropy", "all"), ("anisotropy", "no_sink"), ("two_nn", "all"))
_HEADINGS = {"bell": "bell\nall ns", "uniform": "unif.\nall ns", "growth": "growth\nall ns", "dimension": "dim.\nall"}


def print_comparison(
    runs: Sequence[MeasuredRun], seeds: Sequence[SeedGroup] = (), *, console: Console | None = None
) -> None:
    """Print a table with one line for each run: what it is, how far it was measured, its means over layers at the end.

    Seeds of one model have a line for themselves below: means over the seeds, and verdicts by the intervals over them.

    Marks show the verdict on each published finding, and means over fewer layers than the run has; they are explained
    below the table. A name is broken where it is too wide: no line is wider than 100 columns.
    """
    console = console or PrintableConsole()
    width = min(console.width, MAX_WIDTH)
    several = any(run.n_failed for run in runs)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("\nmodel", overflow="fold")
    table.add_column("\nkind", no_wrap=True)
    for heading in ("\nsize", "done/\nfailed" if several else "\ndone", "last\nstep"):
        table.add_column(heading, justify="right", no_wrap=True)
    # justified by hand: their digits stay below each other where only some have a mark
    for heading in ("anisotropy\n all    ns", "two_nn\n   all", *_HEADINGS.values()):
        table.add_column(heading, no_wrap=True)
    for run in (*runs, *seeds):
        is_group = isinstance(run, SeedGroup)
        found = findings_over_seeds([member.frame for member in run.members]) if is_group else findings(run.frame)
        table.add_row(Text(in_one_line(run.label)), *_numbers(run, with_failed=several), *_marks(found))
    console.print(table, highlight=False, width=width)
    difference = differences(runs)
    warning = Text(in_one_line(f"warning: these values do not compare, {difference}"), style="yellow")
    for line in [*_legend(), *_sampled(runs), *_fewer([*runs, *seeds]), *([warning] if difference else [])]:
        console.print(line, highlight=False, width=width)


def _numbers(run: MeasuredRun, with_failed: bool) -> list[str]:
    anisotropy, without_sink, dimension = (_mean_at_end(run, *mean) for mean in _MEANS)
    return [
        _KINDS[run.causal],
        "?" if run.parameters is None else short_count(run.parameters),
        f"{len(run.steps)}/{run.n_failed}" if with_failed else str(len(run.steps)),
        FINISHED if run.finished else f"{run.steps[-1]:,}",
        f"{anisotropy:<5} {without_sink}",
        f"  {dimension}",
    ]


def _mean_at_end(run: MeasuredRun, metric: str, subset: str) -> str:
    """Return the last mean over layers in four characters, and a mark if it is over fewer layers."""
    means = _means(run, metric, subset)
    if means is None:
        return short_value(math.nan)
    return short_value(means.mean.iloc[-1]) + _FEWER * (means.n_used < means.n_layers)


def _means(run: MeasuredRun, metric: str, subset: str) -> LayerMean | None:
    """Return the mean over layers; None if there is none."""
    means = run.series[metric, subset].layer_mean if (metric, subset) in run.series else None
    return means if means and means.n_used else None


def _fewer(runs: Sequence[MeasuredRun]) -> list[Text]:
    """Explain the mark on a mean: how many layers the marked means of each run are over."""
    by_count: dict[str, list[str]] = {}
    for run in runs:
        found = {mean: means for mean in _MEANS if (means := _means(run, *mean)) and means.n_used < means.n_layers}
        counts = {mean: f"{means.n_used} of {means.n_layers}" for mean, means in found.items()}
        alike = len(set(counts.values())) == 1
        for mean, count in counts.items():
            name = run.label if alike else f"{run.label} {' '.join(mean)}"
            if name not in by_count.setdefault(count, []):
                by_count[count].append(name)
    if not by_count:
        return []
    text = f"{_FEWER} a mean over fewer layers than the run has: {listed(by_count)}"
    return [Text(in_one_line(text), style="dim")]


def _marks(found: Sequence[Finding]) -> list[Text]:
    """Return a cell for each finding, with a mark for each subset it is judged on."""
    cells = []
    for name in _HEADINGS:
        marks = [(f" {MARKS[one.verdict]} ", COLOURS[one.verdict]) for one in found if one.name == name]
        cells.append(Text.assemble(*marks))
    return cells


def _legend() -> list[Text]:
    marks = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items()) + f" (criteria version {VERSION})"
    ends = "anisotropy, two_nn: means over layers at the last checkpoint"
    heads = [heading.split("\n")[0] for heading in _HEADINGS.values()]
    meanings = [f"{head:<7}{MEANINGS[name]}" for head, name in zip(heads, _HEADINGS, strict=True)]
    return [
        Text(),
        *(Text(line, style="dim") for line in (marks, *meanings, f"ns     {subset_title('no_sink')} (no_sink)", ends)),
    ]


def _sampled(runs: Sequence[MeasuredRun]) -> list[Text]:
    """Describe the sampling of the metrics whose means are in the table."""
    metrics = [metric for metric, _ in _MEANS]
    rows = {run.label: run.rows.loc[run.rows["metric"].isin(metrics)] for run in runs}
    if all(of_one.empty for of_one in rows.values()):
        return []
    return [Text(in_one_line(f"sampling: {sampling_of_runs(rows)}"), style="dim")]
