"""Intrinsic dimension against the scale of its estimation: a plateau indicates a well-defined dimension."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from repdyn.figures.axes import axis_of_lines
from repdyn.figures.captions import notes, run_caption, run_title
from repdyn.figures.charts import Axis, Chart, Line, Panel
from repdyn.figures.drawing import draw
from repdyn.metrics import METRICS
from repdyn.store.schema import FINISHED
from repdyn.tables.designs import intervals
from repdyn.tables.frames import in_order, is_finished, measurements, of_metric, select_steps
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

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; fewer than two scales with a value.
    """
    rows = measurements(frame)
    known = rows.loc[rows["metric"].isin(DIMENSIONS) & rows["value"].notna()]
    gride = known.loc[known["metric"].isin(GRIDE)]
    if not has_scales(gride):
        raise ValueError(f"expected two of {', '.join(GRIDE)} with values, got fewer; measure several scales")
    subset = subset or in_order(gride["subset"].unique())[0]
    known = known.loc[known["subset"] == subset]
    steps = select_steps(sorted(gride["step"].unique().tolist()), _MAX_STEPS)
    layers = _spread(sorted(gride["layer"].unique().tolist()))
    colours = dict(zip(layers, shades(ORDERED, len(layers), 0, 0.9), strict=True))
    shown = known.loc[known["metric"].isin(GRIDE) & known["step"].isin(steps)]
    chart = Chart(
        title=run_title(rows, "Intrinsic dimension against scale"),
        caption=run_caption(
            known, notes(subset_title(subset), "layer 0 is the embedding output", intervals(shown, "bars"))
        ),
        panels=_panels(known, steps, colours, is_finished=is_finished(rows)),
        columns=len(steps),
        size=(max(7.2, 1.6 + 3.6 * len(steps)), 4.2),
        legend=[
            *(Line(x=(), y=(), colour=colour, label=f"layer {layer}") for layer, colour in reversed(colours.items())),
            *(
                Line(x=(), y=(), colour="0.3", label=name, marker=marker, dash="none", marker_size=6)
                for metric, (name, marker) in _SINGLE_SCALE.items()
                if metric in set(known["metric"])
            ),
        ],
    )
    return draw(chart)


def _panels(known: pd.DataFrame, steps: Sequence[int], colours: Mapping[int, str], *, is_finished: bool) -> list[Panel]:
    """Return one panel per step, on one axis of dimensions."""
    lines = [
        [line for layer, colour in colours.items() for line in _layer_lines(cells.loc[cells["layer"] == layer], colour)]
        for cells in (known.loc[known["step"] == step] for step in steps)
    ]
    every = [line for of_step in lines for line in of_step]
    return [
        Panel(
            title=FINISHED if is_finished else f"step {step:,}",
            x=_AXIS,
            y=axis_of_lines("two_nn", every, "" if number else "dimension"),
            lines=of_step,
        )
        for number, (step, of_step) in enumerate(zip(steps, lines, strict=True))
    ]


def _layer_lines(rows: pd.DataFrame, colour: str) -> list[Line]:
    """Return the estimates of one layer at one step: a line over scales, and points for those at one scale."""
    ks = [_scale_of(*cell) for cell in zip(rows["metric"], rows["settings"], strict=True)]
    rows = rows.assign(k=ks).sort_values("k")
    groups: list[tuple[pd.DataFrame, dict[str, Any]]] = [(rows.loc[rows["metric"].isin(GRIDE)], {"kind": "points"})]
    groups += [
        (of_metric(rows, metric), {"marker": marker, "dash": "none", "marker_size": 6})
        for metric, (_, marker) in _SINGLE_SCALE.items()
    ]
    return [
        Line(
            x=cells["k"].tolist(),
            y=cells["value"].to_numpy(float),
            margin=cells["margin"].to_numpy(float) if "kind" in look else None,
            colour=colour,
            **look,
        )
        for cells, look in groups
    ]


def _spread(layers: Sequence[int]) -> list[int]:
    """Return some of many layers at equal distances, the first and the last among them."""
    chosen = np.linspace(0, len(layers) - 1, min(len(layers), _MAX_LAYERS)).round().astype(int)
    return [layers[index] for index in chosen]


def _scale_of(metric: str, settings: str) -> int:
    """Return the number of neighbours of an estimate."""
    return 2 if metric == "two_nn" else int(json.loads(settings)["k"])
