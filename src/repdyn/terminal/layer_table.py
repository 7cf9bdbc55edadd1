"""A table in the terminal with a line for each layer: values at the ends of a run, and the curve between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from rich.table import Table
from rich.text import Text

from repdyn.alerts import Alert
from repdyn.tables.frames import grid, metrics_of, subsets_of
from repdyn.tables.numbers import NO_VALUE, short_value
from repdyn.terminal.sparklines import sparkline

MAX_CURVES = 3
_COURSE = "first max last"

Curve = tuple[str, str]
"""A metric on a token subset."""


def curves_of(rows: pd.DataFrame) -> list[Curve]:
    """Return each metric with each of its token subsets, in display order."""
    return [(metric, subset) for metric in metrics_of(rows) for subset in subsets_of(rows, metric)]


def layer_table(rows: pd.DataFrame, n_layers: int, alerts: Sequence[Alert] = (), *, sparklines: bool) -> Table:
    """Return a table of the first few metrics.

    Args:
        rows: from :func:`repdyn.tables.frames.measurements`.
        n_layers: how many layers there is room for. Of more than these, the first and the last are shown, those with an
            alert, those with the lowest or highest value of a metric, and others at equal distances.
        alerts: of the run.
        sparklines: whether to draw the curves.
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
    """Return at most ``limit`` of the layers, the most important ones if there are more.

    Args:
        grids: values by layer and step.
        layers: sorted.
        alerts: of the run.
        limit: positive.
    """
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
