"""The plots of one store, as its attribute ``plot``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repdyn.plots.figures import compare, heatmap, means, profile
from repdyn.store import Store

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class StorePlots:
    """Plotly figures of the runs of a store; see :mod:`repdyn.plots` for the arguments.

    Args:
        store: with measurements.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def heatmap(self, metric: str, subset: str = "all", **options: Any) -> Figure:
        """Return a metric by layer and measured step; see :func:`repdyn.plots.heatmap`."""
        return heatmap(self._store, metric, subset, **options)

    def profile(self, metric: str, subset: str = "all", **options: Any) -> Figure:
        """Return a metric over depth; see :func:`repdyn.plots.profile`."""
        return profile(self._store, metric, subset, **options)

    def means(self, metric: str, subset: str = "all", **options: Any) -> Figure:
        """Return a metric averaged over layers during training; see :func:`repdyn.plots.means`."""
        return means(self._store, metric, subset, **options)

    def compare(self, metric: str, subset: str = "all", **options: Any) -> Figure:
        """Return a metric of several runs; see :func:`repdyn.plots.compare`."""
        return compare(self._store, metric, subset, **options)
