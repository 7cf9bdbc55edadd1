"""Titles and captions of charts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd

from repdyn.tables.designs import sampling
from repdyn.tables.frames import stack_of


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
