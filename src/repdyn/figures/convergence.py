"""Alignment with the last layer and its gradient over depth, with the monotone fit and bound of the theory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from repdyn.figures.charts import Axis, Chart, Line, Panel, layer_axis
from repdyn.figures.drawing import draw
from repdyn.figures.overviews import last_place
from repdyn.figures.panels import run_caption, run_title
from repdyn.store.schema import FINISHED
from repdyn.tables.designs import intervals
from repdyn.tables.fits import isotonic_fit, lower_envelope
from repdyn.tables.frames import NO_CLASSES, defined_subsets, grid, in_order, is_finished, measurements, metrics_of
from repdyn.tables.style import LOSS_COLOUR, SUBSET_COLOURS, metric_title, metric_unit, subset_title

ALIGNMENT, GRADIENT = "alignment", "alignment_gradient"


def convergence(frame: pd.DataFrame) -> Figure:
    """Draw alignment and its gradient at the last measured step of a run, on all tokens and, if known, without sinks.

    With the alignment, the constant rate that would lead from its first value to its last; with the gradient, its
    isotonic fit, which pools layers, and the monotone lower envelope, which is a bound.
    """
    rows = measurements(frame)
    known = defined_subsets(rows, GRADIENT) if GRADIENT in metrics_of(rows) else []
    if not known:
        raise ValueError(f"expected values of {GRADIENT}, got none; measure it on a model with two layers or more")
    subsets = [subset for subset in in_order(known) if subset in NO_CLASSES] or in_order(known)
    step = max(rows.loc[(rows["metric"] == GRADIENT) & rows["value"].notna(), "step"].tolist())
    axis = layer_axis("layer (0 = embedding output)", 0.0, float(last_place(rows)))
    panels = [make(rows, subset, step) for subset in subsets for make in (_alignment_panel, _gradient_panel)]
    shown = rows.loc[rows["metric"].isin([ALIGNMENT, GRADIENT]) & rows["subset"].isin(subsets)]
    when = FINISHED if is_finished(rows) else f"at step {step:,}"
    chart = Chart(
        title=run_title(rows, f"Convergence to the last layer, {when}"),
        caption=run_caption(shown, intervals(shown.loc[shown["step"] == step], "band and bars")),
        panels=[replace(panel, x=axis) for panel in panels],
        columns=2,
        size=(10.6, 1.0 + 3.2 * len(subsets)),
        is_small=True,
    )
    return draw(chart)


def _alignment_panel(rows: pd.DataFrame, subset: str, step: int) -> Panel:
    title = f"{metric_title(ALIGNMENT)}, {subset_title(subset)}"
    if ALIGNMENT not in metrics_of(rows) or subset not in defined_subsets(rows, ALIGNMENT):
        return Panel(title=f"{title}: not measured", y=Axis(label=metric_unit(ALIGNMENT)))
    layers, values, margins = _at(rows, ALIGNMENT, subset, step)
    (first, last), ends = layers[[0, -1]].tolist(), values[[0, -1]].tolist()
    rate = (ends[1] - ends[0]) / (last - first) if last > first else np.nan
    look: dict[str, Any] = {"colour": "0.45", "dash": "--", "width": 1.2, "marker": ""}
    return Panel(
        title=f"{title}\nat layer {first:.0f}: {ends[0]:.3g}; average rate {rate:.3g} per layer",
        y=Axis(label=metric_unit(ALIGNMENT), limits=(min(0.0, float(values.min())), float(values.max()))),
        lines=[
            Line(x=layers, y=values, margin=margins, label="alignment", colour=SUBSET_COLOURS[0]),
            Line(x=(first, last), y=ends, label="constant rate", **look),
        ],
        legend="right",
    )


def _gradient_panel(rows: pd.DataFrame, subset: str, step: int) -> Panel:
    layers, values, margins = _at(rows, GRADIENT, subset, step)
    fit, bound = isotonic_fit(values), lower_envelope(values)
    blue, text = SUBSET_COLOURS[0], f"{metric_title(GRADIENT)}, {subset_title(subset)}"
    return Panel(
        title=f"{text}\nfit {_ends(fit)}; envelope {_ends(bound)}",
        y=Axis(label=metric_unit(GRADIENT), is_signed=True),
        lines=[
            Line(x=layers + 0.5, y=values, margin=margins, kind="bars", label="gradient", colour=blue),
            Line(x=layers, y=fit, kind="steps", label="isotonic fit", colour=LOSS_COLOUR),
            Line(x=layers, y=bound, kind="steps", label="lower envelope", colour="0.2", dash="--", width=1.5),
        ],
        legend="right",
    )


def _at(rows: pd.DataFrame, metric: str, subset: str, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the layers with a value at a step, the values, and half of their 95 % intervals."""
    values = grid(rows, metric, subset).loc[:, step].dropna()
    margins = grid(rows, metric, subset, "margin").loc[values.index, step]
    return values.index.to_numpy(float), values.to_numpy(float), margins.to_numpy(float)


def _ends(values: Sequence[float] | np.ndarray) -> str:
    """Describe a curve by its first and last value.

    >>> _ends([0.25, 0.25]), _ends([0.1, 0.5])
    ('0.25 throughout', '0.1 to 0.5')
    """
    low, high = f"{values[0]:.3g}", f"{values[-1]:.3g}"
    return f"{low} throughout" if low == high else f"{low} to {high}"
