"""A store as a table of HTML, which notebooks show; everything in it is escaped, and nothing runs."""

from __future__ import annotations

from repdyn.alerts import stored_rules
from repdyn.diagnosis import describe_stacks
from repdyn.report.markup import Markup, joined, tag
from repdyn.store import Store
from repdyn.tables.selection import is_measured, select
from repdyn.tables.style import of_stack

MAX_RUNS = 20
"""Largest number of runs in the table; each takes reading all of its rows."""
_HEADINGS = ("run", "probe", "steps", "metrics", "status")
_COLOURS = {"failed": "#c62828", "watch": "#b26a00", "healthy": "#2e7d32"}


def store_html(store: Store) -> str:
    """Return the runs of a store with their steps, metrics and status."""
    heading = tag("p", tag("b", "Store "), tag("code", store.location))
    names = store.runs()
    if not names:
        return joined([heading, tag("p", "nothing measured yet")])
    rows = [_row(cells) for cells in _cells(store, names[:MAX_RUNS])]
    head = tag("thead", tag("tr", *(_cell("th", name) for name in _HEADINGS)))
    more = [tag("p", f"and {len(names) - MAX_RUNS} more runs")] if len(names) > MAX_RUNS else []
    return joined([heading, tag("table", head, tag("tbody", *rows)), *more])


def _cells(store: Store, names: list[str]) -> list[tuple[str, str, str, str, str]]:
    cells = []
    for (run, probe), frame in select(store, names).items():
        if not is_measured(frame):
            cells.append((run, probe[:8], "", "nothing measured", ""))
            continue
        of_layers = frame.loc[frame["layer"].notna()]
        steps, metrics = sorted(of_layers["step"].unique()), sorted(of_layers["metric"].unique())
        for each in describe_stacks(frame, stored_rules(store.alerts_path(run))):
            span = f"{steps[0]:,} to {steps[-1]:,} ({len(steps)})" if len(steps) > 1 else f"{steps[0]:,}"
            cells.append((of_stack(run, each.stack), probe[:8], span, ", ".join(metrics), each.status))
    return cells


def _row(cells: tuple[str, str, str, str, str]) -> Markup:
    *texts, status = cells
    look = {"style": f"color: {_COLOURS[status]}"} if status in _COLOURS else {}
    return tag("tr", *(_cell("td", text) for text in texts), _cell("td", tag("span", status, **look)))


def _cell(name: str, content: str) -> Markup:
    return tag(name, content, style="text-align: left; max-width: 40em")
