"""Figures: stored measurements drawn with matplotlib."""

from repdyn.utils.extras import require

require("views", "repdyn.views.figures", "matplotlib")
