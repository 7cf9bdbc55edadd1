"""What the terminal says of runs: one screen of summary each, alerts and insights, and several in a
table.
"""

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from repdyn.store.schema import FINISHED
from repdyn.utils.console import PrintableConsole
from repdyn.utils.numbers import NO_VALUE, short_count, short_value
from repdyn.utils.printing import plural
from repdyn.views.judging import DescribedRun, Insight, RunInsights, Severity, Status
from repdyn.views.judging.findings import (
    COLOURS,
    JUDGED,
    MARKS,
    MEANINGS,
    VERSION,
    Finding,
    JudgedRun,
    findings_of,
    findings_over_seeds,
    on_kind,
)
from repdyn.views.tables.frames import concatenated, missing_values
from repdyn.views.tables.runs import MeasuredRun, differences
from repdyn.views.tables.seeds import SeedGroup
from repdyn.views.tables.series import MetricSeries, log_spaced, series_without_repeats
from repdyn.views.tables.style import KINDS, of_stack, subset_title
from repdyn.views.tables.texts import (
    copies_line,
    cost_line,
    failure_line,
    probe_loss_line,
    sampling,
)
from repdyn.views.tables.words import alert_lines

_BARS_OF_A_CURVE = 7
_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """Return a curve as a bar for each value, on a scale from ``low`` to ``high``.

    NaN becomes a blank; where low equals high, each bar is the lowest.

    >>> sparkline([0.0, 0.5, math.nan, 1.0], 0.0, 1.0), sparkline([0.4, 0.5], 0.0, 1.0)
    ('▁▅ █', '▄▅')
    """
    unit = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join(
        " " if math.isnan(value) else _BARS[int((value - low) / unit + 0.5)] for value in values
    )


MAX_CURVES = 3
MAX_LAYERS = 13


def layer_table(shown: Sequence[MetricSeries], *, sparklines: bool) -> Table:
    """Return a table of some metrics of a run with a line for each layer, or for :data:`MAX_LAYERS`
    at equal distances.

    All curves have their bars at the same steps, and those of a column one scale.
    """
    layers = sorted({layer for series in shown for layer in series.layers})
    places = np.linspace(0, len(layers) - 1, min(len(layers), MAX_LAYERS)).round().astype(int)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("\nlayer", justify="right", no_wrap=True)
    for series in shown:
        # brackets in a name would be read as markup
        heading = f"{series.metric}, {series.subset}"
        table.add_column(
            Text(f"{heading}\n{'first max last' if len(series.steps) > 1 else 'value'}"),
            no_wrap=True,
        )
    measured = sorted({step for series in shown for step in series.steps})
    steps = [measured[index] for index in log_spaced(measured, _BARS_OF_A_CURVE)]
    for layer in (layers[place] for place in places):
        cells = [_cell(series, layer, steps if sparklines else ()) for series in shown]
        table.add_row(str(layer), *cells)
    return table


def _cell(series: MetricSeries, layer: int, steps: Sequence[int]) -> str:
    """Return the values of a layer at the ends and the highest, or the only one; a dash without
    any, empty without the layer."""
    if layer not in series.layers:
        return ""
    curve = series.values[series.layers.index(layer)].tolist()
    valued = [value for value in curve if not math.isnan(value)]
    if not valued:
        return NO_VALUE
    if len(curve) == 1:
        return short_value(curve[0])
    numbers = " ".join(short_value(value) for value in (curve[0], max(valued), curve[-1]))
    by_step = dict(zip(series.steps, curve, strict=True))
    bars = sparkline(
        [by_step.get(step, math.nan) for step in steps],
        float(np.nanmin(series.values)),
        float(np.nanmax(series.values)),
    )
    return f"{numbers} {bars}".rstrip()


def alerts_of(run: DescribedRun) -> dict[str, Any]:
    """Return the fields that ``repdyn insights --alerts --json`` prints; docs/cli.md describes
    them.
    """
    about = {"run": run.name, "probe": run.probe, "stack": run.stack, "steps": run.steps}
    alerts = [{**asdict(alert), "message": alert.message} for alert in run.alerts]
    return {**about, "rules": [rule.name for rule in run.rules], "alerts": alerts}


