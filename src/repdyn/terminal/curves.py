"""Curves in the terminal: a line for each layer, or for each metric of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repdyn.alerts import Alert
from repdyn.metrics import DEFAULT_METRICS, FAMILIES
from repdyn.metrics.metric import base_name
from repdyn.tables.frames import (
    defined_subsets,
    grid,
    in_order,
    is_finished,
    layer_mean,
    metrics_of,
    of_metric,
    subsets_of,
    undefined,
)
from repdyn.tables.lines import seconds_by_metric
from repdyn.tables.series import thin
from repdyn.tables.style import NO_VALUE, family_of, number_text, short_subset_title, short_value

WIDTH = 7
_BARS = "▁▂▃▄▅▆▇█"


def sparkline(steps: Sequence[int], values: Sequence[float], width: int = WIDTH) -> str:
    """Return a curve as at most ``width`` bars, four or more, between its lowest and highest value, which are always
    drawn.

    Steps ascend. NaN becomes a blank; equal values become the lowest bar.

    >>> sparkline([0, 1, 2, 3], [0.0, 0.5, math.nan, 1.0])
    '▁▅ █'
    """
    shown = [values[index] for index in thin(steps, values, width)]
    known = [value for value in shown if not math.isnan(value)]
    low, extent = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    unit = extent / (len(_BARS) - 1) or 1.0
    return "".join(" " if math.isnan(value) else _BARS[int((value - low) / unit + 0.5)] for value in shown)


MAX_CURVES = 3
_COURSE = "first max last"

Curve = tuple[str, str]
"""A metric on a token subset."""


def curves_of(rows: pd.DataFrame) -> list[Curve]:
    """Return each metric with each of its token subsets, in display order."""
    return [(metric, subset) for metric in metrics_of(rows) for subset in subsets_of(rows, metric)]


def layer_table(rows: pd.DataFrame, n_layers: int, alerts: Sequence[Alert] = (), *, sparklines: bool) -> Table:
    """Return a table of the first few metrics of some measurements.

    Of more than ``n_layers`` layers, the first and the last are shown, those with an alert, those with the lowest or
    highest value of a metric, and others at equal distances.
    """
    grids = {curve: grid(rows, *curve) for curve in curves_of(rows)[:MAX_CURVES]}
    columns = [_column(values, sparklines) for values in grids.values()]
    several = len(rows["step"].unique()) > 1
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("\nlayer", justify="right", no_wrap=True)
    for metric, subset in grids:
        # brackets in a name would be read as markup
        table.add_column(Text(f"{metric}, {subset}\n{_COURSE if several else 'value'}"), no_wrap=True)
    for layer in select_layers(list(grids.values()), sorted(rows["layer"].unique().tolist()), alerts, n_layers):
        table.add_row(str(layer), *(column.get(layer, "") for column in columns))
    return table


def select_layers(
    grids: Sequence[pd.DataFrame], layers: Sequence[int], alerts: Sequence[Alert], limit: int
) -> list[int]:
    """Return at most ``limit`` of the sorted layers, the most important ones of some grids if there are more."""
    even = np.linspace(0, len(layers) - 1, min(len(layers), limit)).round().astype(int)
    chosen = {layers[index] for index in even}
    important = list(dict.fromkeys(_important(grids, layers, alerts)))[:limit]
    for layer in important:
        if layer not in chosen:
            chosen.remove(min(chosen - set(important), key=lambda other: abs(other - layer)))
            chosen.add(layer)
    return sorted(chosen)


def _important(grids: Sequence[pd.DataFrame], layers: Sequence[int], alerts: Sequence[Alert]) -> Iterator[int]:
    """Yield the layers to keep, the most important first; some repeatedly."""
    yield layers[0]
    yield layers[-1]
    yield from (alert.layer for alert in alerts if alert.layer is not None and alert.layer in layers)
    for values in grids:
        if values.notna().to_numpy().any():
            of_layer: list[int] = values.index.tolist()
            yield of_layer[int(np.nanargmax(values.max(axis="columns")))]
            yield of_layer[int(np.nanargmin(values.min(axis="columns")))]


def _column(values: pd.DataFrame, sparklines: bool) -> dict[int, str]:
    """Return the cell of each layer: values at the ends and the highest, or the only one; a dash without any."""
    steps, cells = values.columns.tolist(), {}
    for layer, curve in zip(values.index.tolist(), values.to_numpy(float).tolist(), strict=True):
        known = [value for value in curve if not math.isnan(value)]
        if not known:
            cells[layer] = NO_VALUE
            continue
        if len(steps) == 1:
            cells[layer] = short_value(curve[0])
            continue
        numbers = " ".join(short_value(value) for value in (curve[0], max(known), curve[-1]))
        cells[layer] = f"{numbers} {sparkline(steps, curve) if sparklines else ''}".rstrip()
    return cells


_SHARED = (
    "means over layers of all tokens, where no others are named; s: seconds per checkpoint, of which what several "
    "metrics share (neighbours, spectrum, ranks in the vocabulary) counts for the first that uses it"
)


def measures_more_than_default(rows: pd.DataFrame) -> bool:
    """Return whether more than the default metrics was measured."""
    return not set(map(base_name, rows["metric"].unique())) <= set(DEFAULT_METRICS)


def print_every_metric(rows: pd.DataFrame, console: Console) -> None:
    """Print a table with a line for each metric of some measurements, by family; below it those without a value, and
    why."""
    several = len(rows["step"].unique()) > 1
    console.print(_metric_table(rows, several, not console.options.ascii_only), highlight=False)
    for line in [*_undefined(rows), Text(_SHARED, style="dim")]:
        console.print(line, highlight=False)


def _metric_table(rows: pd.DataFrame, several: bool, unicode: bool) -> Table:
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
