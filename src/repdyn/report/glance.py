"""What happened in each run at a glance: its status, and its most important statements as links to charts."""

from __future__ import annotations

from repdyn.diagnosis import Insight, Status
from repdyn.report.markup import Markup, details, joined, tag
from repdyn.report.runs import ReportData, ReportRun, first_shown
from repdyn.tables.designs import sampling
from repdyn.tables.style import KINDS, short_count

MAX_CARDS = 3
"""Number of statements of a run that are visible; the others can be opened."""
MAX_WITH_CARDS = 3
"""Largest number of runs whose cards are visible; of more, each has one line."""
MAX_LINES = 8
"""Number of runs that have a visible line."""

_ORDER: tuple[Status, ...] = ("failed", "watch", "healthy", "unknown")
_SIGNS: dict[Status, str] = {"failed": "\u2715", "watch": "!", "healthy": "\u2713", "unknown": "?"}


def glance(data: ReportData) -> Markup:
    """Return the status of each run with its reason, and its statements; runs that failed come first."""
    runs = sorted(data.runs, key=lambda run: _ORDER.index(run.insights.status))
    if len(runs) <= MAX_WITH_CARDS:
        return joined(_with_cards(run) for run in runs)
    lines = [_line(run) for run in runs]
    more = lines[MAX_LINES:]
    return joined([*lines[:MAX_LINES], *([details(f"and {len(more)} more runs", *more)] if more else [])])


def opening(run: ReportRun) -> dict[str, str | None]:
    """Return the metric, token subset and step that the page opens a run with.

    They are those of its first alert, otherwise the metric of its first statement; without a step the last one is
    shown.
    """
    about = [each for each in run.insights.statements if (each.metric, each.subset or "all") in run.series]
    alarmed = next((each for each in about if each.kind == "alert"), None)
    chosen = alarmed or next(iter(about), None)
    if chosen is None:
        metric, subset = first_shown([run])
        return {"metric": metric, "subset": subset, "step": None}
    step = str(alarmed.steps[0]) if alarmed and alarmed.steps else None
    return {"metric": chosen.metric, "subset": chosen.subset or "all", "step": step}


def first_run(data: ReportData) -> int:
    """Return the number of the run that the page opens with: the first that failed or is watched, or was trained."""
    ranks = [(_ORDER.index(run.insights.status), len(run.measured.steps) < 2) for run in data.runs]
    return min(range(len(ranks)), key=lambda number: (min(ranks[number][0], 2), ranks[number][1]))


def _with_cards(run: ReportRun) -> Markup:
    statements = run.insights.statements
    cards = tag("div", *map(_card, statements[:MAX_CARDS]), class_="cards")
    more = statements[MAX_CARDS:]
    rest = details(f"{len(more)} more statements", tag("ul", *(tag("li", _plain(each)) for each in more)))
    return tag("div", _heading(run, run.insights.reason), cards, *([rest] if more else []), class_="run-glance")


def _line(run: ReportRun) -> Markup:
    statements = run.insights.statements
    first = _plain(statements[0]) if statements else run.insights.reason
    cards = details("more", tag("div", *map(_card, statements[:MAX_CARDS]), class_="cards"))
    return tag("div", _heading(run, first), *([cards] if statements else []), class_="run-glance")


def _heading(run: ReportRun, reason: str) -> Markup:
    status = run.insights.status
    sign = tag("span", _SIGNS[status], aria_hidden="true")
    return tag(
        "p",
        tag("span", sign, f" {status}", class_=f"status {status}"),
        " ",
        tag("b", run.label),
        " ",
        reason,
        " ",
        tag("small", _about(run)),
        class_="headline",
    )


def _about(run: ReportRun) -> str:
    rows, steps = run.measured.rows, run.measured.steps
    parameters = f", {short_count(run.measured.parameters)} parameters" if run.measured.parameters else ""
    course = "finished" if run.finished else f"{len(steps)} steps to {steps[-1]:,}"
    layers = f"{rows['layer'].nunique()} layers"
    return f"{rows['model'].iloc[0]}, {KINDS[run.measured.causal]}{parameters}; {course}; {layers}; {sampling(rows)}"


def _card(insight: Insight) -> Markup:
    severity = tag("span", insight.severity, class_=f"severity {insight.severity}")
    return tag("a", severity, insight.sentence, class_=f"card {insight.severity}", href=insight.link)


def _plain(insight: Insight) -> Markup:
    return tag("a", insight.sentence, href=insight.link)
