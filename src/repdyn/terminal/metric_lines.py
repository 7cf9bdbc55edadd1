"""A line in the terminal for every metric of a run: its mean over layers during training, and its cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repdyn.metrics import DEFAULT_METRICS, FAMILIES
from repdyn.metrics.names import base_name
from repdyn.tables.families import defined_subsets, family_of, undefined
from repdyn.tables.frames import in_order, is_finished, layer_mean, metrics_of, of_metric
from repdyn.tables.numbers import number_text
from repdyn.tables.style import plain, short_subset_title
from repdyn.terminal.sparklines import sparkline

_SHARED = (
    "means over layers of all tokens, where no others are named; s: seconds per checkpoint, of which what several "
    "metrics share (neighbours, spectrum, ranks in the vocabulary) counts for the first that uses it"
)


def measures_more_than_default(rows: pd.DataFrame) -> bool:
    """Return whether more than the default metrics was measured."""
    return not set(map(base_name, rows["metric"].unique())) <= set(DEFAULT_METRICS)


def seconds_by_metric(rows: pd.DataFrame) -> pd.Series:
    """Return the median over checkpoints of the seconds each metric took on all layers and token subsets together.

    Args:
        rows: from :func:`repdyn.tables.frames.measurements`.
    """
    took = rows.pivot_table(index="step", columns="metric", values="seconds", aggfunc="sum", observed=True)
    return took.median()


def print_every_metric(rows: pd.DataFrame, console: Console) -> None:
    """Print a table with a line for each metric, by family; below it those without a value, and why.

    Args:
        rows: from :func:`repdyn.tables.frames.measurements`.
        console: where to; in an encoding other than Unicode the table is plain ASCII without the curves.
    """
    unicode = not console.options.ascii_only
    several = len(rows["step"].unique()) > 1
    console.print(_table(rows, several, unicode), highlight=False)
    for line in [*_undefined(rows), Text(_SHARED, style="dim")]:
        console.print(line if unicode else plain(line.plain, console), highlight=False)


def _table(rows: pd.DataFrame, several: bool, unicode: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("family", no_wrap=True)
    table.add_column("metric", overflow="fold")
    ends = ("first", "last") if several else ("finished",) if is_finished(rows) else ("value",)
    for heading in (*ends, *([""] if several and unicode else []), "s", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    seconds, before = seconds_by_metric(rows), ""
    whole = float(seconds.sum())
    for metric in _by_family(rows):
        family, took = family_of(metric), float(seconds.loc[metric])
        cost = (f"{took:,.2f}", f"{took / whole:.0%}" if whole else "")
        cells = map(Text, _mean_cells(rows, metric, several, unicode))  # brackets in a name would be read as markup
        table.add_row(family if family != before else "", *cells, *cost)
        before = family
    table.add_row("", "all", *[""] * (len(table.columns) - 4), f"{whole:,.2f}", "")
    return table


def _by_family(rows: pd.DataFrame) -> list[str]:
    places = {family: place for place, family in enumerate(FAMILIES)}
    return sorted(metrics_of(rows), key=lambda metric: places.get(family_of(metric), len(places)))


def _mean_cells(rows: pd.DataFrame, metric: str, several: bool, unicode: bool) -> Iterator[str]:
    """Yield name, means over layers at the ends and curve between them, for the first subset with a value."""
    subset = in_order(defined_subsets(rows, metric) or of_metric(rows, metric)["subset"].unique())[0]
    yield metric if subset == "all" else f"{metric} ({short_subset_title(subset)})"
    mean = layer_mean(rows, metric, subset).mean
    values: list[float] = mean.tolist()
    yield from (number_text(value) for value in _ends(values, several))
    if several and unicode:
        yield sparkline(mean.index.tolist(), values)


def _ends(values: Sequence[float], several: bool) -> Sequence[float]:
    if not values:
        return [math.nan] * (1 + several)
    return (values[0], values[-1]) if several else values[:1]


def _undefined(rows: pd.DataFrame) -> Iterator[Text]:
    for reason, names in undefined(rows).items():
        yield Text(f"no value of {', '.join(names)}: {reason}", style="yellow")
