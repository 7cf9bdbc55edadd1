"""The last lines of a training: its status, three curves, where its report is, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.text import Text

from repdyn.diagnosis import RunInsights
from repdyn.store.schema import PROBE_LOSS
from repdyn.tables.frames import by_stack, layer_mean, loss_of_run, measurements, of_metric
from repdyn.tables.style import plain, short_count, short_value
from repdyn.terminal.alerts import STATUS_STYLES
from repdyn.terminal.curves import sparkline

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

    Args:
        frame: rows of one run on one probe, scalars among them.
        insights: those of the run.
        store: folder or URL of its store, for the command.
        report: its page.
        console: where to; in an encoding other than Unicode there are no curves.
    """
    lines = [Text()]
    for insight in insights:
        lines.append(Text(plain(insight.headline, console), style=f"bold {STATUS_STYLES[insight.status]}"))
        rows = by_stack(frame)[insight.stack]
        lines += [Text(plain(line, console)) for line in course(rows, curves=not console.options.ascii_only)]
    for line in lines:
        console.print(line, highlight=False)
    if report is not None:
        _print(console, f"report: {report}")
    _print(console, f"next: repdyn insights {shlex.quote(str(store))}")


def course(frame: pd.DataFrame, *, curves: bool = True) -> list[str]:
    """Return a line for the loss, and for the means over layers of dimension and anisotropy: curve, ends and extremes.

    Args:
        frame: rows of one run, or of one stack of its model.
        curves: whether to draw them.
    """
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


def _print(console: Console, line: str) -> None:
    console.print(Text(plain(line, console)), soft_wrap=True)
