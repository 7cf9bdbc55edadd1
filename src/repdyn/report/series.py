"""The values of one metric by layer and step, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from repdyn.tables.designs import intervals
from repdyn.tables.families import commonest_reason, places
from repdyn.tables.frames import grid, in_order, layer_mean, metrics_of, of_heads

DTYPE = np.float32
"""Seven digits: enough to look at. The store has all of them."""

_COLUMNS = ["metric", "subset", "layer", "step", "n_batches", "value", "margin", "reason"]


@dataclass(frozen=True, eq=False)
class MetricSeries:
    """One metric on one subset of tokens."""

    metric: str
    subset: str
    layers: tuple[int, ...]
    steps: tuple[int, ...]
    values: np.ndarray
    """(n_layers, n_steps); NaN where there is none."""
    margins: np.ndarray
    """(n_layers, n_steps) half of the 95 % interval over probes; NaN where it is not known."""
    depths: np.ndarray
    """(n_layers,) relative depths, where lines over depth have their points."""
    mean: np.ndarray
    """(n_steps,) over layers, as :func:`repdyn.tables.frames.layer_mean` takes it; NaN where there is none."""
    mean_margin: np.ndarray
    """(n_steps,) half of its 95 % interval, from above; NaN where it is not known."""
    interval: str
    """What a band means, or why there is none."""
    n_used: int
    """Layers averaged over."""
    reasons: tuple[tuple[str, ...], ...] | None
    """(n_layers, n_steps) why there is no value, "" where there is one; None where all have one."""
    heads: tuple[int, ...] = ()
    by_head: np.ndarray | None = None
    """(n_steps, n_layers, n_heads) values of single attention heads; None where there are none."""

    @property
    def key(self) -> tuple[str, str]:
        return self.metric, self.subset

    @property
    def places(self) -> np.ndarray:
        """(n_layers,) where on an axis of layers the values are drawn."""
        return places(self.metric, self.layers)


def courses_of(rows: pd.DataFrame, frame: pd.DataFrame) -> dict[tuple[str, str], MetricSeries]:
    """Every metric on every token subset it was measured on, in the order in which they are shown.

    Args:
        rows: from :func:`repdyn.tables.frames.measurements`.
        frame: what they were taken from, with the values of single heads.
    """
    # cut once: to look for each metric among all rows takes longer than all the rest
    cells = dict(list(rows.loc[:, _COLUMNS].groupby(["metric", "subset"])))
    heads = of_heads(frame)
    of_head = dict(list(heads.groupby(["metric", "subset"]))) if len(heads) else {}
    deepest = rows.loc[rows["layer"] > 0]
    of_a_layer = float((deepest["depth"] / deepest["layer"]).max()) if len(deepest) else 0.0
    keys = [(metric, subset) for metric in metrics_of(rows) for subset in in_order(s for m, s in cells if m == metric)]
    return {key: _course(*key, cells[key], of_head.get(key), of_a_layer) for key in keys}


def _course(
    metric: str, subset: str, rows: pd.DataFrame, heads: pd.DataFrame | None, of_a_layer: float
) -> MetricSeries:
    values, margins = grid(rows, metric, subset), grid(rows, metric, subset, "margin")
    layers, steps = (tuple(map(int, index)) for index in (values.index, values.columns))
    average = layer_mean(rows, metric, subset)
    mean, mean_margin = (series.reindex(steps).to_numpy(DTYPE) for series in (average.mean, average.margin))
    return MetricSeries(
        metric,
        subset,
        layers,
        steps,
        values.to_numpy(DTYPE),
        margins.to_numpy(DTYPE),
        places(metric, layers) * of_a_layer,
        mean,
        mean_margin,
        intervals(rows),
        average.n_used,
        _reasons(rows, layers, steps),
        () if heads is None else tuple(sorted(heads["head"].unique().tolist())),
        None if heads is None else _by_head(heads, layers, steps),
    )


def _reasons(rows: pd.DataFrame, layers: tuple[int, ...], steps: tuple[int, ...]) -> tuple[tuple[str, ...], ...] | None:
    missing = rows.loc[rows["value"].isna()]
    if missing.empty:
        return None
    told: dict[tuple[int, int], str] = {}
    for _, alike in missing.groupby("reason", dropna=False):
        reason = commonest_reason(alike)
        told |= dict.fromkeys(zip(alike["layer"].tolist(), alike["step"].tolist(), strict=True), reason)
    return tuple(tuple(told.get((layer, step), "") for step in steps) for layer in layers)


def _by_head(rows: pd.DataFrame, layers: tuple[int, ...], steps: tuple[int, ...]) -> np.ndarray:
    heads = sorted(rows["head"].unique().tolist())
    values = np.full((len(steps), len(layers), len(heads)), np.nan, DTYPE)
    at = (np.searchsorted(known, rows[name]) for known, name in ((steps, "step"), (layers, "layer"), (heads, "head")))
    values[tuple(at)] = rows["value"].to_numpy(DTYPE)
    return values
