"""The figure and the HTML page of a recipe: published values over measured ones, and their
criteria.
"""

import base64
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from repdyn.lab.recipes.cells import Cell
from repdyn.lab.recipes.criteria import Between, Criterion, Measured, NotMeasuredError
from repdyn.lab.recipes.evaluation import Outcome, count_verdicts
from repdyn.lab.recipes.recipe import BY_WHAT, Published, Recipe
from repdyn.metrics import metric_info
from repdyn.utils.files import write_atomically
from repdyn.utils.intervals import interval_within
from repdyn.utils.printing import plural
from repdyn.views.charts.axes import axis_of_lines
from repdyn.views.charts.description import Axis, Chart, Line, Panel
from repdyn.views.charts.lines import notes
from repdyn.views.charts.on_matplotlib import draw, save
from repdyn.views.judging.effects import CannotBeJudgedError, Estimate
from repdyn.views.report.markup import Markup, asset, joined, policy, table, tag
from repdyn.views.tables.frames import concatenated, measurements
from repdyn.views.tables.style import (
    LOSS_COLOUR,
    SEQUENTIAL,
    metric_title,
    metric_unit,
    shades,
    short_subset_title,
)
from repdyn.views.tables.texts import brief_sampling, sampling

_COLUMNS = 2
_PANEL = (5.2, 3.6)
_LEGEND_WIDTH = 2.4
_TITLE_WIDTH, _LABEL_WIDTH = 54, 46
"""Characters of a line of a panel's title, and of the label of its horizontal axis."""
_NARROW = (
    "@media(max-width:600px){table{width:100%}thead{display:none}"
    "th,td{display:block;max-width:none;border:0}}"
)
_HEADINGS = ("published", "reproduced if", "model", "verdict", "measured")
_AXES = {
    "depth": Axis(
        label="relative depth (0: first block, 1: last; before it layer 0)", limits=(-0.2, 1.0)
    ),
    "training": Axis(label="step", log_from=1.0),
}


