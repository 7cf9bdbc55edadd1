"""The lines of a panel of a recipe's figure: measured profiles, courses and points of models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from repdyn.figures.charts import Line
from repdyn.recipes.criteria import Criterion
from repdyn.recipes.criteria_models import Across, Control, Scaling
from repdyn.recipes.criteria_training import Correlation, Phases, turning_points
from repdyn.recipes.measured import Measured, NotMeasuredError
from repdyn.tables.effects import CONFIDENCE, CannotBeJudgedError, Estimate

_GUIDE_COLOUR = "#999999"


def lines_of(criterion: Criterion, metric: str, models: Sequence[Measured], colours: Mapping[str, str]) -> list[Line]:
    """Return the lines of models, and those that guide the eye; empty if none can be drawn.

    Args:
        criterion: what is judged.
        metric: of which values.
        models: those that are judged, in the order of the recipe.
        colours: by name of the model.
    """
    lines = []
    for place, each in enumerate(models):
        try:
            lines += _lines(criterion, metric, each, colours[each.name], place)
        except (CannotBeJudgedError, NotMeasuredError):
            continue
    return [*_guides(criterion, lines), *lines]


def stage_names(names: Sequence[str]) -> list[str]:
    """Return names without the folders that all of them share.

    >>> stage_names(["lab/a/0-base", "lab/a/1-sft"]), stage_names(["lab/a", "other/b"])
    (['0-base', '1-sft'], ['lab/a', 'other/b'])
    """
    parts = [name.split("/") for name in names]
    shared = 0
    while all(len(each) > shared + 1 and each[shared] == parts[0][shared] for each in parts):
        shared += 1
    return ["/".join(each[shared:]) for each in parts]


def _lines(criterion: Criterion, metric: str, measured: Measured, colour: str, place: int) -> list[Line]:
    """Return the lines of one model, the ``place``-th from 0."""
    look: dict[str, Any] = {"colour": colour, "label": measured.name}
    if isinstance(criterion, Across):
        x, y = criterion.point(measured, metric)
        return [Line(x=[x], y=[y], dash="none", marker_size=7, **look)]
    if criterion.axis == "depth":
        return _profiles(criterion, metric, measured, look)
    if isinstance(criterion, Correlation):
        # dotted through the training, to a larger mark at its end
        _, x, y = criterion.pairs(measured, metric)
        end = Line(x=x[-1:], y=y[-1:], colour=colour, dash="none", marker_size=8)
        return [Line(x=x, y=y, dash=":", width=0.9, **look), end]
    course = measured.course(metric, criterion.layers)
    if criterion.over_models:
        at = [measured.dim if criterion.axis == "width" else place]
        last = course.values[-1:]
        if criterion.axis == "stage":
            look["label"] = ""  # the axis names them
        return [Line(x=at, y=_values(last), margin=_margins(last), kind="points", dash="none", marker_size=7, **look)]
    lines = [Line(x=course.steps, y=_values(course.values), margin=_margins(course.values), **look)]
    values = [value.value for value in course.values]
    if isinstance(criterion, Phases) and len(values) >= criterion.least_checkpoints and min(values) > 0:
        turns = turning_points([math.log(value) for value in values], criterion.phases)
        ends = [course.steps[turn] for turn in turns], [values[turn] for turn in turns]
        lines.append(Line(x=ends[0], y=ends[1], colour=colour, dash="none", marker_size=9))
    return lines


def _profiles(criterion: Criterion, metric: str, measured: Measured, look: Mapping[str, Any]) -> list[Line]:
    profile = measured.profile(metric, criterion.step)
    lines = [Line(x=profile.positions, y=_values(profile.blocks), margin=_margins(profile.blocks), **look)]
    if isinstance(criterion, Control) and measured.control is not None:
        control = measured.control.profile(metric, criterion.step)
        label = f"{measured.name}, control"
        lines.append(Line(x=control.positions, y=_values(control.blocks), dash="--", **{**look, "label": label}))
    return lines


def _guides(criterion: Criterion, lines: Sequence[Line]) -> list[Line]:
    """Return a line from stage to stage, or the fitted power law."""
    x, y = (np.array([getattr(line, name)[0] for line in lines], float) for name in ("x", "y"))
    look: dict[str, Any] = {"colour": _GUIDE_COLOUR, "marker": "", "width": 1.0}
    if criterion.axis == "stage" and len(lines) > 1:
        return [Line(x=x, y=y, dash="--", **look)]
    if isinstance(criterion, Scaling) and len(set(x)) > 1 and y.min() > 0:
        slope, offset = np.polyfit(np.log(x), np.log(y), 1)
        at = np.geomspace(x.min(), x.max(), 50)
        return [Line(x=at, y=np.exp(offset) * at**slope, dash="--", **look)]
    return []


def _values(estimates: Sequence[Estimate]) -> list[float]:
    return [estimate.value for estimate in estimates]


def _margins(estimates: Sequence[Estimate]) -> np.ndarray | None:
    """Return half of the 95 % interval of each value; None if none is known, or all are taken as exact."""
    errors = np.array([estimate.std_error for estimate in estimates], float)
    freedom = np.array([estimate.n_batches - 1 for estimate in estimates], float)
    margins = stdtrit(freedom, (1 + CONFIDENCE) / 2) * errors
    return None if np.isnan(margins).all() or not np.nanmax(margins) else margins
