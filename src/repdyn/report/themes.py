"""Light and dark: the look of the figures, apart from what they show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repdyn.figures.colours import run_colours, step_colours
from repdyn.tables.runs import MeasuredRun
from repdyn.tables.style import ALERT_COLOUR, LOSS_COLOUR, SEQUENTIAL, SUBSET_COLOURS, shades

VALUE, LOSS = SUBSET_COLOURS[0], LOSS_COLOUR
BAND_OPACITY = 0.18

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def template(*, text: str, grid: str, paper: str) -> dict[str, Any]:
    """Return the look of all figures on a background.

    Args:
        text: its colour.
        grid: that of lines that only guide the eye.
        paper: that of the background.
    """
    axis = {"gridcolor": grid, "linecolor": grid, "zerolinecolor": text, "zeroline": False, "automargin": True}
    axis = {**axis, "title": {"font": {"size": 12}}}
    return {
        "layout": {
            "paper_bgcolor": paper,
            "plot_bgcolor": paper,
            "font": {"color": text, "family": _FONT, "size": 13},
            "xaxis": {**axis, "ticks": "outside", "tickcolor": grid},
            "yaxis": axis,
            "colorway": [VALUE],
            "hoverlabel": {"font": {"family": _FONT}},
            "margin": {"l": 60, "r": 20, "t": 16, "b": 50},
            "legend": {"bgcolor": "rgba(0,0,0,0)"},
            "coloraxis": {"colorbar": {"outlinewidth": 0}},
        },
    }


LIGHT = template(text="#1b2733", grid="#e3e8ee", paper="#ffffff")
DARK = template(text="#dbe4ee", grid="#31404f", paper="#17212b")

EMPTY = "#D5DBE1"
"""Cells without a value."""
DARKENED = {VALUE: "#56B4E9", ALERT_COLOUR: "#FF6B6B", LOSS: "#F0A860", EMPTY: "#3A4855"}
"""What stands for a colour on a dark background."""


TRAIL_COLOURS = {
    colour: darkened
    for number in range(1, 8)
    for colour, darkened in zip(step_colours(number), shades(SEQUENTIAL, number, 0.25, 1.0), strict=True)
}
"""What stands on a dark background for the colours of steps that a profile shows with the chosen one."""


def darkened_runs(runs: Sequence[MeasuredRun]) -> dict[str, str]:
    """Return what stands on a dark background for the colour of each run."""
    dark = run_colours(runs, (0.2, 0.7), 0.45)
    return {colour: dark[key] for key, colour in run_colours(runs).items()}


def transparent(colour: str, opacity: float = BAND_OPACITY) -> str:
    """Return a colour with an opacity.

    >>> transparent("#0072B2", 0.2)
    'rgba(0,114,178,0.2)'
    """
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"