def print_alerts(runs: Iterable[DescribedRun], console: Console | None = None) -> None:
    """Print a line for each run, and one for each rule and metric at each step with an alert."""
    console = console or PrintableConsole()
    for run in runs:
        lines = alert_lines(run.alerts, finished=run.finished)
        n_alerts = f"{len(lines)} {plural(len(lines), 'alert')}" if lines else "no alert"
        checkpoints = plural(len(run.steps), "checkpoint")
        count = f"{n_alerts}; {len(run.steps)} {checkpoints}, {len(run.rules)} rules"
        print_line(console, f"{of_stack(run.name, run.stack)} (probe {run.probe[:8]}): {count}")
        for line in lines:
            print_line(console, f"  {line}")


def print_line(console: Console, line: str) -> None:
    """Print a text in one line of any length."""
    console.print(Text(line), soft_wrap=True)


STATUS_STYLES: Mapping[Status, str] = {
    "healthy": "green",
    "watch": "yellow",
    "failed": "bold red",
    "unknown": "dim",
}
_SEVERITY_STYLES: Mapping[Severity, str] = {"failed": "bold red", "watch": "yellow", "note": "dim"}
_MAX_WIDTH = 80


def print_insights(runs: Sequence[RunInsights], compared: Sequence[Insight] = ()) -> None:
    """Print the status and the statements of each run, and those on several, at most 80 columns
    wide.
    """
    console = PrintableConsole()
    width = min(_MAX_WIDTH, console.width)
    for run in runs:
        heading = Text(f"{of_stack(run.run, run.stack)} (probe {run.probe[:8]}): ")
        console.print(heading.append(run.status, STATUS_STYLES[run.status]), width=width)
        is_told = bool(run.statements) and run.reason == run.statements[0].sentence
        console.print(_statements(run.statements, None if is_told else run.reason), width=width)
    if compared:
        console.print(Text("these runs compared"), width=width)
        console.print(_statements(compared), width=width)


def _statements(statements: Sequence[Insight], reason: str | None = None) -> Table:
    lines = Table.grid(padding=(0, 1, 0, 0))
    if reason is not None:
        lines.add_row("  reason", Text(reason))
    for statement in statements:
        severity = Text(f"  {statement.severity}", _SEVERITY_STYLES[statement.severity])
        lines.add_row(severity, Text(statement.sentence))
    return lines


MAX_CLOSING_LINES = 12
"""Number of lines that end what a training prints."""
_MAX_TOLD = 3


def print_closing(
    runs: Sequence[DescribedRun], *, store: str | Path, report: Path | None = None, console: Console
) -> None:
    """Print the last words on a run, in at most twelve lines: a headline for each stack, what else
    changed, how many published findings are shown, the report and the next command."""
    folder = shlex.quote(str(store))
    command = f"repdyn insights {folder}"
    headlines = [
        Text(run.insights.headline, f"bold {STATUS_STYLES[run.insights.status]}") for run in runs
    ]
    told: Sequence[Insight] = ()
    if len(runs) == 1:
        # the headline has the first
        told = runs[0].insights.statements[1 : 1 + _MAX_TOLD]
    changes = [Text(f"  {statement.sentence}") for statement in told]
    last = _lines(
        [
            *(findings_line(run.findings, f"{command} --findings") for run in runs[:1]),
            f"report: {report}" if report is not None else None,
            f"next: {command}",
        ]
    )
    _print_within(console, headlines, changes, list(last))


def _print_within(
    console: Console, headlines: Sequence[Text], changes: Sequence[Text], last: Sequence[Text]
) -> None:
    """Print headlines and last lines, and between them as many changes as leave it at
    :data:`MAX_CLOSING_LINES` lines."""
    width = min(_MAX_WIDTH, console.width)
    n_lines = 1 + len(last) + sum(len(line.wrap(console, width)) for line in headlines)
    console.print()
    for line in headlines:
        console.print(line, highlight=False)
    for line in changes:
        n_lines += len(line.wrap(console, width))
        if n_lines <= MAX_CLOSING_LINES:
            console.print(line, highlight=False, width=width)
    for line in last:
        console.print(line, soft_wrap=True)


