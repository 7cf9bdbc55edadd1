"""Pictures of the study: the drift of real states with n, and cubes beside their true dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from repdyn.views.drawing import entitle, line
from repdyn.views.style import SEQUENTIAL, metric_title
from sizes.study import QUANTITIES, USUAL, Row

_MARKERS = "osD^vP"
_CHANGE = {"two_nn": "drift from the largest n", "anisotropy": "bias from the largest n"}


def drift(rows: Sequence[Row], caption: str) -> Figure:
    """Deviation from the largest batch against its size: a row of panels for each model, a line for each layer."""
    models = list(dict.fromkeys(row.model for row in rows))
    figure = Figure(figsize=(12.5, 1.5 + 3.1 * len(models)))
    panels = figure.subplots(len(models), len(QUANTITIES), squeeze=False, sharex=True)
    for model, beside in zip(models, panels, strict=True):
        for quantity, panel in zip(QUANTITIES, beside, strict=True):
            _draw_layers(panel, [row for row in rows if (row.model, row.quantity) == (model, quantity)])
            panel.set_title(f"{metric_title(quantity)}\n{model}", loc="left")
            panel.set_ylabel(_CHANGE[quantity])
        names = _layer_names([row for row in rows if row.model == model])
        beside[-1].legend(beside[-1].get_lines(), names, loc="center left", bbox_to_anchor=(1.01, 0.5), labelspacing=1)
    sizes = sorted({row.n for row in rows})
    _log_sizes(panels[0, 0], sizes)
    for panel in panels.flatten():
        panel.axhline(0, color="0.6", linewidth=1, zorder=1)
        if USUAL in sizes:
            panel.axvline(USUAL, color="0.4", linestyle="--", linewidth=1.2, zorder=1)
    for panel in panels[-1]:
        panel.set_xlabel("vectors in a batch, n (logarithmic)")
    most = max(row.n_vectors or 0 for row in rows)
    caption = (
        f"mean of {max(row.draws for row in rows)} draws from up to {most:,} states, band ± 1 standard deviation"
        f"{f'; dashed: n = {USUAL:,}' if USUAL in sizes else ''}\n"
        f"TwoNN depends on n because more vectors show smaller distances, which is no error\n{caption}"
    )
    entitle(figure, "How the estimates depend on the number of vectors", caption)
    return figure


def cubes(rows: Sequence[Row], caption: str) -> Figure:
    """Estimates against the true dimension: TwoNN at each size on the left, all estimators at one size on the right."""
    sizes = sorted({row.n for row in rows}, reverse=True)
    usual = max(n for n in sizes if n <= USUAL)
    figure = Figure(figsize=(11, 5.2))
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    by_size = {f"n = {n:,}": [row for row in rows if (row.n, row.quantity) == (n, "two_nn")] for n in sizes}
    names = list(dict.fromkeys(row.quantity for row in rows))
    by_name = {short_name(name): [row for row in rows if (row.n, row.quantity) == (usual, name)] for name in names}
    for panel, curves, title in (
        (left, by_size, metric_title("two_nn")),
        (right, by_name, f"All estimators at n = {usual:,}"),
    ):
        truth = sorted({row.dimension or 0 for row in rows})
        panel.plot(truth, truth, color="0.4", linestyle="--", linewidth=1.2, label="truth", zorder=1)
        for look, (name, own) in zip(_looks(len(curves)), curves.items(), strict=True):
            at = [row.dimension for row in own]
            line(panel, _series(own, "mean", at), _series(own, "sd", at).fillna(0), label=name, **look)
        panel.set_title(title, loc="left")
        panel.set_xlabel("true dimension")
        panel.xaxis.set_major_locator(FixedLocator(truth))
        panel.legend()
    left.set_ylabel("estimated dimension")
    left.set_ylim(bottom=0)
    many = max(row.draws for row in rows)
    entitle(
        figure,
        "Uniform cubes: what the estimators make of a known dimension",
        f"mean of {many} clouds, band ± 1 standard deviation\n{caption}",
    )
    return figure


def _draw_layers(panel: Axes, rows: Sequence[Row]) -> None:
    """One line for each layer; an empty one for a layer without values, to keep its place in the legend."""
    layers = _by_layer(rows)
    for look, own in zip(_looks(len(layers)), layers.values(), strict=True):
        known = [row for row in own if row.mean is not None]
        at = [row.n for row in known]
        means = _series(known, "mean", at)
        last = means.iloc[-1] if known else 1.0
        line(panel, means / last - 1, _series(known, "sd", at).fillna(0) / last, **look)
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))


def _layer_names(rows: Sequence[Row]) -> list[str]:
    """Each layer with its values at the largest n that it has vectors for."""
    names = []
    for layer, own in _by_layer(rows).items():
        known = [row for row in own if row.mean is not None]
        largest = max((row.n for row in known), default=0)
        values = [f"{short_name(row.quantity)} {row.mean:.3g}" for row in known if row.n == largest]
        names.append("\n".join([layer, *values, f"at n = {largest:,}"] if known else [layer, own[0].note]))
    return names


def _by_layer(rows: Sequence[Row]) -> dict[str, list[Row]]:
    layers: dict[str, list[Row]] = {}
    for row in rows:
        layers.setdefault(row.cloud, []).append(row)
    return layers


def _log_sizes(panel: Axes, sizes: Sequence[int]) -> None:
    panel.set_xscale("log", base=2)
    panel.set_xlim(min(sizes) / 1.1, max(sizes) * 1.1)
    panel.xaxis.set_major_locator(FixedLocator(sizes))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:.0f}"))


def _looks(count: int) -> list[dict[str, Any]]:
    """Colours from dark to light, and markers beside them: the order stays legible with any colour vision."""
    colours = matplotlib.colormaps[SEQUENTIAL](np.linspace(0, 0.85, count))
    return [
        {"color": colour, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 4.5}
        for number, colour in enumerate(colours)
    ]


def _series(rows: Sequence[Row], field: str, index: Sequence[int | None]) -> pd.Series:
    return pd.Series([getattr(row, field) for row in rows], index=pd.Index(index, dtype=int), dtype=float)


def short_name(quantity: str) -> str:
    """Of a quantity, for legends and columns."""
    return "TwoNN" if quantity == "two_nn" else quantity.replace("gride_", "Gride, k = ")
