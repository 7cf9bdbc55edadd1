"""The values of one metric by layer and step: what every chart is drawn from.

:class:`MetricSeries` is one metric on one subset of one run. Arrays are (n_layers, n_steps), layers
upwards and steps ascending, NaN where nothing was measured. :class:`LayerMean` is its mean over
layers, which are the blocks that have a value at every step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import pandas as pd

from repdyn.metrics import metric_info
from repdyn.views.grid import Grid, layers_in_means
from repdyn.views.tables.frames import (
    REASON_COLUMNS,
    by_metric_and_subset,
    in_order,
    log_spaced,
    metrics_of,
    of_heads,
    of_metric,
    reasons_in_words,
    without_repeats,
)

_COLUMNS = [
    "metric",
    "subset",
    "layer",
    "step",
    "n_batches",
    "value",
    "std_error",
    "low",
    "high",
    "margin",
    *REASON_COLUMNS,
]


def intervals(rows: pd.DataFrame) -> str:
    """Say what a band of measurements means, or why there is none; empty where none has a value."""
    has_value = rows["value"].notna().to_numpy()
    is_unknown = has_value & rows["margin"].isna().to_numpy()
    meaning = "band: 95% interval over probes" if is_unknown.sum() < has_value.sum() else ""
    is_single = bool((rows["n_batches"].to_numpy(float, na_value=np.nan)[is_unknown] < 2).all())
    cause = "a single batch" if is_single else "batches share windows"
    why = f"no interval: {cause}" if is_unknown.any() else ""
    return "; elsewhere ".join(filter(None, [meaning, why]))


@dataclass(frozen=True, slots=True)
class LayerMean:
    """A metric averaged over layers, which are the blocks, by step."""

    mean: pd.Series
    """Index step, over the same layers at every step."""
    low: pd.Series
    """Index step; lower bound of the lower end of the 95% interval; NaN if it is unknown."""
    high: pd.Series
    """Index step; upper bound of its upper end."""
    n_used: int
    """Number of layers averaged over: those with a value at every step that has any."""
    n_layers: int
    """Number of layers measured, without the embeddings."""

    @property
    def margin(self) -> pd.Series:
        """Return half of the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def coverage(self) -> str:
        """Return the number of layers that the mean is over, as text."""
        if self.n_used in (0, self.n_layers):
            return f"{self.n_layers} layers" if self.n_used else "no value"
        return f"{self.n_used} of {self.n_layers} layers"

    @property
    def is_partial(self) -> bool:
        """Return whether some of the measured layers are left out."""
        return self.n_used < self.n_layers


