"""Plots of stores for notebooks, ``heatmap(store, "two_nn")``: the report's figures as figures of
Plotly.
"""

from repdyn.utils.extras import require

require("views", "repdyn.views.plots", "matplotlib", "plotly")

from repdyn.views.plots.figures import compare, heatmap, means, profile  # noqa: E402 -- says what is missing first

__all__ = ["compare", "heatmap", "means", "profile"]
