"""Intrinsic dimension against the scale it is estimated at: a plateau is a dimension worth the name."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from repdyn.figures.drawing import entitle_run
from repdyn.figures.panes import GRIDE
from repdyn.store.schema import FINISHED
from repdyn.tables.designs import intervals
from repdyn.tables.frames import in_order, is_finished, measurements, of_metric, select_steps
from repdyn.tables.style import ORDERED, shades, styled, subset_title

_MAX_STEPS = 3
_MAX_LAYERS = 7
_BESIDE = {"two_nn": ("TwoNN", "s"), "levina_bickel": ("Levina-Bickel", "D")}
"""Estimates drawn at the scale they look at, with their name and marker."""
DIMENSIONS = (*GRIDE, *_BESIDE)
"""The metrics the picture is drawn from."""


def has_scales(valued: pd.DataFrame) -> bool:
    """Whether among rows with values there are two scales to draw."""
    return len(set(valued["metric"]) & set(GRIDE)) > 1


@styled
def scales(frame: pd.DataFrame, subset: str | None = None) -> Figure:
    """The dimension by Gride against its scale k: a panel for each of three steps, a line for each of seven layers.

    Of fewer steps or layers all are drawn. An estimate that falls with k speaks of noise, one that rises of a curved or
    folded cloud. TwoNN stands at 2 neighbours, Levina-Bickel at as many as it looks at.

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
    figure = Figure(figsize=(max(7.2, 1.6 + 3.6 * len(steps)), 4.2))
    panels = figure.subplots(1, len(steps), squeeze=False, sharey=True)[0]
    finished = is_finished(rows)
    for panel, step in zip(panels, steps, strict=True):
        at_step = known.loc[known["step"] == step]
        for layer, colour in colours.items():
            _draw_layer(panel, at_step.loc[at_step["layer"] == layer], colour)
        panel.set_title(FINISHED if finished else f"step {step:,}")
        _name_scales(panel)
    panels[0].set_ylabel("dimension")
    _legend(figure, colours, [metric for metric in _BESIDE if metric in set(known["metric"])])
    drawn = known.loc[known["metric"].isin(GRIDE) & known["step"].isin(steps)]
    notes = (subset_title(subset), "layer 0 is the embedding output", intervals(drawn, "bars"))
    entitle_run(figure, known, "Intrinsic dimension against scale", "; ".join(filter(None, notes)))
    return figure


def _spread(layers: Sequence[int]) -> list[int]:
    """Some of many layers at equal distances, the first and the last among them."""
    chosen = np.linspace(0, len(layers) - 1, min(len(layers), _MAX_LAYERS)).round().astype(int)
    return [layers[index] for index in chosen]


def _draw_layer(panel: Axes, rows: pd.DataFrame, colour: str) -> None:
    ks = [_scale_of(*cell) for cell in zip(rows["metric"], rows["settings"], strict=True)]
    rows = rows.assign(k=ks).sort_values("k")
    line = rows.loc[rows["metric"].isin(GRIDE)]
    look = {"color": colour, "marker": "o", "markersize": 3.5, "elinewidth": 0.9}
    panel.errorbar(line["k"], line["value"], yerr=line["margin"], **look)
    for metric, (_, marker) in _BESIDE.items():
        point = of_metric(rows, metric)
        panel.plot(point["k"], point["value"], linestyle="none", marker=marker, color=colour, markerfacecolor="none")


def _scale_of(metric: str, settings: str) -> int:
    """How many neighbours an estimate looks at."""
    return 2 if metric == "two_nn" else int(json.loads(settings)["k"])


def _name_scales(panel: Axes) -> None:
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator([2, 4, 8, 16, 32]))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.set_xlabel("neighbours k (logarithmic)")


def _legend(figure: Figure, colours: dict[int, str], beside: Sequence[str]) -> None:
    layers = [Line2D([], [], color=colour, label=f"layer {layer}", marker="o") for layer, colour in colours.items()]
    marks = [
        Line2D([], [], linestyle="none", marker=marker, color="0.3", markerfacecolor="none", label=name)
        for name, marker in (_BESIDE[metric] for metric in beside)
    ]
    figure.legend(handles=[*layers[::-1], *marks], loc="outside right center")
