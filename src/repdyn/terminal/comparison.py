"""Several runs in the terminal: one line each, and one for seeds of one model, with the published findings as marks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from repdyn.store.schema import FINISHED
from repdyn.tables.designs import sampling_of_runs
from repdyn.tables.effects import Verdict
from repdyn.tables.findings import COLOURS, MEANINGS, VERSION, Finding, findings, findings_over_seeds
from repdyn.tables.frames import LayerMean, by_stack
from repdyn.tables.runs import MeasuredRun, differences, listed, measured_runs, never_measured
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


def print_comparison(frame: pd.DataFrame, seeds: Sequence[SeedGroup] = (), *, console: Console | None = None) -> None:
    """Print a table with one line for each run: what it is, how far it was measured, its means over layers at the end.

    Seeds of one model have a line for themselves below: means over the seeds, and verdicts by the intervals over them.

    Marks show the verdict on each published finding, and means over fewer layers than the run has; they are explained
    below the table. A long name is shortened in its middle where it is too wide: no line is wider than 100 columns.
    """
    console = console or PrintableConsole()
    runs = measured_runs(frame)
    width = min(console.width, MAX_WIDTH)
    runs = [replace(run, label=in_one_line(run.label)) for run in runs]
    groups = [replace(group, label=in_one_line(group.label)) for group in seeds]
    console.print(_table(runs, groups, frame, console, width), highlight=False, width=width)
    warnings = _notes(never_measured(frame), differences(runs))
    for line in [*_legend(), *_sampled(runs), *_fewer([*runs, *groups]), *warnings]:
        console.print(line, highlight=False, width=width)


def _table(
    runs: Sequence[MeasuredRun], groups: Sequence[SeedGroup], frame: pd.DataFrame, console: Console, width: int
) -> Table:
    several = any(run.n_failed for run in runs)
    frames = {run.name: by_stack(frame.loc[frame["run"] == run.name]) for run in runs}
    cells = [[*_numbers(run, with_failed=several), *_marks(findings(frames[run.name][run.stack]))] for run in runs]
    for group in groups:
        cells.append([*_numbers(group, with_failed=several), *_marks(findings_over_seeds(group.frames(frame)))])
    nameless = _filled([""] * len(cells), cells, several)
    taken = Measurement.get(console, console.options.update(width=width), nameless).maximum
    room = len("model") + width - taken
    names = shortened([run.label for run in (*runs, *groups)], room, "..." if console.options.ascii_only else "…")
    return _filled(names, cells, several)


def shortened(names: Sequence[str], width: int, ellipsis: str) -> list[str]:
    """Return names of at most ``width`` characters, cut near their middle such that different ones stay different.

    If that is impossible they are wrapped, preferably at hyphens.

    >>> shortened(["pythia-70m", "bloom-560m-intermediate", "bloom-560m-intermodal"], 12, "...")
    ['pythia-70m', 'bloom...iate', 'bloom...odal']
    """
    room = width - len(ellipsis)
    for n_head in sorted(range(room + 1), key=lambda n_head: abs(2 * n_head - room - 1)):
        tails = [name[len(name) - (room - n_head) :] for name in names]
        cut = [
            name if len(name) <= width else name[:n_head] + ellipsis + tail
            for name, tail in zip(names, tails, strict=True)
        ]
        if len(set(cut)) == len(set(names)):
            return cut
    return ["\n".join(textwrap.wrap(name, width)) for name in names]


def _filled(names: Sequence[str], cells: Sequence[Sequence[str | Text]], several: bool) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("\nmodel", overflow="fold")
    table.add_column("\nkind", no_wrap=True)
    for heading in ("\nsize", "done/\nfailed" if several else "\ndone", "last\nstep"):
        table.add_column(heading, justify="right", no_wrap=True)
    # justified by hand: their digits stay below each other where only some have a mark
    for heading in ("anisotropy\n all    ns", "two_nn\n   all", *_HEADINGS.values()):
        table.add_column(heading, no_wrap=True)
    for name, row in zip(names, cells, strict=True):
        table.add_row(name, *row)
    return table


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


def _notes(missing: list[str], difference: str | None) -> list[Text]:
    notes = [f"nothing measured of {', '.join(missing)}"] if missing else []
    notes += [f"these values do not compare, {difference}"] if difference else []
    return [Text(in_one_line(f"warning: {note}"), style="yellow") for note in notes]
