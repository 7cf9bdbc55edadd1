"""How runs are told apart in the pictures of several: colours, markers, the legend that names them.

Decoders are blue and encoders orange, light to dark by number of parameters; a run looks the same in every picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from repdyn.figures.drawing import Curve
from repdyn.tables.families import is_between
from repdyn.tables.frames import of_metric
from repdyn.tables.runs import Key, MeasuredRun, differences, measured_runs
from repdyn.tables.style import KIND_COLOURS, KINDS

Look: TypeAlias = dict[str, Any]
"""Colour and marker of a run, as matplotlib takes them."""

DEPTHS = (-0.04, 1.04)
"""Limits of an axis of relative depth."""
BAND = 0.1
"""Opacity of the bands."""

_MARKERS = "os^DvPX*<>"
_SHADES = (0.42, 1.0)
_ONLY_SHADE = 0.75
_LEGEND_ROWS = 20


def comparable(frame: pd.DataFrame) -> list[MeasuredRun]:
    """The runs in ``frame``, in the order of a comparison.

    Raises:
        ValueError: a run with several models or probes; runs that do not compare.
    """
    runs = measured_runs(frame)
    if why := differences(runs):
        raise ValueError(f"expected runs that compare, got {why}; choose among them")
    return runs


def looks_of(runs: Sequence[MeasuredRun]) -> dict[Key, Look]:
    """Colours from light to dark within each kind, and a marker for each run of a kind."""
    looks: dict[Key, Look] = {}
    for kind, members in groupby(runs, key=lambda run: run.causal):
        group = list(members)
        shades = np.linspace(*_SHADES, len(group)) if len(group) > 1 else [_ONLY_SHADE]
        for number, (run, shade) in enumerate(zip(group, shades, strict=True)):
            colour = to_hex(colormaps[KIND_COLOURS[kind]](shade))
            looks[run.key] = {"color": colour, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 4.5}
    return looks


def legend(figure: Figure, runs: Sequence[MeasuredRun], looks: Mapping[Key, Look], labels: Sequence[str]) -> None:
    """The runs, under a heading for each kind, in the order of the comparison."""
    handles: list[Line2D] = []
    for kind, members in groupby(zip(runs, labels, strict=True), key=lambda member: member[0].causal):
        group = list(members)
        handles.append(Line2D([], [], linestyle="none", label=_plural(kind, len(group))))
        handles += [Line2D([], [], label=label, **looks[run.key]) for run, label in group]
    legend = figure.legend(handles=handles, loc="outside right center", ncols=math.ceil(len(handles) / _LEGEND_ROWS))
    for text, handle in zip(legend.get_texts(), handles, strict=True):
        if handle.get_linestyle() == "None":
            text.set_fontweight("bold")


def legend_width(labels: Sequence[str]) -> float:
    """Inches."""
    n_columns = math.ceil((len(labels) + len(KINDS)) / _LEGEND_ROWS)
    return n_columns * (0.7 + 0.085 * max(map(len, labels)))


def numbers(runs: Sequence[MeasuredRun]) -> str:
    """How many of each kind there are."""
    kinds = [(kind, len(list(members))) for kind, members in groupby(runs, key=lambda run: run.causal)]
    return ", ".join(f"{number} {_plural(kind, number)}" for kind, number in kinds)


def _plural(kind: bool | None, number: int) -> str:
    return f"{KINDS[kind]}{'s' * (number > 1)}" if kind is not None else "of unknown kind"


def ends(runs: Sequence[MeasuredRun]) -> tuple[str, list[str]]:
    """Which checkpoints the profiles are of: in a few words, and what to add to each run's name where they differ."""
    last = {run.steps[-1] for run in runs if not run.finished}
    nothing = [""] * len(runs)
    if not last:
        return "finished models", nothing
    if len(last) == 1:
        return f"at step {last.pop():,}{' or finished' * any(run.finished for run in runs)}", nothing
    return "at the last measured step", ["" if run.finished else f", step {run.steps[-1]:,}" for run in runs]


def profile(run: MeasuredRun, metric: str, subset: str, look: Look) -> Curve:
    """A metric at the end of a run against relative depth; between two layers where it lies between them."""
    cells = of_metric(run.at_end(), metric, subset)
    below = run.rows.loc[run.rows["layer"] > 0]
    of_a_layer = float((below["depth"] / below["layer"]).max()) if is_between(metric) and len(below) else 0.0
    depths = cells["depth"].to_numpy(float) + 0.5 * of_a_layer
    values, margins = (pd.Series(cells[column].to_numpy(float), index=depths) for column in ("value", "margin"))
    return values, margins, look
