"""The figure of a recipe: published values drawn over measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from repdyn.figures.charts import Axis, Chart, Line, Panel
from repdyn.figures.drawing import draw
from repdyn.recipes.criteria import Criterion
from repdyn.recipes.criteria_models import Control
from repdyn.recipes.criteria_training import Between, Correlation
from repdyn.recipes.evaluation import Outcome, count_verdicts
from repdyn.recipes.measured import Measured, NotMeasuredError
from repdyn.recipes.recipe import Published, Recipe
from repdyn.tables.designs import sampling_of_runs
from repdyn.tables.effects import CannotBeJudgedError, Estimate
from repdyn.tables.style import LOSS_COLOUR, SEQUENTIAL, metric_title, metric_unit, shades, subset_title

COLUMNS = 2
_PANEL = (5.2, 3.5)


def draw_recipe(recipe: Recipe, outcomes: Sequence[Outcome], measured: Sequence[Measured]) -> Figure | None:
    """Draw a panel for each published value that was measured, and the published places and values over ours.

    Args:
        recipe: what was published.
        outcomes: from :func:`repdyn.recipes.evaluate`, with the same recipe.
        measured: from the same.

    Returns:
        None if nothing was measured.
    """
    colours = dict(zip([each.name for each in measured], shades(SEQUENTIAL, len(measured), 0.1, 0.8), strict=True))
    drawn: list[tuple[Criterion, Panel]] = []
    for number, published in enumerate(recipe.published, start=1):
        criterion = published.criterion
        if criterion is None:
            continue
        own = [outcome for outcome in outcomes if outcome.published is published]
        runs = {outcome.run for outcome in own if outcome.verdict != "not run"}
        about = [each for each in measured if each.name in runs or "" in runs]
        lines = [
            line
            for place, each in enumerate(about)
            for line in _lines(criterion, published.metric, each, colours[each.name], place)
        ]
        if lines:
            title = f"{number}. {criterion.short}\n{count_verdicts(own)}"
            drawn.append((criterion, _panel(title, published, criterion, lines)))
    if not drawn:
        return None
    rows = -(-len(drawn) // COLUMNS)
    columns = min(COLUMNS, len(drawn))
    chart = Chart(
        title=f"{recipe.title} (arXiv {recipe.paper})",
        caption=f"Titles and orange: published. {sampling_of_runs({each.name: each.rows for each in measured})}",
        panels=[panel for _, panel in drawn],
        size=(_PANEL[0] * columns, _PANEL[1] * rows + 0.5),
        columns=columns,
    )
    figure = draw(chart)
    for axes, (criterion, _) in zip(figure.axes, drawn, strict=False):
        look: dict[str, Any] = {"color": LOSS_COLOUR, "alpha": 0.12, "linewidth": 0, "zorder": 0}
        if criterion.band is not None:
            axes.axvspan(*criterion.band, **look)
        if isinstance(criterion, Between):
            axes.axhspan(*criterion.bounds, **look)
    return figure


def _panel(title: str, published: Published, criterion: Criterion, lines: Sequence[Line]) -> Panel:
    x = {
        "depth": Axis(label="relative depth (0: first block, 1: last)", limits=(0.0, 1.0)),
        "training": Axis(label="step", log_from=1.0),
        "other metric": Axis(label=_name(criterion.other) if isinstance(criterion, Correlation) else ""),
        "width": Axis(label="width of the layers"),
        "stage": Axis(label="stage, in the order of the recipe"),
    }[criterion.axis]
    if published.points:
        at, values = zip(*published.points, strict=True)
        lines = [*lines, Line(x=at, y=values, colour=LOSS_COLOUR, marker="D", dash="none", label="published")]
    return Panel(title=title, x=x, y=Axis(label=_name(published.metric)), lines=lines, legend="inside")


def _name(metric: str) -> str:
    base, _, subset = metric.partition("@")
    return f"{metric_title(base)} ({metric_unit(base)}), {subset_title(subset or 'all')}"


def _lines(criterion: Criterion, metric: str, measured: Measured, colour: str, place: int) -> list[Line]:
    """Return the measured lines for a published value on one model, the ``place``-th of its models from 0; empty if it
    cannot be drawn."""
    look: dict[str, Any] = {"colour": colour, "label": measured.name}
    try:
        if criterion.axis == "depth":
            profile = measured.profile(metric, criterion.step)
            lines = [Line(x=profile.positions, y=_values(profile.blocks), **look)]
            if isinstance(criterion, Control) and measured.control is not None:
                profile = measured.control.profile(metric, criterion.step)
                look["label"] = f"{measured.name}, control"
                lines.append(Line(x=profile.positions, y=_values(profile.blocks), dash="--", **look))
            return lines
        if isinstance(criterion, Correlation):
            _, x, y = criterion.pairs(measured, metric)
            return [Line(x=x, y=y, dash="none", **look)]
        course = measured.course(metric, criterion.layers)
    except (CannotBeJudgedError, NotMeasuredError):
        return []
    if criterion.over_models:
        return [
            Line(
                x=[measured.dim if criterion.axis == "width" else place],
                y=_values(course.values[-1:]),
                dash="none",
                **look,
            )
        ]
    return [Line(x=course.steps, y=_values(course.values), **look)]


def _values(estimates: Sequence[Estimate]) -> list[float]:
    return [estimate.value for estimate in estimates]
