"""Plots of stores for notebooks, ``heatmap(store, "two_nn")``: the report's figures as figures of
Plotly.
"""

from repdyn.utils.extras import require

require("views", "repdyn.views.plots", "matplotlib", "plotly")

# once the packages that draw are known to be there
from repdyn.views.plots.figures import compare, heatmap, means, profile  # noqa: E402

__all__ = ["compare", "heatmap", "means", "profile"]
