"""Draw topic gaps over depth with their controls, and the gap of every head."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from repdyn.figures.drawing import entitle
from repdyn.studies.output import layer_axis, select, series_colour
from repdyn.studies.topics.measurements import TABLE, TopicMeasurements
from repdyn.tables.style import DIVERGING, styled

BOLD_FROM = 3.0
"""Standard errors from 0, from which on a head's gap is printed in bold."""
_MAX_NUMBERED = 16
"""Heads that leave room for a number in each cell."""
_UNIT = "times even attention"


@styled
def depth_figure(measured: Mapping[str, TopicMeasurements]) -> Figure:
    """Draw the gaps of the embeddings, and of the attention minus its control, a line for each model."""
    figure = Figure(figsize=(9.5, 4.6))
    left, right = figure.subplots(1, 2)
    for number, (name, one) in enumerate(measured.items()):
        _draw_embeddings(left, one, name, series_colour(number))
        _draw_attention(right, one, series_colour(number))
    left.set_ylabel("gap of the cosine")
    right.set_ylabel(f"gap of the attention minus control,\nmean over heads, {_UNIT}")
    layer_axis(left, right)
    for axes in (left, right):
        axes.axhline(0, color="black", linewidth=0.8)
    left.legend(fontsize=8)
    entitle(
        figure,
        "Topic gaps: words of one topic minus words of different topics",
        "Left: solid under their own topics, dashed under those of other documents (band: standard deviation over "
        "them); square: input embeddings, each word once (bar: the same). Right: bars of two standard errors.",
    )
    return figure


@styled
def heads_figure(name: str, measured: TopicMeasurements) -> Figure:
    """Draw the gap of each head of each layer minus its control, as a multiple of even attention."""
    heads = measured.attention.dropna(subset=["gap", "head"])
    values, errors = (
        heads.pivot(index="layer", columns="head", values=column) * measured.length
        for column in ("difference", "standard_error")
    )
    n_layers, n_heads = values.shape
    figure = Figure(figsize=(min(11.0, 2.5 + 0.6 * n_heads), 1.8 + 0.4 * n_layers))
    axes = figure.subplots()
    limit = float(np.nanmax(np.abs(values))) or 1.0
    image = axes.imshow(values, cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto", origin="lower")
    figure.colorbar(image, ax=axes, label=f"gap minus control,\n{_UNIT}")
    axes.grid(False)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_yticks(range(n_layers), values.index)
    if n_heads <= _MAX_NUMBERED:
        for (row, column), value in np.ndenumerate(values.to_numpy()):
            weight = "bold" if abs(value) >= BOLD_FROM * errors.iloc[row, column] else "normal"
            look = {"fontsize": 7, "color": "white" if abs(value) > 0.6 * limit else "black", "weight": weight}
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", **look)
    entitle(figure, f"{name}: topic gap of each head", f"Bold: {BOLD_FROM:g} standard errors from 0, or more.")
    return figure


def _draw_embeddings(axes: Axes, one: TopicMeasurements, name: str, colour: str) -> None:
    gaps = select(one.embeddings, product="cosine").dropna(subset="gap")
    layers, table = gaps.loc[gaps["layer"] != TABLE], select(gaps, layer=TABLE)
    x, control, spread = layers["layer"].astype(int), layers["control"], layers["control_std"]
    axes.plot(x, layers["gap"], color=colour, marker="o", markersize=4, label=name)
    axes.plot(x, control, color=colour, linestyle="--", linewidth=1.2)
    axes.fill_between(x, control - spread, control + spread, color=colour, alpha=0.18, linewidth=0)
    look = {"color": colour, "marker": "s", "markersize": 5, "capsize": 2}
    for gap, deviation in zip(table["gap"], table["control_std"], strict=True):
        axes.errorbar([-0.35], [gap], deviation, **look)


def _draw_attention(axes: Axes, one: TopicMeasurements, colour: str) -> None:
    means = select(one.attention, head=None).dropna(subset="gap")
    values, errors = means["difference"] * one.length, 2 * (means["standard_error"] * one.length)
    axes.errorbar(means["layer"], values, errors, color=colour, marker="o", markersize=4, capsize=2)
