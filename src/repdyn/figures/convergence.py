"""How a model's layers approach its last one: alignment, its gradient, and monotone functions of depth for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repdyn.figures.drawing import entitle_run, line
from repdyn.figures.overviews import last_place, over_depth
from repdyn.store.schema import FINISHED
from repdyn.tables.alignment_profile import isotonic_fit, lower_envelope
from repdyn.tables.designs import intervals
from repdyn.tables.families import defined_subsets
from repdyn.tables.frames import NO_CLASSES, grid, in_order, is_finished, measurements, metrics_of
from repdyn.tables.style import LOSS_COLOUR, SUBSET_COLOURS, metric_title, metric_unit, styled, subset_title

ALIGNMENT, GRADIENT = "alignment", "alignment_gradient"


@styled
def convergence(frame: pd.DataFrame) -> Figure:
    """Alignment and its gradient at the last measured step, on all tokens and without sinks where it was measured so.

    Beside the alignment the constant rate that would lead from its first value to its last; beside the gradient its
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
    figure = Figure(figsize=(10.6, 1.0 + 3.2 * len(subsets)))
    panels = figure.subplots(len(subsets), 2, squeeze=False)
    for (left, right), subset in zip(panels, subsets, strict=True):
        _draw_alignment(left, rows, subset, step)
        _draw_gradient(right, rows, subset, step)
        for panel in (left, right):
            over_depth(panel, last_place(rows))
            panel.set_xlabel("layer (0 = embedding output)")
    when = FINISHED if is_finished(rows) else f"at step {step:,}"
    shown = rows.loc[rows["metric"].isin([ALIGNMENT, GRADIENT]) & rows["subset"].isin(subsets)]
    note = intervals(shown.loc[shown["step"] == step], "band and bars")
    entitle_run(figure, shown, f"Convergence to the last layer, {when}", note)
    return figure


def _draw_alignment(panel: Axes, rows: pd.DataFrame, subset: str, step: int) -> None:
    title = f"{metric_title(ALIGNMENT)}, {subset_title(subset)}"
    panel.set_ylabel(metric_unit(ALIGNMENT))
    values, margins = _at(rows, ALIGNMENT, subset, step)
    if values.empty:
        panel.set_title(f"{title}: not measured", loc="left", fontsize=9)
        return
    line(panel, values, margins, color=SUBSET_COLOURS[0], marker="o", label="alignment")
    first, last = values.index[0], values.index[-1]
    rate = (values[last] - values[first]) / (last - first) if last > first else np.nan
    panel.plot(
        [first, last], [values[first], values[last]], color="0.45", linestyle="--", linewidth=1.2, label="constant rate"
    )
    panel.set_title(
        f"{title}\nat layer {first}: {values[first]:.3g}; average rate {rate:.3g} per layer", loc="left", fontsize=9
    )
    panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), fontsize=8)


def _draw_gradient(panel: Axes, rows: pd.DataFrame, subset: str, step: int) -> None:
    values, margins = _at(rows, GRADIENT, subset, step)
    layers, gradient = values.index.to_numpy(float), values.to_numpy(float)
    fit, bound = isotonic_fit(gradient), lower_envelope(gradient)
    panel.bar(layers + 0.5, gradient, 0.86, color=SUBSET_COLOURS[0], alpha=0.35, label="gradient")
    panel.errorbar(layers + 0.5, gradient, margins, linestyle="none", color=SUBSET_COLOURS[0], elinewidth=1)
    _steps(panel, layers, fit, color=LOSS_COLOUR, linewidth=1.8, label="isotonic fit")
    _steps(panel, layers, bound, color="0.2", linestyle="--", linewidth=1.5, label="lower envelope")
    panel.axhline(0, color="0.5", linewidth=1)
    panel.set_ylabel(metric_unit(GRADIENT))
    title = f"{metric_title(GRADIENT)}, {subset_title(subset)}"
    panel.set_title(f"{title}\nfit {_ends(fit)}; envelope {_ends(bound)}", loc="left", fontsize=9)
    panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), fontsize=8)


def _at(rows: pd.DataFrame, metric: str, subset: str, step: int) -> tuple[pd.Series, pd.Series]:
    """Values against layer at a step, with half of their 95 % intervals; empty where there are none."""
    if metric not in metrics_of(rows) or subset not in defined_subsets(rows, metric):
        return pd.Series(dtype=float), pd.Series(dtype=float)
    values = grid(rows, metric, subset).loc[:, step].dropna()
    return values, grid(rows, metric, subset, "margin").loc[values.index, step]


def _steps(panel: Axes, layers: np.ndarray, values: np.ndarray, **look: Any) -> None:
    """A function that is constant between a layer and the next; broken where one is missing."""
    runs = np.split(np.arange(len(layers)), np.flatnonzero(np.diff(layers) > 1) + 1)
    for number, run in enumerate(runs):
        named = look if number == 0 else {**look, "label": None}
        panel.stairs(values[run], [*layers[run], layers[run[-1]] + 1], baseline=None, **named)


def _ends(values: Sequence[float] | np.ndarray) -> str:
    """
    >>> _ends([0.25, 0.25]), _ends([0.1, 0.5])
    ('0.25 throughout', '0.1 to 0.5')
    """
    low, high = f"{values[0]:.3g}", f"{values[-1]:.3g}"
    return f"{low} throughout" if low == high else f"{low} to {high}"
