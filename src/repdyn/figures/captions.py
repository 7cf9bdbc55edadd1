"""Titles, captions and colours of charts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from repdyn.tables.designs import sampling
from repdyn.tables.frames import stack_of
from repdyn.tables.runs import Key, MeasuredRun
from repdyn.tables.style import KIND_COLOURS, SEQUENTIAL, shades


def run_title(rows: pd.DataFrame, text: str) -> str:
    """Return a title that begins with the stack of the run's model, if it has several."""
    stack = stack_of(rows)
    return text if stack is None else f"{stack}: {text}"


def run_caption(rows: pd.DataFrame, *more: str) -> str:
    """Return the name of the run, its model, how its vectors were sampled, and further lines."""
    first = rows.iloc[0]
    return "\n".join([f"{first['run']}, {first['model']}, {sampling(rows)}", *filter(None, more)])


def notes(*texts: str) -> str:
    """Join the texts that are not empty."""
    return "; ".join(filter(None, texts))


def wrapped(text: str, width: int) -> str:
    """Wrap a text into as few lines of at most ``width`` characters as hold it, of about the same length.

    >>> print(wrapped("neighbours of the same window left out", 35))
    neighbours of the
    same window left out
    """
    lines = textwrap.wrap(text, width, break_on_hyphens=False)
    for narrower in range(width - 1, 0, -1):
        even = textwrap.wrap(text, narrower, break_on_hyphens=False, break_long_words=False)
        if len(even) > len(lines) or max(map(len, even), default=0) > narrower:
            break
        lines = even
    return "\n".join(lines)


def compared(rows: pd.DataFrame) -> str:
    """Return which checkpoints are compared by metrics of two checkpoints; empty if there are none.

    Args:
        rows: from :func:`repdyn.tables.frames.measurements`.
    """
    pairs = rows.loc[rows["compared_to"].notna(), ["step", "compared_to"]].drop_duplicates().sort_values("step")
    if pairs.empty:
        return ""
    steps = sorted(rows["step"].unique().tolist())
    before = dict(zip(steps[1:], steps, strict=False))
    others = [(step, to) for step, to in pairs.itertuples(index=False) if before.get(step, to) != to]
    text = "each checkpoint compared with the one measured before it"
    return f"{text}, but {_listed(others)}" if others else text


def _listed(pairs: Sequence[tuple[int, int]], most: int = 3) -> str:
    parts = [f"step {step:,} with {to:,}" for step, to in pairs[:most]]
    return ", ".join([*parts, f"{len(pairs) - most} more"] if len(pairs) > most else parts)


_MARKERS = "os^DvPX*<>"


def step_colours(number: int) -> list[str]:
    """Return colours for a number of steps, dark to light."""
    return shades(SEQUENTIAL, number, 0.0, 0.9)


def run_colours(
    runs: Sequence[MeasuredRun], between: tuple[float, float] = (0.43, 1.0), alone: float = 0.75
) -> dict[Key, str]:
    """Return a colour for each run: decoders blue, encoders orange, by their order within a kind.

    Args:
        runs: in the order of a comparison.
        between: places of the first and the last of a kind in its colour map.
        alone: place of the only one of its kind.
    """
    colours: dict[Key, str] = {}
    for kind, members in groupby(runs, key=lambda run: run.causal):
        keys = [run.key for run in members]
        ends = between if len(keys) > 1 else (alone, alone)
        colours |= dict(zip(keys, shades(KIND_COLOURS[kind], len(keys), *ends), strict=True))
    return colours


def run_looks(runs: Sequence[MeasuredRun]) -> dict[Key, dict[str, Any]]:
    """Return colour and marker of each run, as :class:`repdyn.figures.charts.Line` takes them."""
    colours = run_colours(runs)
    markers: dict[Key, str] = {}
    for _, members in groupby(runs, key=lambda run: run.causal):
        markers |= {run.key: _MARKERS[number % len(_MARKERS)] for number, run in enumerate(members)}
    return {key: {"colour": colour, "marker": markers[key], "marker_size": 4.5} for key, colour in colours.items()}