def findings_line(judged: Sequence[Finding], command: str) -> str | None:
    """Return how many published findings have each verdict, and what explains them; None without
    any.
    """
    if not judged:
        return None
    counts = Counter(finding.verdict for finding in judged)
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    return f"published findings: {verdicts}; {command}"


def print_findings(runs: Iterable[DescribedRun], console: Console | None = None) -> None:
    """Print the verdicts on published findings of each run, with their evidence, at most 80 columns
    wide.
    """
    console = console or PrintableConsole()
    width = min(_MAX_WIDTH, console.width)
    for run in runs:
        print_line(console, f"{of_stack(run.name, run.stack)} (probe {run.probe[:8]})")
        if not run.findings:
            print_line(console, "  no metric was measured that a published finding is about")
        for part in _findings(run.findings):
            console.print(part, highlight=False, width=width)


_MAX_ALERTS = 3
_MAX_NAMED = 6
_MAX_REASONS = 3


def print_summary(
    run: DescribedRun,
    *,
    figures: Sequence[Path] = (),
    tracking_seconds: float | None = None,
    total_seconds: float | None = None,
    console: Console | None = None,
) -> None:
    """Print one screen about a run, 80 columns wide.

    Each curve of a layer has at most seven bars, on the scale of its column. What a sweep stored of
    its cost and its failures has a line each. Without a terminal there are no colours; an encoding
    other than Unicode gets plain ASCII without the curves. ``figures`` are files written, whose
    folder is named; of the seconds of the training, measuring took some.
    """
    console = console or PrintableConsole()
    keys = _shown_first(run)
    curves = [run.series[key] for key in keys[:MAX_CURVES]]
    parts = [
        *_heading(run),
        layer_table(curves, sparklines=not console.options.ascii_only),
        Text(),
        *_lines([f"also measured: {_some(keys[MAX_CURVES:])}" if keys[MAX_CURVES:] else None]),
        *_alert_texts(run),
        *_lines(_reasons(run), style="yellow"),
        *_lines([failure_line(run.frame), copies_line(run.frame)], "warning: ", "yellow"),
        *_lines([cost_line(run.frame), _overhead(tracking_seconds, total_seconds)]),
        *_written(figures),
    ]
    for part in parts:
        console.print(part, highlight=False)


def _heading(run: DescribedRun) -> Iterator[Text]:
    """Yield what was run, how far, and how it was measured."""
    name = of_stack(run.name, run.stack), "bold"
    yield Text.assemble(name, f"  {run.rows['model'].iloc[0]} ({KINDS[run.causal]})")
    yield Text(f"{run.extent}; probe {run.probe[:8]}, {sampling(run.rows)}")
    yield from _lines([probe_loss_line(run.frame)])
    yield Text()


def _alert_texts(run: DescribedRun) -> Iterator[Text]:
    """Yield the first alerts of a run, and the number of further ones.

    A run that is neither watched nor failed yields their number alone: sound trainings raise alerts
    in their first steps.
    """
    lines = alert_lines(run.alerts, finished=run.finished)
    is_alarming = run.insights.status in {"watch", "failed"}
    told = lines[:_MAX_ALERTS] if is_alarming else []
    yield from _lines(told, "alert: " if run.finished else "alert at ", "red")
    n_more = len(lines) - len(told)
    count = f"{n_more} {plural(n_more, 'alert')}"
    if told:
        count = f"and {n_more} more {plural(n_more, 'alert')}"
    yield from _lines([f"{count}, which repdyn insights --alerts lists" if n_more else None])


def _reasons(run: DescribedRun) -> list[str]:
    """Return why values are missing, the commonest reasons first."""
    missing = sorted(missing_values(run.rows), key=lambda lack: -len(lack.metrics) * lack.number)
    return [
        f"no value in {lack.number:,} of {lack.of:,} cells of {_some(lack.metrics)}: {lack.reasons}"
        for lack in missing[:_MAX_REASONS]
    ]


