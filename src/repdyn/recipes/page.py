"""The figure and the HTML page of a recipe: published values over measured ones, and their criteria."""

from __future__ import annotations

import base64
import math
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.special import stdtrit

from repdyn.figures.charts import Axis, Chart, Line, Panel, notes
from repdyn.figures.drawing import draw, save
from repdyn.recipes.criteria import Between, Cell, Correlation, Phases, turning_points
from repdyn.recipes.evaluation import Outcome, count_verdicts, describe_sampling
from repdyn.recipes.measured import Measured, NotMeasuredError
from repdyn.recipes.recipe import Criterion, Published, Recipe
from repdyn.report.markup import Markup, asset, joined, policy, table, tag
from repdyn.tables.effects import CONFIDENCE, CannotBeJudgedError, Estimate
from repdyn.tables.frames import concatenated
from repdyn.tables.style import LOSS_COLOUR, SEQUENTIAL, metric_title, metric_unit, shades, short_subset_title
from repdyn.tables.texts import brief_sampling
from repdyn.utils.files import write_atomically

COLUMNS = 2
_PANEL = (5.2, 3.6)
_LEGEND_WIDTH = 2.4
_TITLE_WIDTH, _LABEL_WIDTH = 54, 46
"""Characters of a line of a panel's title, and of the label of its horizontal axis."""
_VERDICT_COLOURS: Mapping[str, str] = {
    "reproduced": "#1a7f37",
    "not reproduced": "#b42318",
    "cannot be judged": "#8a6100",
    "not run": "#666666",
}
_MIXED = "#333333"


def draw_recipe(recipe: Recipe, outcomes: Sequence[Outcome], measured: Sequence[Measured]) -> Figure | None:
    """Draw a panel for each published value that was judged, with the models that it was judged on.

    Returns:
        None if nothing was judged.
    """
    by_name = {each.name: each for each in measured}
    colours = dict(zip(by_name, shades(SEQUENTIAL, len(measured), 0.05, 0.85), strict=True))
    drawn: list[tuple[Criterion, Panel, str]] = []
    shown: dict[str, Line] = {}
    for number, published in enumerate(recipe.published, start=1):
        criterion = published.criterion
        own = [outcome for outcome in outcomes if outcome.published is published and outcome.is_judged]
        if criterion is None or isinstance(criterion, Cell) or not own:
            continue
        models = [by_name[outcome.run] for outcome in own]
        lines = lines_of(criterion, published.metric, models, colours)
        if not lines:
            continue
        lines += _published_points(published)
        shown = {line.label: line for line in lines if line.label} | shown
        drawn.append((criterion, _panel(number, published, criterion, own, lines), _colour(own)))
    if not drawn:
        return None
    figure = draw(_chart(recipe, [panel for _, panel, _ in drawn], shown, measured))
    for axes, (criterion, panel, colour) in zip(figure.axes, drawn, strict=False):
        axes.set_title(panel.title, loc="left", fontsize=10, color=colour)
        _draw_published(axes, criterion)
    return figure


