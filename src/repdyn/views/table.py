"""Several runs in the terminal: one line each, with the published findings as marks."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repdyn.records import FINISHED
from repdyn.views.findings import COLOURS, MEANINGS, Verdict, findings
from repdyn.views.frames import layer_mean, of_metric
from repdyn.views.runs import MeasuredRun, differences, measured_runs, never_measured
from repdyn.views.style import plain, short_count, short_value, subset_title

MAX_WIDTH = 100
MARKS: dict[Verdict, str] = {"shown": "+", "not shown": "-", "cannot be judged": "?"}
_KINDS = {True: "dec", False: "enc", None: "?"}
_HEADINGS = {"shape": "shape\nall ns", "growth": "growth\nall ns", "dimension": "dim.\nall"}


def print_comparison(frame: pd.DataFrame, *, console: Console | None = None) -> None:
    """Print a table with one line for each run: what it is, how far it was measured, its means over layers at the end.

    A mark stands for the verdict on each published finding, explained below the table.

    Args:
        frame: rows of several runs, each measured on one probe.
        console: where to; standard output unless given. No line is wider than 100 columns.

    Raises:
        ValueError: a run with several models or probes; no run with a measurement.
    """
    console = console or Console()
    runs = measured_runs(frame)
    width = min(console.width, MAX_WIDTH)
    runs = [replace(run, label=plain(run.label, console)) for run in runs]
    console.print(_table(runs), highlight=False, width=width)
    for line in [*_legend(), *_notes(never_measured(frame), differences(runs), console)]:
        console.print(line, highlight=False, width=width)


def _table(runs: list[MeasuredRun]) -> Table:
    several = any(run.n_failed for run in runs)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("\nmodel", overflow="fold")
    table.add_column("\nkind", no_wrap=True)
    numbers = ("\nsize", "done/\nfailed" if several else "\ndone", "last\nstep", "anisotropy\nall    ns", "two_nn\nall")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in _HEADINGS.values():
        table.add_column(heading, no_wrap=True)
    for run in runs:
        table.add_row(*_numbers(run, with_failed=several), *_marks(run))
    return table


def _numbers(run: MeasuredRun, with_failed: bool) -> list[str]:
    return [
        run.label,
        _KINDS[run.causal],
        "?" if run.parameters is None else short_count(run.parameters),
        f"{len(run.steps)}/{run.n_failed}" if with_failed else str(len(run.steps)),
        FINISHED if run.finished else f"{run.steps[-1]:,}",
        f"{_mean_at_end(run, 'anisotropy', 'all')}  {_mean_at_end(run, 'anisotropy', 'no_sink')}",
        _mean_at_end(run, "two_nn", "all"),
    ]


def _mean_at_end(run: MeasuredRun, metric: str, subset: str) -> str:
    """Four characters of the last mean over layers, as the figures draw it."""
    mean = pd.Series(dtype=float)
    if len(of_metric(run.rows, metric, subset)):
        mean = layer_mean(run.rows, metric, subset).mean
    return short_value(math.nan if mean.empty else mean.iloc[-1])


def _marks(run: MeasuredRun) -> list[Text]:
    """One cell for each finding, in it one mark for each subset it is judged on."""
    found = findings(run.rows)
    cells = []
    for name in _HEADINGS:
        marks = [(f" {MARKS[one.verdict]} ", COLOURS[one.verdict]) for one in found if one.name == name]
        cells.append(Text.assemble(*marks))
    return cells


def _legend() -> list[Text]:
    marks = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
    ends = "anisotropy, two_nn: means over layers at the last checkpoint"
    heads = [heading.split("\n")[0] for heading in _HEADINGS.values()]
    meanings = [f"{head:<7}{MEANINGS[name]}" for head, name in zip(heads, _HEADINGS, strict=True)]
    return [
        Text(),
        *(Text(line, style="dim") for line in (marks, *meanings, f"ns     {subset_title('no_sink')} (no_sink)", ends)),
    ]


def _notes(missing: list[str], difference: str | None, console: Console) -> list[Text]:
    notes = [f"nothing measured of {', '.join(missing)}"] if missing else []
    notes += [f"these values do not compare, {difference}"] if difference else []
    return [Text(plain(f"warning: {note}", console), style="yellow") for note in notes]
