"""What the terminal says of a run: its summary on one screen, alerts, insights, and the last lines of a training."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from repdyn.alerts import ALERT_COLUMNS, Alert, Rule, find_alerts, stored_rules
from repdyn.diagnosis import RunInsights, Severity, Status
from repdyn.store import Store
from repdyn.store.schema import FINISHED, PROBE_LOSS
from repdyn.tables.designs import sampling
from repdyn.tables.effects import Verdict
from repdyn.tables.findings import COLOURS, MEANINGS, VERSION, Finding, findings
from repdyn.tables.frames import (
    by_stack,
    causality,
    drop_first_comparison,
    in_lines_of_their_own,
    is_finished,
    layer_mean,
    loss_of_run,
    measurements,
    metrics_of,
    most_common_reason,
    of_metric,
    stack_of,
    undefined,
    without_distinct_embeddings,
)
from repdyn.tables.lines import alert_lines, copies_line, cost_line, failure_line, probe_loss_line
from repdyn.tables.runs import is_measured, select
from repdyn.tables.style import KINDS, of_stack, short_count, short_value
from repdyn.terminal.curves import (
    MAX_CURVES,
    curves_of,
    layer_table,
    measures_more_than_default,
    print_every_metric,
    sparkline,
)
from repdyn.utils.console import PrintableConsole
from repdyn.utils.printing import in_one_line


def print_alerts(
    store: Store,
    runs: Sequence[str] | None = None,
    *,
    probe: str | None = None,
    rules: Sequence[Rule] | None = None,
    console: Console | None = None,
) -> int:
    """Print the alerts of the runs of a store, or of some runs on one probe, by rules or by those that each run was
    watched by; return the number of lines with an alert."""
    console = console or PrintableConsole()
    n_lines = 0
    for (run, found), frame in select(store, runs, probe, columns=ALERT_COLUMNS).items():
        heading = f"{run} (probe {found[:8]})"
        if not is_measured(frame):
            _print(console, f"{heading}: nothing measured")
            continue
        used_rules = stored_rules(store.alerts_path(run)) if rules is None else rules
        lines = alert_lines(find_alerts(frame, used_rules))
        n_steps = frame.loc[frame["layer"].notna(), "step"].nunique()
        scope = f"{n_steps} checkpoint{'s' * (n_steps > 1)}, {len(used_rules)} rules"
        _print(console, f"{heading}: {f'{len(lines)} alerts' if lines else 'no alert'}; {scope}")
        for line in lines:
            _print(console, f"  {line}")
        n_lines += len(lines)
    return n_lines


def _print(console: Console, line: str) -> None:
    console.print(Text(in_one_line(line)), soft_wrap=True)


STATUS_STYLES: Mapping[Status, str] = {"healthy": "green", "watch": "yellow", "failed": "bold red", "unknown": "dim"}
_SEVERITY_STYLES: Mapping[Severity, str] = {"failed": "bold red", "watch": "yellow", "note": "dim"}
_MAX_WIDTH = 80


def print_insights(found: Sequence[RunInsights]) -> None:
    """Print the status and the statements of each run, at most 80 columns wide."""
    console = PrintableConsole()
    width = min(_MAX_WIDTH, console.width)
    for each in found:
        heading = Text(in_one_line(f"{of_stack(each.run, each.stack)} (probe {each.probe[:8]}): "))
        console.print(heading.append(each.status, STATUS_STYLES[each.status]), width=width)
        lines = Table.grid(padding=(0, 1, 0, 0))
        if not each.statements or each.reason != each.statements[0].sentence:
            lines.add_row("  reason", Text(in_one_line(each.reason)))
        for statement in each.statements:
            lines.add_row(
                Text(f"  {statement.severity}", _SEVERITY_STYLES[statement.severity]),
                Text(in_one_line(statement.sentence)),
            )
        console.print(lines, width=width)


_WIDTH = 16
_DIMENSION, _ANISOTROPY = "two_nn", "anisotropy"


def print_closing(
    frame: pd.DataFrame,
    insights: Sequence[RunInsights],
    *,
    store: str | Path,
    report: Path | None = None,
    console: Console,
) -> None:
    """Print a headline for each stack of a run, its loss, dimension and anisotropy by step, and the next command.

    ``frame`` has all rows of the run on one probe. In an encoding other than Unicode there are no curves.
    """
    lines = [Text()]
    for insight in insights:
        lines.append(Text(in_one_line(insight.headline), style=f"bold {STATUS_STYLES[insight.status]}"))
        rows = by_stack(frame)[insight.stack]
        lines += [Text(in_one_line(line)) for line in course(rows, curves=not console.options.ascii_only)]
    for line in lines:
        console.print(line, highlight=False)
    if report is not None:
        _print(console, f"report: {report}")
    _print(console, f"next: repdyn insights {shlex.quote(str(store))}")


def course(frame: pd.DataFrame, *, curves: bool = True) -> list[str]:
    """Return a line for the loss, and for the means over layers of dimension and anisotropy: curve, ends and
    extremes."""
    loss = loss_of_run(frame)
    series = {"probe loss" if loss.name == PROBE_LOSS else "loss": loss.values}
    rows = measurements(frame)
    for name, metric in (("dimension", _DIMENSION), ("anisotropy", _ANISOTROPY)):
        if len(of_metric(rows, metric, "all")):
            series[name] = layer_mean(rows, metric, "all").mean
    return [_line(name, values, curves) for name, values in series.items() if len(values) > 1]


def _line(name: str, values: pd.Series, curves: bool) -> str:
    bars = f"{sparkline(values.index.tolist(), values.tolist(), _WIDTH):<{_WIDTH}}  " if curves else ""
    ends = f"{short_value(values.iloc[0])} to {short_value(values.iloc[-1])}"
    known: list[tuple[float, int]] = list(zip(values.tolist(), values.index.tolist(), strict=True))
    # the first step of those with the same value
    extremes = {"low": min(known), "high": max(known, key=lambda pair: pair[0])}
    where = [f"{what} {short_value(value).strip()} at {short_count(at)}" for what, (value, at) in extremes.items()]
    return f"{name:<10}  {bars}{ends}, {', '.join(where)}"


MAX_LINES = 36
_MIN_ROWS, _MAX_ROWS = 3, 13
_HEADING_LINES = 2
_MAX_ALERTS = 3
_OF_MISSING = ("step", "layer", "metric", "subset", "value", "reason", "on_distinct", "n_unique", "n_vectors")


def print_summary(
    frame: pd.DataFrame,
    *,
    figures: Sequence[Path] = (),
    alerts: Sequence[Alert] = (),
    found: Sequence[Finding] | None = None,
    tracking_seconds: float | None = None,
    kernel_seconds: float | None = None,
    total_seconds: float | None = None,
    console: Console | None = None,
) -> None:
    """Print one screen about a run: 80 columns and 36 lines, for which some layers are left out of a deep model.

    Where more than the default metrics were measured a line for each follows, with what it cost.

    Each curve of a layer has at most seven bars, from its own lowest to its own highest value, which are always among
    them. The layers with alerts, and those with the lowest and highest values, are never left out while there is room.
    What a sweep stored of its cost and its failures has a line each. Without a terminal there are no colours; an
    encoding other than Unicode gets plain ASCII without the curves.

    Args:
        frame: rows of one run; where its model has several stacks of one of them, which the head names.
        figures: files written, whose folder is named.
        alerts: of the run, of which the first few are printed.
        found: the published findings, if they have been judged already.
        tracking_seconds: wall-clock seconds spent measuring.
        kernel_seconds: how many of them went into the metrics themselves, the rest being the model's forward passes.
        total_seconds: wall-clock seconds of the training, measuring included.
        console: where to; standard output unless given.
    """
    console = console or PrintableConsole()
    frame = in_lines_of_their_own(frame)
    rows = measurements(frame)
    before = [*_head(rows), *_loss(frame), Text()]
    after = [
        Text(),
        *_findings(found or findings(frame)),
        *_left_out(rows),
        *_alerts(alerts),
        *_missing(rows),
        *_failed(frame),
        *_cost(frame),
        *_overhead(tracking_seconds, kernel_seconds, total_seconds),
        *_figures(figures),
    ]
    n_taken = sum(len(console.render_lines(part)) for part in [*before, *after]) + _HEADING_LINES
    n_layers = max(_MIN_ROWS, min(_MAX_ROWS, MAX_LINES - n_taken))
    table = layer_table(rows, n_layers, alerts, sparklines=not console.options.ascii_only)
    for part in [*before, table, *after]:
        console.print(part, highlight=False)
    if measures_more_than_default(rows):
        console.print()
        print_every_metric(rows, console)


def _head(rows: pd.DataFrame) -> list[Text]:
    first = rows.iloc[0]
    name, kind = of_stack(first["run"], stack_of(rows)), KINDS[causality(rows)]
    steps = rows["step"].unique().tolist()
    span = f"{len(steps)} steps, {steps[0]:,} to {steps[-1]:,}" if len(steps) > 1 else f"step {steps[0]:,}"
    span = FINISHED if is_finished(rows) else span
    return [
        Text.assemble((name, "bold"), f"  {first['model']} ({kind})"),
        Text(f"{span}; probe {first['probe'][:8]}, {sampling(rows)}"),
    ]


def _loss(frame: pd.DataFrame) -> list[Text]:
    line = probe_loss_line(frame)
    return [] if line is None else [Text(line)]


def _findings(found: Sequence[Finding]) -> Iterator[Text | Padding]:
    """Yield each verdict with its evidence; subsets of one verdict are joined, with the evidence of the first."""
    yield Text(f"published findings, criteria version {VERSION}")
    first = found[0]
    if len({(finding.verdict, finding.evidence) for finding in found}) == 1:
        yield _verdict(first.verdict, f"all {len(found)}")
        yield _evidence(first.evidence)
        return
    for (name, verdict), group in groupby(found, key=lambda finding: (finding.name, finding.verdict)):
        first, *others = group
        subsets = " and ".join(finding.subset for finding in (first, *others))
        yield _verdict(verdict, f"{MEANINGS[name]}, {subsets}")
        differ = any(finding.evidence != first.evidence for finding in others)
        yield _evidence(f"{first.subset}: " * differ + first.evidence)


def _verdict(verdict: Verdict, of: str) -> Text:
    return Text.assemble((verdict, f"bold {COLOURS[verdict]}"), f": {of}")


def _evidence(text: str) -> Padding:
    return Padding(Text(text, style="dim"), (0, 0, 0, 2))


def _left_out(rows: pd.DataFrame) -> Iterator[Text]:
    others = curves_of(rows)[MAX_CURVES:]
    if others and not measures_more_than_default(rows):
        yield Text(f"also measured: {', '.join(f'{metric} ({subset})' for metric, subset in others)}")


def _alerts(alerts: Sequence[Alert]) -> Iterator[Text]:
    lines = alert_lines(alerts)
    for line in lines[:_MAX_ALERTS]:
        yield Text(f"alert at {line}", style="red")
    if (more := len(lines) - _MAX_ALERTS) > 0:
        yield Text(f"and {more} more alerts, which repdyn insights --alerts lists", style="red")


def _missing(rows: pd.DataFrame) -> Iterator[Text]:
    """Report missing values, except of metrics without any value, which are listed with the metrics.

    Values that nothing is wrong with, those of few distinct embeddings, are no warning.
    """
    # the other columns would be copied with each selection of rows
    rows = rows.loc[:, [*_OF_MISSING]]
    expected = drop_first_comparison(rows)
    embeddings = without_distinct_embeddings(rows)
    expected = expected.drop(expected.index.intersection(embeddings.index))
    nowhere = {name for names in undefined(rows).values() for name in names}
    missing = expected.loc[expected["value"].isna()]
    cells = zip(missing["metric"], missing["subset"], strict=True)
    missing = missing.loc[[not {metric, f"{metric} ({subset})"} & nowhere for metric, subset in cells]]
    if len(embeddings):
        metrics, first = ", ".join(metrics_of(embeddings)), embeddings.iloc[0]
        few = f"{first['n_unique']:,.0f} of {first['n_vectors']:,.0f} vectors are distinct"
        yield Text(f"layer 0, the embeddings, has no {metrics}: {few}", style="dim")
    if len(missing):
        reason = most_common_reason(missing)
        yield Text(f"warning: {len(missing)} of {len(rows)} values are left out, mostly: {reason}", style="yellow")


def _failed(frame: pd.DataFrame) -> Iterator[Text]:
    for text in filter(None, (failure_line(frame), copies_line(frame))):
        yield Text(f"warning: {text}", style="yellow")


def _cost(frame: pd.DataFrame) -> Iterator[Text]:
    if text := cost_line(frame):
        yield Text(text)


def _overhead(
    tracking_seconds: float | None, kernel_seconds: float | None, total_seconds: float | None
) -> Iterator[Text]:
    if tracking_seconds is None:
        return
    text = f"tracking took {tracking_seconds:,.1f} s"
    if total_seconds:
        text += f", {tracking_seconds / total_seconds:.1%} of the training's {total_seconds:,.1f} s"
    if kernel_seconds and tracking_seconds:
        text += f"; kernels {kernel_seconds / tracking_seconds:.0%} of it"
    yield Text(text)


def _figures(figures: Sequence[Path]) -> Iterator[Text]:
    folders = sorted({str(path.parent) for path in map(Path, figures)})
    if folders:
        yield Text(f"figures: {', '.join(folders)} ({len(figures)} files)", overflow="fold")
