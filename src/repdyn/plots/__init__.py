"""Plots and tables of stores for notebooks; also as methods, ``store.plot.heatmap("two_nn")``.

figures   ``heatmap``, ``profile``, ``means`` and ``compare``: the report's figures as figures of Plotly
accessor  ``StorePlots``: the same functions for one store
html      how a store is shown at the end of a notebook's cell
"""

from repdyn.utils.extras import require

require("report", "repdyn.plots", "matplotlib", "plotly")

from repdyn.plots.figures import compare, heatmap, means, profile  # noqa: E402 -- says what is missing first

__all__ = ["compare", "heatmap", "means", "profile"]
