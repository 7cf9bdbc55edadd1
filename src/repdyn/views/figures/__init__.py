"""Figures: stored measurements drawn with matplotlib."""

from repdyn.utils.extras import require

require("report", "repdyn.views.figures", "matplotlib")