def _written(figures: Sequence[Path]) -> Iterator[Text]:
    """Yield the folders of the figures that were written."""
    folders = sorted({str(Path(path).parent) for path in figures})
    if folders:
        yield Text(f"figures: {', '.join(folders)} ({len(figures)} files)", overflow="fold")


def _shown_first(run: DescribedRun) -> list[tuple[str, str]]:
    """Return the metrics and subsets of a run in the order in which its summary shows them: the
    dimension with and without repeats first, where both were measured."""
    beside = series_without_repeats("two_nn", run.series)
    if beside is None or ("two_nn", "all") not in run.series:
        return [*run.series]
    both = [("two_nn", "all"), beside.key]
    return [*both, *(key for key in run.series if key not in both)]


def _lines(texts: Sequence[str | None], before: str = "", style: str = "") -> Iterator[Text]:
    yield from (Text(f"{before}{text}", style) for text in texts if text)


def _findings(judged: Sequence[Finding]) -> Iterator[Text | Padding]:
    """Yield each verdict with its evidence; subsets of one verdict are joined, with the evidence of
    the first.
    """
    if not judged:
        return
    yield Text(f"published findings, criteria version {VERSION}")
    all_alike = len({(finding.verdict, finding.summary) for finding in judged}) == 1
    for _, group in groupby(judged, key=lambda finding: all_alike or _shared_line_key(finding)):
        first, *others = group
        subsets = " and ".join(finding.subset for finding in (first, *others))
        of = f"all {len(judged)}" if all_alike else f"{MEANINGS[first.name]}, {subsets}"
        yield Text.assemble((first.verdict, f"bold {COLOURS[first.verdict]}"), f": {of}")
        differ = any(finding.summary != first.summary for finding in others)
        subset = f"{first.subset}: " if differ else ""
        yield Padding(Text(f"{subset}{first.summary}", style="dim"), (0, 0, 0, 2))


def _shared_line_key(finding: Finding) -> tuple[str, ...]:
    """Return a key that is equal for findings that share a line.

    Both clouds of a dimension have a line each, since they may differ under the same verdict.
    """
    of_one_cloud = (finding.subset,) if finding.name == "dimension" else ()
    return (finding.name, finding.verdict, *of_one_cloud)


def _some(keys: Iterable[tuple[str, str]]) -> str:
    """Return the first metrics with their subsets, and how many more there are."""
    shown = [f"{metric} ({subset})" for metric, subset in keys]
    if len(shown) > _MAX_NAMED:
        shown[_MAX_NAMED:] = [f"{len(shown) - _MAX_NAMED} more, which repdyn report shows"]
    return ", ".join(shown)


def _overhead(tracking: float | None, total: float | None) -> str | None:
    """Say how many seconds measuring took, and of how many of the training."""
    if tracking is None:
        return None
    share = f", {tracking / total:.1%} of the training's {total:,.1f} s" if total else ""
    return f"tracking took {tracking:,.1f} s{share}"


MAX_WIDTH = 100

_KINDS = {True: "dec", False: "enc", None: "?"}
_FEWER = "*"
_HEADINGS = {
    "bell": "bell\nall ns",
    "uniform": "unif.\nall ns",
    "growth": "growth\nall ns",
    "dimension": "dim.\nall",
}


