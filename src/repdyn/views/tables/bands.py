"""The band of baselines, earlier runs of the same recipe, behind the curves of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from repdyn.views.tables.series import MetricSeries

FEWEST = 3
"""Baselines without which there is no band."""

PlacedSeries: TypeAlias = tuple[MetricSeries, Mapping[int, float]]
"""A series, and its positions by step."""


def interpolated(
    at: np.ndarray, positions: np.ndarray, values: np.ndarray, unit: float
) -> np.ndarray:
    """Return values of layers at other positions: on lines over log(1 + position / unit) inside of
    the measured range, NaN outside of it and beside a missing value.

    Args:
        at: shape (n_positions,).
        positions: shape (n_measured,), ascending.
        values: shape (n_layers, n_measured).
        unit: the smallest position above zero.
    """
    target = np.log1p(at / unit)
    measured = np.log1p(positions / unit)
    courses = [np.interp(target, measured, course, left=np.nan, right=np.nan) for course in values]
    return np.array(courses).reshape(len(values), len(at))


def unit_of(positions: np.ndarray) -> float:
    """Return the smallest position above zero, or 1 where there is none."""
    is_above_zero = positions > 0
    above_zero = positions[is_above_zero]
    return float(above_zero.min()) if len(above_zero) else 1.0


def of_layers(series: MetricSeries, layers: Sequence[int]) -> np.ndarray:
    """Return values of some layers by step, NaN for a layer that was not measured."""
    by_layer = dict(zip(series.layers, series.values, strict=True))
    missing = np.full(len(series.steps), np.nan)
    return np.array([by_layer.get(layer, missing) for layer in layers])


class Limits(NamedTuple):
    """The range of the baselines that have a value, NaN where they are fewer than three."""

    low: np.ndarray
    median: np.ndarray
    high: np.ndarray

    @property
    def is_empty(self) -> bool:
        """Return whether there is no range anywhere."""
        return not np.isfinite(self.median).any()


@dataclass(frozen=True, eq=False)
class Band:
    """One metric on one subset of all baselines, at the layers and steps of a run."""

    layers: tuple[int, ...]
    steps: tuple[int, ...]
    values: np.ndarray
    """Shape (n_baselines, n_layers, n_steps); NaN where a baseline has none."""

    @property
    def n_baselines(self) -> int:
        """Return the number of baselines."""
        return len(self.values)

    @property
    def name(self) -> str:
        """Return the label of the band in legends."""
        return f"range and median of {self.n_baselines} baselines"

    @cached_property
    def limits(self) -> Limits:
        """Return the range by layer and step."""
        return _limits(self.values)

    def of_mean(self, layers: Sequence[int]) -> Limits:
        """Return the range of the baselines' means over some layers, by step."""
        rows = [self.layers.index(layer) for layer in layers]
        return _limits(self.values[:, rows].mean(axis=1))

    def at(self, step: int) -> Limits:
        """Return the range by layer at a step."""
        column = self.steps.index(step)
        return Limits(*(ends[:, column] for ends in self.limits))


def _limits(values: np.ndarray) -> Limits:
    is_band = np.isfinite(values).sum(axis=0) >= FEWEST
    filled = np.where(is_band, values, 0.0)  # of slices without any value NumPy warns
    statistics = (np.nanmin, np.nanmedian, np.nanmax)
    return Limits(*(np.where(is_band, of(filled, axis=0), np.nan) for of in statistics))


def band_of(run: PlacedSeries, baselines: Sequence[PlacedSeries]) -> Band:
    """Return the band of baselines at the layers and steps of a run."""
    series, at_run = run
    positions = np.array([at_run[step] for step in series.steps])
    measured = [np.array([at[step] for step in member.steps]) for member, at in baselines]
    unit = unit_of(np.concatenate([positions, *measured]))
    values = [
        interpolated(positions, at, of_layers(member, series.layers), unit)
        for (member, _), at in zip(baselines, measured, strict=True)
    ]
    return Band(layers=series.layers, steps=series.steps, values=np.array(values))