@dataclass(frozen=True, eq=False)
class MetricSeries:
    """One metric on one subset, of one run."""

    metric: str
    subset: str
    rows: pd.DataFrame
    """From :func:`repdyn.views.tables.frames.measurements`, of this metric and subset."""
    head_rows: pd.DataFrame | None = None
    """Values of single attention heads; None if there are none."""
    layer_depth: float = 0.0
    """Relative depth from one layer to the next."""

    @property
    def key(self) -> tuple[str, str]:
        return self.metric, self.subset

    @cached_property
    def grid(self) -> Grid:
        """Return the rows by layer and step."""
        return Grid(self.rows)

    @property
    def n_blocks(self) -> int:
        """Return the number of blocks of the model, measured or not; 0 where none was measured."""
        return round(1 / self.layer_depth) if self.layer_depth else 0

    def from_layer(self, first: int) -> Self:
        """Return the series without the layers below one."""
        is_from = self.rows["layer"] >= first
        return replace(self, rows=self.rows.loc[is_from])

    @cached_property
    def layers(self) -> tuple[int, ...]:
        return tuple(self.grid.layers.tolist())

    @cached_property
    def steps(self) -> tuple[int, ...]:
        return tuple(self.grid.steps.tolist())

    @cached_property
    def values(self) -> np.ndarray:
        """Return (n_layers, n_steps); NaN where there is no value."""
        return self.grid.numbers()

    @cached_property
    def lows(self) -> np.ndarray:
        """Return (n_layers, n_steps): lower ends of the 95% intervals over probes; NaN where they
        are not known.
        """
        return self.grid.numbers("low")

    @cached_property
    def highs(self) -> np.ndarray:
        """Return (n_layers, n_steps): their upper ends."""
        return self.grid.numbers("high")

    @cached_property
    def margins(self) -> np.ndarray:
        """Return (n_layers, n_steps): half of the widths of the intervals."""
        return (self.highs - self.lows) / 2

    @cached_property
    def std_errors(self) -> np.ndarray:
        """Return (n_layers, n_steps): standard errors over probes; NaN where they are not known."""
        return self.grid.numbers("std_error")

    @cached_property
    def n_batches(self) -> np.ndarray:
        """Return (n_layers, n_steps): over how many batches the values are."""
        return self.grid.numbers("n_batches")

    @cached_property
    def places(self) -> np.ndarray:
        """Return (n_layers,): positions on an axis of layers, halfway to the next layer for metrics
        between two.
        """
        shift = 0.5 if metric_info(self.metric).position == "between" else 0.0
        return np.asarray(self.layers, float) + shift

    @property
    def depths(self) -> np.ndarray:
        """Return (n_layers,): positions on an axis of relative depth."""
        return self.places * self.layer_depth

    @cached_property
    def steps_with_values(self) -> list[int]:
        known = (~np.isnan(self.values)).any(axis=0)
        return [self.steps[place] for place in np.flatnonzero(known)]

    @cached_property
    def layer_mean(self) -> LayerMean:
        """Return the mean over the blocks at every step with a value, always over the same ones.

        The embeddings never enter: they are no layer that is learnt in depth, and where tokens
        repeat their dimension is another quantity. A layer without a value at some of these steps
        is left out at all of them: a mean over changing layers would change although no layer does.
        The ends of its interval are the means of those of the layers, which bound it: all layers
        are measured on the same windows, so their deviations may be correlated.
        """
        mean, low, high = (
            pd.Series(self._over_covered(grid), self._covered_steps)
            for grid in (self.values, self.lows, self.highs)
        )
        return LayerMean(
            mean=mean,
            low=low,
            high=high,
            n_used=len(self.mean_layers),
            n_layers=int(self.in_means.sum()),
        )

    def _over_covered(self, grid: np.ndarray) -> np.ndarray:
        """Return the means of a grid (n_layers, n_steps) over the covered layers, by covered
        step; NaN where there is no such layer."""
        layers, steps = self._covered
        total = grid[np.ix_(layers, steps)].sum(axis=0)
        return total / (len(layers) or np.nan)

    @property
    def _covered_steps(self) -> pd.Index:
        return pd.Index(np.asarray(self.steps, int)[self._covered[1]], name="step")

    @cached_property
    def in_means(self) -> np.ndarray:
        """Return (n_layers,): whether a layer enters means, which are over the blocks."""
        return layers_in_means(self.metric, self.layers)

    @cached_property
    def _covered(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of the blocks that have a value at every step at which any block has
        one, and those of these steps."""
        has_value = ~np.isnan(self.values) & self.in_means[:, None]
        steps = np.flatnonzero(has_value.any(0))
        # without any step every layer would count as complete
        layers = has_value[:, steps].all(1) if len(steps) else np.zeros(len(has_value), bool)
        return np.flatnonzero(layers), steps

    @property
    def mean_layers(self) -> tuple[int, ...]:
        """Return the layers that :attr:`layer_mean` is over."""
        return tuple(self.layers[place] for place in self._covered[0])

    @cached_property
    def interval(self) -> str:
        """Describe what a band means, or why there is none."""
        return intervals(self.rows)

    @cached_property
    def reasons(self) -> tuple[tuple[str, ...], ...] | None:
        """Return (n_layers, n_steps): why there is no value, "" where there is one; None if there
        is one everywhere.
        """
        missing = self.rows.loc[self.rows["value"].isna()]
        if missing.empty:
            return None
        by_cell = dict(
            zip(
                zip(missing["layer"], missing["step"], strict=True),
                reasons_in_words(missing),
                strict=True,
            )
        )
        return tuple(
            tuple(by_cell.get((layer, step), "") for step in self.steps) for layer in self.layers
        )

    @cached_property
    def heads(self) -> tuple[int, ...]:
        return (
            ()
            if self.head_rows is None
            else tuple(sorted(self.head_rows["head"].unique().tolist()))
        )

    @cached_property
    def by_head(self) -> np.ndarray | None:
        """Return (n_steps, n_layers, n_heads): values of single attention heads; None if there are
        none.
        """
        if self.head_rows is None:
            return None
        axes = {"step": self.steps, "layer": self.layers, "head": self.heads}
        values = np.full([len(numbers) for numbers in axes.values()], np.nan)
        at = tuple(np.searchsorted(numbers, self.head_rows[name]) for name, numbers in axes.items())
        values[at] = self.head_rows["value"].to_numpy(float)
        return values

    def at(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return values and margins over depth at a measured step, each of shape (n_layers,)."""
        column = self.steps.index(step)
        return self.values[:, column], self.margins[:, column]

    def band_at(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the intervals over depth at a measured step, each (n_layers,)."""
        column = self.steps.index(step)
        return self.lows[:, column], self.highs[:, column]


def on_shared_layers(*members: MetricSeries) -> list[MetricSeries]:
    """Return series of one metric on several subsets, in the layers in which each has a value at
    some step: means over different layers would not compare. Without such a layer they stay."""
    layers = [set(series.rows.dropna(subset=["value"])["layer"]) for series in members]
    shared = set.intersection(*layers)
    # each then says of itself why it has no value
    if not shared:
        return list(members)
    return [
        replace(series, rows=series.rows.loc[series.rows["layer"].isin(sorted(shared))])
        for series in members
    ]


def series_without_repeats(
    metric: str, series: Mapping[tuple[str, str], MetricSeries]
) -> MetricSeries | None:
    """Return the series of a metric without repeated tokens, of the subset that
    :func:`repdyn.views.tables.frames.without_repeats` chooses; None where none was measured.

    Args:
        metric: name.
        series: all series of a run, by metric and subset.
    """
    has_value = {
        subset: bool(one.steps_with_values)
        for (name, subset), one in series.items()
        if name == metric
    }
    subset = without_repeats(has_value)
    return None if subset is None else series[metric, subset]


def series_of(rows: pd.DataFrame, metric: str, subset: str) -> MetricSeries:
    """Return the series of one metric on one subset; it has no step where that was not measured."""
    cells = of_metric(rows, metric, subset)
    return MetricSeries(metric, subset, cells, layer_depth=_layer_depth(cells))


def _layer_depth(rows: pd.DataFrame) -> float:
    """Return the relative depth from one layer to the next; 0 where no block was measured."""
    layers = rows["layer"].to_numpy(float)
    is_block = layers > 0
    depths = rows["depth"].to_numpy(float)[is_block] / layers[is_block]
    return float(np.nanmax(depths)) if np.isfinite(depths).any() else 0.0


def metric_series(
    rows: pd.DataFrame, frame: pd.DataFrame | None = None
) -> dict[tuple[str, str], MetricSeries]:
    """Return the series of every metric on every subset it was measured on, in the order in which
    they are shown.

    ``frame`` has the rows that the measurements were taken from, if the values of single heads are
    needed.
    """
    cells = by_metric_and_subset(rows.loc[:, _COLUMNS])
    by_head = {} if frame is None else by_metric_and_subset(of_heads(frame))
    layer_depth = _layer_depth(rows)
    return {
        (metric, subset): MetricSeries(
            metric=metric,
            subset=subset,
            rows=cells[metric, subset],
            head_rows=by_head.get((metric, subset)),
            layer_depth=layer_depth,
        )
        for metric in metrics_of(rows)
        for subset in in_order(of for name, of in cells if name == metric)
    }


def thin(steps: Sequence[int], values: Sequence[float], limit: int) -> list[int]:
    """Return the indices of at most ``limit`` points of a curve, four or more: both ends, the
    lowest, the highest and log-spaced others. Steps ascend, and values may be NaN.

    >>> thin([0, 1, 2, 4, 8, 16, 32], [0.0, 0.1, 0.2, 9.0, 0.3, 0.2, 0.1], 4)
    [0, 3, 6]
    """
    curve = np.asarray(values, float)
    valued = np.flatnonzero(~np.isnan(curve))
    extremes: list[int] = []
    if len(valued):
        # the first of the lowest and the first of the highest
        extremes = [int(valued[at(curve[valued])]) for at in (np.argmin, np.argmax)]
    # fewer log-spaced ones, until the extremes fit in as well
    chosen = (sorted({*log_spaced(steps, number), *extremes}) for number in range(limit, 1, -1))
    return next(kept for kept in chosen if len(kept) <= limit)