def draw_recipe(
    recipe: Recipe, outcomes: Sequence[Outcome], measured: Sequence[Measured]
) -> Figure | None:
    """Draw a panel for each published value that was judged, with its models; None if nothing was
    judged.
    """
    by_name = {of_run.name: of_run for of_run in measured}
    drawn: list[tuple[Criterion, Panel]] = []
    legend: dict[str, Line] = {}
    for number, published in enumerate(recipe.published, start=1):
        criterion = published.criterion
        if criterion is None or isinstance(criterion, Cell):
            continue
        judged = _judged(outcomes, published)
        lines, behind = _lines_of(criterion, published, judged, by_name)
        if lines:
            # the axes are scaled by the lines; those behind them are added afterwards
            panel = _panel(number, published, criterion, judged, lines)
            drawn.append((criterion, replace(panel, lines=[*behind, *lines])))
            legend = {line.label: line for line in lines if line.label} | legend
    if not drawn:
        return None
    columns = min(_COLUMNS, len(drawn))
    shades_are = {"intervals": "95% intervals", "bands": "one standard deviation over batches"}
    intervals = shades_are.get(recipe.judged_by, "")
    intervals = f"shades and bars: {intervals}" if intervals else ""
    chart = Chart(
        title=recipe.reference,
        caption=notes(
            *("orange: published", intervals),
            "dashed: with layer 0, the embeddings, which axes are not scaled by",
            brief_sampling(concatenated([of_run.rows for of_run in measured])),
        ),
        panels=[panel for _, panel in drawn],
        size=(_PANEL[0] * columns + _LEGEND_WIDTH, _PANEL[1] * -(-len(drawn) // columns) + 0.7),
        columns=columns,
        legend=[*legend.values()],
    )
    figure = draw(chart)
    # the legend is an axes of its own, behind those of the panels
    for axes, (criterion, _) in zip(figure.axes, drawn, strict=False):
        _shade_published(axes, criterion)
    return figure


def _shade_published(axes: Any, criterion: Criterion) -> None:
    """Shade where a value has to lie to be as published."""
    look: dict[str, Any] = {"color": LOSS_COLOUR, "alpha": 0.12, "linewidth": 0, "zorder": 0}
    if criterion.band is not None:
        axes.axvspan(*criterion.band, **look)
    if isinstance(criterion, Between):
        axes.axhspan(*criterion.bounds, **look)


def _lines_of(
    criterion: Criterion,
    published: Published,
    judged: Sequence[Outcome],
    by_name: Mapping[str, Measured],
) -> tuple[list[Line], list[Line]]:
    """Return the lines of a published value on its models, and behind them those with layer 0."""
    colours = _model_colours(by_name)
    lines: list[Line] = []
    behind: list[Line | None] = []
    for outcome in judged:
        of_run = by_name[outcome.run]
        colour = colours[outcome.run]
        with suppress(CannotBeJudgedError, NotMeasuredError):
            lines.append(_judged_line(criterion, published.metric, of_run, colour))
            behind.append(_line_with_embeddings(criterion, published.metric, of_run, colour))
    if lines and published.points:
        x, y = zip(*published.points, strict=True)
        lines.append(Line(x=x, y=y, colour=LOSS_COLOUR, marker="D", dash="none", label="published"))
    return lines, [line for line in behind if line is not None]


def _model_colours(names: Collection[str]) -> dict[str, str]:
    return dict(zip(names, shades(SEQUENTIAL, len(names), 0.05, 0.85), strict=True))


def _judged(outcomes: Sequence[Outcome], published: Published) -> list[Outcome]:
    return [
        outcome
        for outcome in outcomes
        if outcome.published is published and outcome.verdict != "not run"
    ]


def _panel(
    number: int,
    published: Published,
    criterion: Criterion,
    outcomes: Sequence[Outcome],
    lines: Sequence[Line],
) -> Panel:
    claim = textwrap.wrap(
        f"{number}. {published.claim}", _TITLE_WIDTH, max_lines=2, placeholder=" ..."
    )
    otherwise = ", measured otherwise" if any(outcome.deviations for outcome in outcomes) else ""
    title = "\n".join([*claim, f"{count_verdicts(outcomes)}{otherwise}"])
    # an axis of values shows 0: a small change is not to fill the panel
    origin = Line(x=[0.0], y=[0.0], colour="")
    y = axis_of_lines(published.metric, [origin, *lines], _name(published.metric))
    return Panel(title=title, x=_AXES[criterion.axis], y=y, lines=lines)


def _name(metric: str) -> str:
    """Return what an axis says of a metric: short enough for a panel, on several lines if
    need be.
    """
    base, _, subset = metric.partition("@")
    tokens = "" if subset in {"", "all"} else f", {short_subset_title(subset)}"
    return textwrap.fill(f"{metric_title(base)} ({metric_unit(base)}){tokens}", _LABEL_WIDTH)


def _judged_line(criterion: Criterion, metric: str, measured: Measured, colour: str) -> Line:
    look: dict[str, Any] = {"colour": colour, "label": measured.name}
    if criterion.axis == "depth":
        _, profile = measured.profile(metric, criterion.step)
        return _line(profile, metric, **look)
    course = measured.course(metric, criterion.layers)
    return _line(course, metric, **look)


def _line_with_embeddings(
    criterion: Criterion, metric: str, measured: Measured, colour: str
) -> Line | None:
    """Return the line of a profile from layer 0 to the first block, or that of means over the
    blocks and layer 0; None where it has no value, or where a course is of single blocks."""
    look: dict[str, Any] = {"colour": colour, "dash": "--", "width": 1.2}
    if criterion.axis == "depth":
        _, profile = measured.profile(metric, criterion.step, first_layer=0)
        ends = {depth: profile[depth] for depth in sorted(profile)[:2]}
        return _line(ends, metric, **look) if min(ends) < 0 else None
    has_embeddings = 0 in measured.series(metric, first_layer=0).layers
    if criterion.layers != "mean" or not has_embeddings:
        return None
    with suppress(CannotBeJudgedError):
        course = measured.course(metric, criterion.layers, first_layer=0)
        return replace(_line(course, metric, marker="", **look), band=None)
    return None


def _line(
    estimates: Mapping[float, Estimate] | Mapping[int, Estimate], metric: str, **look: Any
) -> Line:
    """Return a line with the 95% intervals; without, if none is known, or all are taken as
    exact.
    """
    halves = np.array([estimate.half_width for estimate in estimates.values()])
    values = np.array([estimate.value for estimate in estimates.values()])
    is_known = not np.isnan(halves).all() and np.nanmax(halves) > 0
    band = interval_within(values, halves, metric_info(metric).range) if is_known else None
    return Line(x=[*estimates], y=values, band=band, **look)


def draw_cells(recipe: Recipe, outcomes: Sequence[Outcome]) -> Figure | None:
    """Draw a line for each published value in a study's table, published and measured; None if
    nothing was judged.
    """
    colours = _model_colours(
        dict.fromkeys(outcome.run for outcome in outcomes if outcome.cell is not None)
    )
    if not colours:
        return None
    names = []
    figure = Figure(figsize=(11.0, 0.42 * len(recipe.published) + 1.4), layout="constrained")
    axes = figure.subplots()
    for number, published in enumerate(recipe.published, start=1):
        cell = published.criterion
        cells = {
            each.run: each.cell for each in _judged(outcomes, published) if each.cell is not None
        }
        if not isinstance(cell, Cell) or not cells:
            continue
        row = len(names)
        names.append(
            textwrap.shorten(f"{number}. {published.claim}", _TITLE_WIDTH, placeholder=" ...")
        )
        ends = np.array([*cell.bounds, *sum(cells.values(), ())])
        low = ends[np.isfinite(ends)].min()
        high = ends[np.isfinite(ends)].max()
        scaled = np.clip((ends - low) / ((high - low) or 1.0), -0.05, 1.05)
        begin, end = scaled[:2]
        axes.barh(row, max(end - begin, 0.004), 0.7, begin, color=LOSS_COLOUR, alpha=0.25)
        if cell.value is not None:
            axes.plot((begin + end) / 2, row, "D", color=LOSS_COLOUR, markersize=6)
        for nth, (run, at) in enumerate(
            zip(cells, scaled[2:].reshape(-1, 3), strict=True), start=1
        ):
            height = row + 0.6 * (nth / (len(cells) + 1) - 0.5)
            axes.plot(at[1:], [height, height], color=colours[run], linewidth=1.5)
            axes.plot(at[0], height, "o", color=colours[run], markersize=5)
        ours = ", ".join(f"{value:.4g}" for value, *_ in cells.values())
        published_value = cell.bound if cell.value is None else f"{cell.value:g}"
        axes.text(1.08, row, f"{published_value} | {ours}", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(-0.06, 1.06), ylim=(len(names) - 0.5, -0.5), xticks=[])
    axes.set_title(
        f"{textwrap.fill(recipe.reference, 100)}\neach line on a scale of its own",
        loc="left",
        fontsize=10,
    )
    axes.text(1.08, -0.7, "published | measured", va="bottom", fontsize=9, weight="bold")
    marks = [
        Line2D([], [], marker="o", linestyle="", color=colour, label=name)
        for name, colour in colours.items()
    ]
    diamond = Line2D(
        [], [], marker="D", linestyle="", color=LOSS_COLOUR, label="published, and what is accepted"
    )
    figure.legend(handles=[*marks, diamond], loc="outside lower center", ncols=3, frameon=False)
    return figure


def write_results(
    recipe: Recipe,
    outcomes: Sequence[Outcome],
    measured: Sequence[Measured],
    folder: Path,
    doubts: Sequence[str] = (),
) -> Path:
    """Write the figure, and one self-contained page: no script, no network; return the path of the
    page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = {recipe.name: draw_recipe(recipe, outcomes, measured)}
    figures[f"{recipe.name}_tables" if figures[recipe.name] else recipe.name] = draw_cells(
        recipe, outcomes
    )
    files = save({name: figure for name, figure in figures.items() if figure is not None}, folder)
    lists = {
        "Checkpoints in doubt": doubts,
        "Measured as": _measured_as(recipe, measured),
        "What the recipe does otherwise than the paper": recipe.differs,
    }
    written = f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by repdyn {version('repdyn')}."
    page = [
        *_page_head(recipe),
        Markup("</head><body><header>"),
        tag("h1", f"Reproduction: {recipe.name}"),
        tag("p", tag("a", recipe.reference, href=recipe.address), class_="note"),
        Markup("</header>"),
        tag(
            "main",
            _verdicts(recipe, outcomes),
            *(_figure(file) for file in files if file.suffix == ".png"),
            *(_list_section(title, texts) for title, texts in lists.items() if texts),
        ),
        tag("footer", tag("p", written)),
        Markup("</body></html>\n"),
    ]
    path = folder / f"{recipe.name}.html"
    content = joined(page).encode(errors="backslashreplace")
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
    return path


def _page_head(recipe: Recipe) -> list[Markup]:
    """Return the beginning of the page, up to its title and style."""
    style = asset("page.css")
    # the page has no script to choose a theme: the rule of the dark one is repeated for browsers
    # that prefer it
    dark = style.partition("[data-theme=dark]")[2].partition("}")[0] + "}"
    return [
        Markup('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width,initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'),
        tag("title", f"{recipe.name}: reproduction"),
        tag(
            "style",
            style,
            Markup(_NARROW),
            Markup(f"@media(prefers-color-scheme:dark){{:root{dark}}}"),
        ),
    ]


def _verdicts(recipe: Recipe, outcomes: Sequence[Outcome]) -> Markup:
    """Return the section with the verdict on each published value and model."""
    rows = []
    for number, published in enumerate(recipe.published, start=1):
        claim = f"{number}. {published.claim} ({published.source})"
        criterion = published.criterion.text if published.criterion else ""
        for outcome in outcomes:
            if outcome.published is published:
                rows.append((claim, criterion, outcome.run, outcome.verdict, outcome.text))
    return tag(
        "section",
        tag("p", tag("strong", count_verdicts(outcomes)), class_="headline"),
        table("published and measured", _HEADINGS, rows, quiet=True),
        tag("p", f"Criteria stated on {recipe.stated}, before any run.", class_="note"),
    )


def _list_section(title: str, texts: Sequence[str]) -> Markup:
    """Return a section with a list under a heading."""
    return tag("section", tag("h2", title), tag("ul", *(tag("li", text) for text in texts)))


def _measured_as(recipe: Recipe, measured: Sequence[Measured]) -> list[str]:
    """Describe what was measured, by the rows: steps and sampling of each run."""
    if not measured:
        return [
            "the studies' tables lie beside this page" if recipe.studies else "nothing was measured"
        ]
    lines = []
    for run in measured:
        steps = sorted(set(run.rows["step"].tolist()))
        span = " to ".join(f"{step:,}" for step in dict.fromkeys((steps[0], steps[-1])))
        at = f"{len(steps)} {plural(len(steps), 'step')} ({span})"
        text = (
            f"text {run.probe.name}"
            if run.probe
            else "text not recorded: the store has no copy of the probe"
        )
        lines.append(f"{run.name} at {at}: {sampling(measurements(run.frame))}; {text}")
    return [*lines, BY_WHAT[recipe.judged_by]]


def _figure(path: Path) -> Markup:
    data = base64.b64encode(path.read_bytes()).decode()
    image = Markup(
        f'<img src="data:image/png;base64,{data}" alt="published values over measured ones" '
        'width="100%">'
    )
    return tag("section", tag("figure", image))