def print_comparison(
    runs: Sequence[MeasuredRun], seeds: Sequence[SeedGroup] = (), *, console: Console | None = None
) -> None:
    """Print a table with one line for each run: what it is, how far it was measured, its means over
    layers at the end.

    Seeds of one model have a line for themselves below: means over the seeds, and verdicts by the
    intervals over them.

    Marks show the verdict on each published finding, and means over fewer layers than the run has;
    they are explained below the table. A name is broken where it is too wide: no line is wider than
    100 columns.
    """
    console = console or PrintableConsole()
    width = min(console.width, MAX_WIDTH)
    has_failed = any(run.n_failed for run in runs)
    beside = [series_without_repeats("two_nn", run.series) for run in runs]
    distinct = dict.fromkeys(series.subset for series in beside if series is not None)
    lines = [_line_of(run, has_failed, bool(distinct)) for run in (*runs, *seeds)]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for number, heading in enumerate(lines[0]):
        # numbers behind the size are justified by hand: their digits stay below each other where
        # only some have a mark
        justify = "right" if 2 <= number < 5 else "left"
        table.add_column(
            heading,
            justify=justify,
            no_wrap=number > 0,
            overflow="fold" if number == 0 else "ellipsis",
        )
    for line in lines:
        table.add_row(*line.values())
    console.print(table, highlight=False, width=width)
    for line in _legend(runs, distinct):
        console.print(Text(line, style="dim"), highlight=False, width=width)
    if difference := differences(runs):
        warning = f"warning: these values do not compare, {difference}"
        console.print(Text(warning, style="yellow"), highlight=False, width=width)


def _legend(runs: Sequence[MeasuredRun], distinct: Iterable[str]) -> list[str]:
    """Return the lines below a table of runs, with the subsets ``distinct`` that dimensions are
    shown of beside all tokens."""
    about = " or ".join(f"{subset_title(subset)} ({subset})" for subset in distinct)
    rows = concatenated([run.rows for run in runs])
    rows = rows.loc[rows["metric"].isin(JUDGED)]
    heads = [heading.split("\n")[0] for heading in _HEADINGS.values()]
    return [
        "",
        ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
        + f" (criteria version {VERSION})",
        *(f"{head:<7}{MEANINGS[name]}" for head, name in zip(heads, _HEADINGS, strict=True)),
        f"ns     {subset_title('no_sink')} (no_sink)",
        *([f"di     {about}"] if about else []),
        f"anisotropy, two_nn: means over layers at the last checkpoint; {_FEWER} over fewer than "
        "were measured",
        *([f"sampling: {sampling(rows)}"] if len(rows) else []),
    ]


def _line_of(run: MeasuredRun, with_failed: bool, with_distinct: bool) -> dict[str, str | Text]:
    """Return the cells of a run, or of seeds, by the headings of their columns."""
    if isinstance(run, SeedGroup):
        seeds = [JudgedRun(member.frame, member.rows) for member in run.members]
        judged = findings_over_seeds(seeds)
    else:
        judged = findings_of(JudgedRun(run.frame, run.rows))
    anisotropy, without_sink, dimension = (
        _mean_at_end(run.series.get(key))
        for key in (("anisotropy", "all"), ("anisotropy", "no_sink"), ("two_nn", "all"))
    )
    dimensions = {"two_nn\n   all": f"  {dimension}"}
    headings = dict(_HEADINGS)
    if with_distinct:
        on_distinct = _mean_at_end(series_without_repeats("two_nn", run.series))
        dimensions = {"two_nn\n all    di": f"{dimension:<5} {on_distinct}"}
        headings["dimension"] = "dim.\nall di"
    marks = {
        heading: Text.assemble(
            *(
                (f" {MARKS[finding.verdict]} ", COLOURS[finding.verdict])
                for finding in on_kind(judged, run.causal)
                if finding.name == name
            )
        )
        for name, heading in headings.items()
    }
    done = {"\ndone": f"{len(run.steps)}"}
    if with_failed:
        done = {"done/\nfailed": f"{len(run.steps)}/{run.n_failed}"}
    return {
        "\nmodel": Text(run.label),
        "\nkind": _KINDS[run.causal],
        "\nsize": "?" if run.parameters is None else short_count(run.parameters),
        **done,
        "last\nstep": FINISHED if run.finished else f"{run.steps[-1]:,}",
        "anisotropy\n all    ns": f"{anisotropy:<5} {without_sink}",
        **dimensions,
        **marks,
    }


def _mean_at_end(series: MetricSeries | None) -> str:
    """Return the last mean over layers in four characters, and a mark if it is over fewer
    layers.
    """
    if series is None or not series.layer_mean.n_used:
        return short_value(math.nan)
    value = short_value(series.layer_mean.mean.iloc[-1])
    return value + _FEWER if series.layer_mean.is_partial else value
