"""How a model's layers approach its last one: alignment, its gradient, and monotone functions of depth for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from repdyn.figures.axes import layer_axis
from repdyn.figures.captions import run_caption, run_title
from repdyn.figures.charts import Axis, Chart, Line, Panel
from repdyn.figures.drawing import draw
from repdyn.figures.overviews import last_place
from repdyn.store.schema import FINISHED
from repdyn.tables.alignment_profile import isotonic_fit, lower_envelope
from repdyn.tables.designs import intervals
from repdyn.tables.families import defined_subsets
from repdyn.tables.frames import NO_CLASSES, grid, in_order, is_finished, measurements, metrics_of
from repdyn.tables.style import LOSS_COLOUR, SUBSET_COLOURS, metric_title, metric_unit, subset_title

ALIGNMENT, GRADIENT = "alignment", "alignment_gradient"


def convergence(frame: pd.DataFrame) -> Figure:
    """Draw alignment and its gradient at the last measured step, on all tokens and, if measured, without sinks.

    With the alignment, the constant rate that would lead from its first value to its last; with the gradient, its
    isotonic fit, which pools layers, and the monotone lower envelope, which is a bound.

    Args:
        frame: rows of one run.

    Raises:
        ValueError: rows of several runs, models, probes or stacks, or none; no gradient with a value.
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
    title, unit = f"{metric_title(ALIGNMENT)}, {subset_title(subset)}", Axis(label=metric_unit(ALIGNMENT))
    values, margins = _at(rows, ALIGNMENT, subset, step)
    if values.empty:
        return Panel(title=f"{title}: not measured", y=unit)
    first, last = values.index[0], values.index[-1]
    ends = float(values.iloc[0]), float(values.iloc[-1])
    rate = (ends[1] - ends[0]) / (last - first) if last > first else np.nan
    look: dict[str, Any] = {"colour": "0.45", "dash": "--", "width": 1.2, "marker": ""}
    return Panel(
        title=f"{title}\nat layer {first}: {ends[0]:.3g}; average rate {rate:.3g} per layer",
        y=unit,
        lines=[
            _line(values, margin=margins.to_numpy(float), label="alignment", colour=SUBSET_COLOURS[0]),
            Line(x=(first, last), y=ends, label="constant rate", **look),
        ],
        legend="right",
    )


def _gradient_panel(rows: pd.DataFrame, subset: str, step: int) -> Panel:
    values, margins = _at(rows, GRADIENT, subset, step)
    fit, bound = (function(values.to_numpy(float)) for function in (isotonic_fit, lower_envelope))
    bars = Line(
        x=values.index.to_numpy(float) + 0.5,
        y=values.to_numpy(float),
        margin=margins.to_numpy(float),
        kind="bars",
        label="gradient",
        colour=SUBSET_COLOURS[0],
    )
    title = f"{metric_title(GRADIENT)}, {subset_title(subset)}"
    return Panel(
        title=f"{title}\nfit {_ends(fit)}; envelope {_ends(bound)}",
        y=Axis(label=metric_unit(GRADIENT), is_signed=True),
        lines=[
            bars,
            _line(values, y=fit, kind="steps", label="isotonic fit", colour=LOSS_COLOUR),
            _line(values, y=bound, kind="steps", label="lower envelope", colour="0.2", dash="--", width=1.5),
        ],
        legend="right",
    )


def _line(values: pd.Series, **look: Any) -> Line:
    """Return a line over layers, of ``values`` unless others are given."""
    return Line(**{"x": values.index.to_numpy(float), "y": values.to_numpy(float), **look})


def _at(rows: pd.DataFrame, metric: str, subset: str, step: int) -> tuple[pd.Series, pd.Series]:
    """Return values against layer at a step, with half of their 95 % intervals; empty if there are none."""
    if metric not in metrics_of(rows) or subset not in defined_subsets(rows, metric):
        return pd.Series(dtype=float), pd.Series(dtype=float)
    values = grid(rows, metric, subset).loc[:, step].dropna()
    return values, grid(rows, metric, subset, "margin").loc[values.index, step]


def _ends(values: Sequence[float] | np.ndarray) -> str:
    """Describe a curve by its first and last value.

    >>> _ends([0.25, 0.25]), _ends([0.1, 0.5])
    ('0.25 throughout', '0.1 to 0.5')
    """
    low, high = f"{values[0]:.3g}", f"{values[-1]:.3g}"
    return f"{low} throughout" if low == high else f"{low} to {high}"
