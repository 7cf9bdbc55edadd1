"""The HTML page of a recipe: published values, measured values and the criteria of their comparison."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from repdyn.recipes.evaluation import Outcome, count_verdicts, describe_sampling
from repdyn.recipes.measured import Measured
from repdyn.recipes.recipe import Published, Recipe
from repdyn.report.markup import Markup, asset, joined, policy, table, tag
from repdyn.utils.files import write_atomically

_COLOURS = {"reproduced": "good", "not reproduced": "fail", "cannot be judged": "bad", "not run": "soft"}
"""Names of the report's colours by verdict."""


def write_page(
    recipe: Recipe,
    outcomes: Sequence[Outcome],
    measured: Sequence[Measured],
    path: Path,
    figure: Path | None,
    doubts: Sequence[str] = (),
) -> Path:
    """Write one self-contained page; no script, no network.

    Returns:
        ``path``.
    """
    content = _page(recipe, outcomes, measured, figure, doubts).encode(errors="backslashreplace")
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
    return path


def _page(
    recipe: Recipe,
    outcomes: Sequence[Outcome],
    measured: Sequence[Measured],
    figure: Path | None,
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
        *_figure(figure),
        *([tag("section", tag("h2", "Checkpoints in doubt"), _items(doubts))] if doubts else []),
        tag("section", tag("h2", "Measured as"), _items(_measured_as(recipe, measured))),
        tag("section", tag("h2", "The recipe"), _items(_recipe_settings(recipe))),
        tag("section", tag("h2", "What the recipe does otherwise than the paper"), _items(recipe.differs)),
    ]
    paper = tag("p", f"{recipe.title}, ", tag("a", f"arXiv {recipe.paper}", href=recipe.address), class_="note")
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
    """Describe what was measured, by the rows: steps and sampling of each run, and of its control."""
    if not measured:
        return ["nothing was measured"]
    by_sampling: dict[str, list[str]] = {}
    for each in measured:
        for of_run in filter(None, (each, each.control)):
            steps = sorted(set(of_run.rows["step"].tolist()))
            span = f"{steps[0]:,} to {steps[-1]:,}" if len(steps) > 1 else f"{steps[0]:,}"
            name = f"{of_run.name} at {len(steps)} step{'s' * (len(steps) > 1)} ({span})"
            by_sampling.setdefault(describe_sampling(of_run.frame, of_run.probe), []).append(name)
    return [
        *(f"{', '.join(names)}: {text}" for text, names in by_sampling.items()),
        "values judged as exact, since the design has no intervals"
        if recipe.by_values
        else "ratios judged by their 95% intervals",
    ]


def _recipe_settings(recipe: Recipe) -> list[str]:
    cloud = recipe.cloud
    return [
        f"models: {', '.join(recipe.models)}; revisions: {recipe.revisions}",
        f"metrics: {', '.join(recipe.metrics)}",
        f"sampling: {cloud.design} design, text {cloud.text}, "
        f"{cloud.sequence_length or 'default number of'} tokens in a window, "
        f"{cloud.max_vectors or 'default number of'} vectors",
        *([f"control: the same by the {cloud.control} design"] if cloud.control else []),
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


def _figure(path: Path | None) -> list[Markup]:
    if path is None:
        return []
    data = base64.b64encode(path.read_bytes()).decode()
    image = Markup(f'<img src="data:image/png;base64,{data}" alt="published values over measured ones" width="100%">')
    return [tag("section", tag("figure", image))]


def _items(texts: Sequence[str]) -> Markup:
    return tag("ul", *(tag("li", text) for text in texts))
