"""Light and dark: the look of the figures, apart from what they show."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from repdyn.report.axes import Part
from repdyn.tables.runs import Key, MeasuredRun
from repdyn.tables.style import ALERT_COLOUR, KIND_COLOURS, LOSS_COLOUR, SEQUENTIAL, SUBSET_COLOURS, shades

VALUE, LOSS = SUBSET_COLOURS[0], LOSS_COLOUR
BAND_OPACITY = 0.18

_STEP_SHADES = (0.0, 0.88), (0.25, 1.0)
_RUN_SHADES = (0.45, 1.0), (0.2, 0.7)
_ONLY_RUN = (0.75, 0.45)
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def template(*, text: str, grid: str, paper: str) -> Part:
    """The look of all figures on a background.

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


def step_colours(number: int) -> dict[str, str]:
    """Colours of so many steps, first to last, each with what stands for it on a dark background."""
    return dict(zip(*(shades(SEQUENTIAL, number, *between) for between in _STEP_SHADES), strict=True))


TRAIL_COLOURS = {colour: instead for number in range(1, 8) for colour, instead in step_colours(number).items()}
"""Of every step that a profile shows beside the chosen one, whatever their number."""


def run_colours(runs: Sequence[MeasuredRun]) -> dict[Key, tuple[str, str]]:
    """Colours on a light and on a dark background: decoders blue, encoders orange, by their order within a kind."""
    found: dict[Key, tuple[str, str]] = {}
    for kind, members in groupby(runs, key=lambda run: run.causal):
        group = list(members)
        pairs = (
            shades(KIND_COLOURS[kind], len(group), *(between if len(group) > 1 else (alone, alone)))
            for between, alone in zip(_RUN_SHADES, _ONLY_RUN, strict=True)
        )
        found |= dict(zip((run.key for run in group), zip(*pairs, strict=True), strict=True))
    return found


def transparent(colour: str, opacity: float = BAND_OPACITY) -> str:
    """
    >>> transparent("#0072B2", 0.2)
    'rgba(0,114,178,0.2)'
    """
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"
