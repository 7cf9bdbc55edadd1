"""Intrinsic dimension against the scale of its estimation: a plateau indicates a well-defined dimension."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from repdyn.figures.charts import Axis, Chart, Line, Panel, axis_of_lines
from repdyn.figures.drawing import draw
from repdyn.figures.panels import run_caption, run_title
from repdyn.metrics import METRICS
from repdyn.store.schema import FINISHED
from repdyn.tables.designs import intervals
from repdyn.tables.frames import in_order, is_finished, measurements, select_steps
from repdyn.tables.style import ORDERED, shades, subset_title

GRIDE = tuple(name for name in METRICS if name.startswith("gride_"))
_MAX_STEPS = 3
_MAX_LAYERS = 7
_SINGLE_SCALE = {"two_nn": ("TwoNN", "s"), "levina_bickel": ("Levina-Bickel", "D")}
"""Estimates at one scale, with their name and marker."""
DIMENSIONS = (*GRIDE, *_SINGLE_SCALE)
"""The metrics of the figure."""
_AXIS = Axis(
    label="neighbours k (logarithmic)", limits=(2, 32), log_from=1.0, ticks={k: str(k) for k in (2, 4, 8, 16, 32)}
)


def has_scales(valued: pd.DataFrame) -> bool:
    """Return whether there are two scales to draw among rows with values."""
    return len(set(valued["metric"]) & set(GRIDE)) > 1


def scales(frame: pd.DataFrame, subset: str | None = None) -> Figure:
    """Draw the dimension by Gride against its scale k: a panel for each of three steps, a line for each of 7 layers.

    If there are fewer steps or layers, all are drawn. An estimate that falls with k indicates noise, one that rises a
    curved or folded cloud. TwoNN is drawn at 2 neighbours, Levina-Bickel at its own number.

    Args:
        frame: rows of one run.
        subset: of the tokens; the first it was measured on, in the order of ``repdyn.tables.frames.in_order``, unless
            given.
    """
    rows = measurements(frame)
    known = rows.loc[rows["metric"].isin(DIMENSIONS) & rows["value"].notna()]
    gride = known.loc[known["metric"].isin(GRIDE)]
    if not has_scales(gride):
        raise ValueError(f"expected two of {', '.join(GRIDE)} with values, got fewer; measure several scales")
    subset = subset or in_order(gride["subset"].unique())[0]
    known = known.loc[known["subset"] == subset]
    steps = select_steps(sorted(gride["step"].unique().tolist()), _MAX_STEPS)
    layers = sorted(gride["layer"].unique().tolist())
    chosen = np.linspace(0, len(layers) - 1, min(len(layers), _MAX_LAYERS)).round().astype(int)
    layers = [layers[index] for index in chosen]
    colours = dict(zip(layers, shades(ORDERED, len(layers), 0, 0.9), strict=True))
    shown = known.loc[known["metric"].isin(GRIDE) & known["step"].isin(steps)]
    lines = {
        step: [line for layer, colour in colours.items() for line in _layer_lines(known, step, layer, colour)]
        for step in steps
    }
    y = axis_of_lines("two_nn", [line for of_step in lines.values() for line in of_step], "dimension")
    titles = [FINISHED if is_finished(rows) else f"step {step:,}" for step in steps]
    of_layers = [Line(x=(), y=(), colour=colours[layer], label=f"layer {layer}") for layer in reversed(layers)]
    of_points = [
        Line(x=(), y=(), colour="0.3", label=name, marker=marker, dash="none", marker_size=6)
        for metric, (name, marker) in _SINGLE_SCALE.items()
        if metric in set(known["metric"])
    ]
    bars = intervals(shown, "bars")
    chart = Chart(
        title=run_title(rows, "Intrinsic dimension against scale"),
        caption=run_caption(known, subset_title(subset), bars),
        panels=[
            Panel(title=titles[number], x=_AXIS, y=replace(y, label="" if number else y.label), lines=lines[step])
            for number, step in enumerate(steps)
        ],
        columns=len(steps),
        size=(max(7.2, 1.6 + 3.6 * len(steps)), 4.2),
        legend=[*of_layers, *of_points],
    )
    return draw(chart)


def _layer_lines(known: pd.DataFrame, step: int, layer: int, colour: str) -> Iterator[Line]:
    """Yield the estimates of one layer at one step: a line over scales, and points for those at one scale."""
    rows = known.loc[(known["step"] == step) & (known["layer"] == layer)]
    pairs = zip(rows["metric"], rows["settings"], strict=True)
    rows = rows.assign(k=[2 if metric == "two_nn" else int(json.loads(settings)["k"]) for metric, settings in pairs])
    cells = rows.loc[rows["metric"].isin(GRIDE)].sort_values("k")
    margins = cells["margin"].to_numpy(float)
    yield Line(x=cells["k"].tolist(), y=cells["value"].to_numpy(float), margin=margins, colour=colour, kind="points")
    for metric, (_, marker) in _SINGLE_SCALE.items():
        cells = rows.loc[rows["metric"] == metric]
        look = {"marker": marker, "dash": "none", "marker_size": 6}
        yield Line(x=cells["k"].tolist(), y=cells["value"].to_numpy(float), colour=colour, **look)
