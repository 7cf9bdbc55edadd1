"""The picture of a model's tables: how long and how close their rows are, and how many dimensions they fill."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from repdyn.figures.drawing import entitle
from repdyn.studies.anatomy.geometry import components_for
from repdyn.studies.anatomy.measured import QUANTITIES, TableMeasurements
from repdyn.tables.style import styled

COLOURS = {"input": "#0072B2", "position": "#D55E00", "segment": "#009E73"}

_TITLES = {
    "norm": "length |x|",
    "distance": "distance |x - y| of two rows",
    "dot": "dot product of two rows",
    "cosine": "cosine of two rows",
    "cosine with mean": "cosine with the table's mean",
}
_MOST_BINS = 120
# the tails hold single rows, which would squeeze everything else
_SHOWN = (0.0005, 0.9995)
_FEW = 12


@styled
def tables_figure(name: str, measured: Sequence[TableMeasurements]) -> Figure:
    """Six panels: the distribution of each quantity, one outline for each table, and the dimension curves.

    Outlines are as high as their highest bin, so that tables of any size can be compared; a table of a few rows is
    marked by lines, one for each value. Values beyond 0.05 % and 99.95 % are cut off, and are in the tables' files.

    Args:
        name: of the model.
        measured: its tables.
    """
    figure = Figure(figsize=(11, 6.4))
    panels = figure.subplots(2, 3).ravel()
    spaced(figure)
    for panel, quantity in zip(panels, QUANTITIES, strict=False):
        _distribution(panel, quantity, measured)
    _dimension_curves(panels[-1], measured)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    sampled = [f"{one.n_pairs:,} of {one.table.name}" for one in measured if not one.all_pairs]
    pairs = f"pairs drawn at random: {', '.join(sampled)}" if sampled else "all pairs"
    entitle(figure, f"{name}: context-free embeddings", f"{pairs}; heights relative to the highest bin")
    return figure


def spaced(figure: Figure) -> None:
    """Room between panels for labels that matplotlib's layout does not see."""
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(w_pad=0.1, wspace=0.03)


def _distribution(axes: Axes, quantity: str, measured: Sequence[TableMeasurements]) -> None:
    for one in measured:
        values = one.values.get(quantity, np.empty(0))
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        colour, label = COLOURS[one.table.kind], f"{one.table.name} ({len(one.table.rows):,} rows)"
        if len(values) <= _FEW:
            for number, value in enumerate(values):
                axes.axvline(value, color=colour, linewidth=1.5, linestyle="--", label=label if number == 0 else None)
            continue
        low, high = np.quantile(values, _SHOWN)
        bins = min(_MOST_BINS, int(2 * np.sqrt(len(values))))
        heights, edges = np.histogram(values, bins=bins, range=(low, high))
        axes.stairs(heights / heights.max(), edges, color=colour, fill=True, alpha=0.35, label=label)
        axes.stairs(heights / heights.max(), edges, color=colour, linewidth=1.2)
    axes.set_title(_TITLES[quantity])
    axes.set_ylim(0, 1.05)
    axes.set_yticks([])
    if "cosine" in quantity:
        axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)


def _dimension_curves(axes: Axes, measured: Sequence[TableMeasurements]) -> None:
    for one in measured:
        if not len(one.explained):
            continue
        colour = COLOURS[one.table.kind]
        axes.plot(np.arange(1, len(one.explained) + 1), one.explained, color=colour)
        needed = components_for(one.explained, (0.5, 0.9, 0.99))
        for share, count in needed.items():
            axes.plot(count, share, "o", color=colour, markersize=4)
            axes.annotate(f"{count}", (count, share), (4, -9), textcoords="offset points", fontsize=8, color=colour)
    axes.set_title("variance explained by the first k components")
    axes.set_xlabel("k")
    axes.set_ylim(0, 1.02)
