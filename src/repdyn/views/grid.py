"""What was measured of one metric on one subset, by layer and step: the one grid that alerts,
statements, criteria, claims of papers and charts read.

It needs no pandas, since alerts are raised in trainings that have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from repdyn.metrics.registry import metric_info

if TYPE_CHECKING:
    import pandas as pd

NO_LAYER = -1
"""Stands for the layer of a scalar of the run."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Cells of one metric on one subset, or of a scalar of the run, in grids of the shape
    (n_layers, n_steps)."""

    cells: Mapping[str, Any] | pd.DataFrame
    """Columns of equal length, ``layer`` and ``step`` among them."""

    @cached_property
    def _by_layer(self) -> tuple[np.ndarray, np.ndarray]:
        return np.unique(np.asarray(self.cells["layer"], int), return_inverse=True)

    @cached_property
    def _by_step(self) -> tuple[np.ndarray, np.ndarray]:
        return np.unique(np.asarray(self.cells["step"], int), return_inverse=True)

    @property
    def layers(self) -> np.ndarray:
        """Return (n_layers,), ascending."""
        return self._by_layer[0]

    @property
    def steps(self) -> np.ndarray:
        """Return (n_steps,), ascending."""
        return self._by_step[0]

    def numbers(self, column: str = "value") -> np.ndarray:
        """Return a column by layer and step, NaN where nothing was measured."""
        return self._filled(column, np.nan, float)

    def texts(self, column: str) -> np.ndarray:
        """Return a column of texts by layer and step, "" where nothing was measured."""
        return self._filled(column, "", object)

    def _filled(self, column: str, missing: object, kind: type) -> np.ndarray:
        grid = np.full((len(self.layers), len(self.steps)), missing, kind)
        grid[self._by_layer[1], self._by_step[1]] = np.asarray(self.cells[column], kind)
        return grid


def layers_in_means(metric: str, layers: Iterable[int]) -> np.ndarray:
    """Return which layers enter means over layers: the blocks do, and a scalar does as the only
    one."""
    info = metric_info(metric)
    return np.array([layer == NO_LAYER or info.enters_means(layer) for layer in layers], bool)