def _chart(recipe: Recipe, panels: Sequence[Panel], shown: Mapping[str, Line], measured: Sequence[Measured]) -> Chart:
    columns = min(COLUMNS, len(panels))
    criteria = [each.criterion for each in recipe.published]
    has_orange = any(each.points or isinstance(each.criterion, Between) for each in recipe.published)
    has_orange |= any(getattr(criterion, "band", None) is not None for criterion in criteria)
    marks = [
        *(["orange: published"] if has_orange else []),
        *(["rings: turning points"] if any(isinstance(criterion, Phases) for criterion in criteria) else []),
        *([] if recipe.by_values else ["shades and bars: 95% intervals"]),
    ]
    return Chart(
        title=recipe.reference,
        caption=notes(*marks, brief_sampling(concatenated([each.rows for each in measured]))),
        panels=panels,
        size=(_PANEL[0] * columns + _LEGEND_WIDTH, _PANEL[1] * -(-len(panels) // columns) + 0.7),
        columns=columns,
        legend=[*shown.values()],
    )


def draw_cells(recipe: Recipe, outcomes: Sequence[Outcome]) -> Figure | None:
    """Draw a line for each published value in a table of a study, on a scale of its own: published and measured.

    Returns:
        None if nothing was judged.
    """
    models = list(dict.fromkeys(outcome.run for outcome in outcomes if outcome.cell is not None))
    if not models:
        return None
    colours = dict(zip(models, shades(SEQUENTIAL, len(models), 0.05, 0.85), strict=True))
    names = []
    figure = Figure(figsize=(11.0, 0.42 * len(recipe.published) + 1.4), layout="constrained")
    axes = figure.subplots()
    for number, published in enumerate(recipe.published, start=1):
        cell = published.criterion
        own = [(o.run, o.cell) for o in outcomes if o.published is published and o.cell is not None]
        if not isinstance(cell, Cell) or not own:
            continue
        row = len(names)
        names.append(textwrap.shorten(f"{number}. {published.claim}", _TITLE_WIDTH, placeholder=" ..."))
        ends = [bound for bound in cell.bounds if math.isfinite(bound)]
        ends += [end for _, measured in own for end in measured]
        low, span = min(ends), (max(ends) - min(ends)) or 1.0

        def at(value: float, low: float = low, span: float = span) -> float:
            return min(max((value - low) / span, -0.05), 1.05)

        begin, end = map(at, cell.bounds)
        axes.barh(row, max(end - begin, 0.004), 0.7, begin, color=LOSS_COLOUR, alpha=0.25)
        if cell.value is not None:
            axes.plot(at(cell.value), row, "D", color=LOSS_COLOUR, markersize=6)
        for place, (run, measured) in enumerate(own, start=1):
            value, *interval = map(at, measured)
            height = row + 0.6 * (place / (len(own) + 1) - 0.5)
            axes.plot(interval, [height, height], color=colours[run], linewidth=1.5)
            axes.plot(value, height, "o", color=colours[run], markersize=5)
        ours = ", ".join(f"{measured[0]:.4g}" for _, measured in own)
        axes.text(1.08, row, f"{_bounds_text(cell)} | {ours}", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(-0.06, 1.06), ylim=(len(names) - 0.5, -0.5), xticks=[])
    axes.set_title(f"{textwrap.fill(recipe.reference, 100)}\neach line on a scale of its own", loc="left", fontsize=10)
    axes.text(1.08, -0.7, "published | measured", va="bottom", fontsize=9, weight="bold")
    marks = [Line2D([], [], marker="o", linestyle="", color=colours[name], label=name) for name in models]
    diamond = Line2D([], [], marker="D", linestyle="", color=LOSS_COLOUR, label="published, and what is accepted")
    figure.legend(handles=[*marks, diamond], loc="outside lower center", ncols=3, frameon=False)
    return figure


def _bounds_text(cell: Cell) -> str:
    low, high = cell.bounds
    if cell.value is not None:
        return f"{cell.value:g}"
    return f"at least {low:g}" if math.isinf(high) else f"at most {high:g}"


def _panel(
    number: int, published: Published, criterion: Criterion, outcomes: Sequence[Outcome], lines: Sequence[Line]
) -> Panel:
    claim = textwrap.wrap(f"{number}. {published.claim}", _TITLE_WIDTH, max_lines=2, placeholder=" ...")
    otherwise = ", measured otherwise" if any(outcome.deviations for outcome in outcomes) else ""
    x = {
        "depth": Axis(label="relative depth (0: first block, 1: last)", limits=(0.0, 1.0)),
        "training": Axis(label="step", log_from=1.0),
        "other metric": Axis(label=_name(criterion.other) if isinstance(criterion, Correlation) else ""),
    }[criterion.axis]
    title = "\n".join([*claim, f"{count_verdicts(outcomes)}{otherwise}"])
    return Panel(title=title, x=x, y=_axis_from_zero(_name(published.metric), lines), lines=lines)


def _axis_from_zero(label: str, lines: Sequence[Line]) -> Axis:
    """Return an axis of values that shows 0: a small change is not to fill the panel."""
    ends = [
        np.asarray(line.y, float) + side * np.nan_to_num(0.0 if line.margin is None else line.margin)
        for line in lines
        for side in (-1, 1)
    ]
    shown = np.concatenate([np.zeros(1), *ends])
    shown = shown[np.isfinite(shown)]
    low, high = float(shown.min()), float(shown.max())
    return Axis(label=label, limits=(low, high if high > low else 1.0), padding=(0.05 * (low < 0), 0.05))


def _colour(outcomes: Sequence[Outcome]) -> str:
    """Return the colour of the one verdict on all models, or a neutral one if they differ."""
    (verdict, *others) = {outcome.verdict: None for outcome in outcomes}
    return _MIXED if others else _VERDICT_COLOURS[verdict]


def _published_points(published: Published) -> list[Line]:
    if not published.points:
        return []
    at, values = zip(*published.points, strict=True)
    return [Line(x=at, y=values, colour=LOSS_COLOUR, marker="D", dash="none", label="published")]


def _draw_published(axes: Any, criterion: Criterion) -> None:
    """Shade the published range of depths, steps or values."""
    look: dict[str, Any] = {"color": LOSS_COLOUR, "alpha": 0.12, "linewidth": 0, "zorder": 0}
    if criterion.band is not None:
        axes.axvspan(*criterion.band, **look)
    if isinstance(criterion, Between):
        axes.axhspan(*criterion.bounds, **look)


def _name(metric: str) -> str:
    """Return what an axis says of a metric: short enough for a panel, on several lines if need be."""
    base, _, subset = metric.partition("@")
    if metric == "probe/loss":
        return "loss on the probe (nats)"
    text = f"{metric_title(base)} ({metric_unit(base)})"
    tokens = "" if subset in {"", "all"} else f", {short_subset_title(subset)}"
    return textwrap.fill(f"{text}{tokens}", _LABEL_WIDTH)


def lines_of(criterion: Criterion, metric: str, models: Sequence[Measured], colours: Mapping[str, str]) -> list[Line]:
    """Return the lines of models; empty if none can be drawn."""
    lines = []
    for each in models:
        with suppress(CannotBeJudgedError, NotMeasuredError):
            lines += _lines(criterion, metric, each, colours[each.name])
    return lines


def _lines(criterion: Criterion, metric: str, measured: Measured, colour: str) -> list[Line]:
    look: dict[str, Any] = {"colour": colour, "label": measured.name}
    if criterion.axis == "depth":
        profile = measured.profile(metric, criterion.step)
        return [Line(x=profile.positions, y=_values(profile.blocks), margin=_margins(profile.blocks), **look)]
    if isinstance(criterion, Correlation):
        # dotted through the training, to a larger mark at its end
        _, x, y = criterion.pairs(measured, metric)
        end = Line(x=x[-1:], y=y[-1:], colour=colour, dash="none", marker_size=8)
        return [Line(x=x, y=y, dash=":", width=0.9, **look), end]
    course = measured.course(metric, criterion.layers)
    lines = [Line(x=course.steps, y=_values(course.values), margin=_margins(course.values), **look)]
    values = [value.value for value in course.values]
    if isinstance(criterion, Phases) and len(values) >= criterion.least_checkpoints and min(values) > 0:
        turns = turning_points([math.log(value) for value in values], criterion.phases)
        ends = [course.steps[turn] for turn in turns], [values[turn] for turn in turns]
        lines.append(Line(x=ends[0], y=ends[1], colour=colour, dash="none", marker_size=9))
    return lines


def _values(estimates: Sequence[Estimate]) -> list[float]:
    return [estimate.value for estimate in estimates]


def _margins(estimates: Sequence[Estimate]) -> np.ndarray | None:
    """Return half of the 95 % interval of each value; None if none is known, or all are taken as exact."""
    errors = np.array([estimate.std_error for estimate in estimates], float)
    freedom = np.array([estimate.n_batches - 1 for estimate in estimates], float)
    margins = stdtrit(freedom, (1 + CONFIDENCE) / 2) * errors
    return None if np.isnan(margins).all() or not np.nanmax(margins) else margins


_COLOURS = {"reproduced": "good", "not reproduced": "fail", "cannot be judged": "bad", "not run": "soft"}
"""Names of the report's colours by verdict."""


def write_results(
    recipe: Recipe, outcomes: Sequence[Outcome], measured: Sequence[Measured], folder: Path, doubts: Sequence[str] = ()
) -> Path:
    """Write the figure, and one self-contained page: no script, no network; return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {recipe.name: draw_recipe(recipe, outcomes, measured)}
    figures[f"{recipe.name}_tables" if figures[recipe.name] else recipe.name] = draw_cells(recipe, outcomes)
    files = save({name: figure for name, figure in figures.items() if figure is not None}, folder)
    images = [file for file in files if file.suffix == ".png"]
    content = _page(recipe, outcomes, measured, images, doubts).encode(errors="backslashreplace")
    path = folder / f"{recipe.name}.html"
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
    return path


def _page(
    recipe: Recipe,
    outcomes: Sequence[Outcome],
    measured: Sequence[Measured],
    images: Sequence[Path],
    doubts: Sequence[str],
) -> str:
    rows = [
        _row(number, published, [outcome for outcome in outcomes if outcome.published is published])
        for number, published in enumerate(recipe.published, start=1)
    ]
    body = [
        tag(
            "section",
            tag("p", tag("strong", count_verdicts(outcomes)), class_="headline"),
            table("published and measured", ("published", "reproduced if", "measured"), rows, quiet=True),
            tag("p", f"Criteria stated on {recipe.stated}, before any run.", class_="note"),
        ),
        *map(_figure, images),
        *([tag("section", tag("h2", "Checkpoints in doubt"), _items(doubts))] if doubts else []),
        tag("section", tag("h2", "Measured as"), _items(_measured_as(recipe, measured))),
        tag("section", tag("h2", "The recipe"), _items(_recipe_settings(recipe))),
        tag("section", tag("h2", "What the recipe does otherwise than the paper"), _items(recipe.differs)),
    ]
    paper = tag("p", tag("a", recipe.reference, href=recipe.address), class_="note")
    written = f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by repdyn {version('repdyn')}."
    return joined(
        [
            Markup('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width,initial-scale=1">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'),
            tag("title", f"{recipe.name}: reproduction"),
            tag("style", asset("page.css")),
            Markup("</head><body>"),
            tag("header", tag("h1", f"Reproduction: {recipe.name}"), paper),
            tag("main", *body),
            tag("footer", tag("p", written)),
            Markup("</body></html>\n"),
        ]
    )


def _measured_as(recipe: Recipe, measured: Sequence[Measured]) -> list[str]:
    """Describe what was measured, by the rows: steps and sampling of each run."""
    if not measured:
        return ["the studies' tables lie beside this page" if recipe.studies else "nothing was measured"]
    by_sampling: dict[str, list[str]] = {}
    for each in measured:
        steps = sorted(set(each.rows["step"].tolist()))
        span = f"{steps[0]:,} to {steps[-1]:,}" if len(steps) > 1 else f"{steps[0]:,}"
        name = f"{each.name} at {len(steps)} step{'s' * (len(steps) > 1)} ({span})"
        by_sampling.setdefault(describe_sampling(each.frame, each.probe), []).append(name)
    return [
        *(f"{', '.join(names)}: {text}" for text, names in by_sampling.items()),
        "values judged as exact, since the design has no intervals"
        if recipe.by_values
        else "ratios judged by their 95% intervals",
    ]


def _recipe_settings(recipe: Recipe) -> list[str]:
    cloud = recipe.cloud
    models = f"models: {', '.join(recipe.models)}; revisions: {recipe.revisions}"
    studies = [
        f"study {kind}: {', '.join(f'{name} {value}' for name, value in options.items()) or 'default options'}"
        for kind, options in recipe.studies.items()
    ]
    if not recipe.metrics:
        return [models, *studies]
    return [
        models,
        *studies,
        f"metrics: {', '.join(recipe.metrics)}",
        f"sampling: {cloud.design} design, text {cloud.text}, "
        f"{cloud.sequence_length or 'default number of'} tokens in a window, "
        f"{cloud.max_vectors or 'default number of'} vectors",
    ]


def _row(number: int, published: Published, outcomes: Sequence[Outcome]) -> Sequence[str]:
    claim = tag("span", f"{number}. {published.claim} ", tag("small", f"({published.source})"))
    measured = [
        tag(
            "div",
            tag("span", outcome.verdict, class_="verdict", style=f"color:var(--{_COLOURS[outcome.verdict]})"),
            f" {outcome.run}: {outcome.text}" if outcome.run else f" {outcome.text}",
        )
        for outcome in outcomes
    ]
    return claim, published.criterion.text if published.criterion else "", joined(measured)


def _figure(path: Path) -> Markup:
    data = base64.b64encode(path.read_bytes()).decode()
    image = Markup(f'<img src="data:image/png;base64,{data}" alt="published values over measured ones" width="100%">')
    return tag("section", tag("figure", image))


def _items(texts: Sequence[str]) -> Markup:
    return tag("ul", *(tag("li", text) for text in texts))
