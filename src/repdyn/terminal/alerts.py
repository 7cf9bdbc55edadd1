"""The alerts of a store, and the status of its runs with the statements about them, in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repdyn.alerts import ALERT_COLUMNS, Rule, find_alerts, stored_rules
from repdyn.diagnosis import RunInsights, Severity, Status
from repdyn.store import Store
from repdyn.tables.lines import alert_lines
from repdyn.tables.runs import is_measured, select
from repdyn.tables.style import of_stack, plain
from repdyn.utils.printing import PrintableConsole, in_one_line


def print_alerts(
    store: Store,
    runs: Sequence[str] | None = None,
    *,
    probe: str | None = None,
    rules: Sequence[Rule] | None = None,
    console: Console | None = None,
) -> int:
    """Print the alerts of the runs of a store.

    Args:
        store: with at least one measured checkpoint.
        runs: names; all runs of the store unless given.
        probe: hash, or the beginning of one, of the probe to keep to.
        rules: None takes those that each run was watched by, or else the default ones.
        console: where to; standard output unless given.

    Returns:
        Number of lines with an alert.

    Raises:
        ValueError: nothing is stored; no such run or probe; rules in the store that cannot be read.
    """
    console = console or PrintableConsole()
    n_lines = 0
    for (run, found), frame in select(store, runs, probe, columns=ALERT_COLUMNS).items():
        heading = f"{run} (probe {found[:8]})"
        if not is_measured(frame):
            _print(console, f"{heading}: nothing measured")
            continue
        used_rules = stored_rules(store.alerts_path(run)) if rules is None else rules
        lines = alert_lines(find_alerts(frame, used_rules))
        n_steps = frame.loc[frame["layer"].notna(), "step"].nunique()
        scope = f"{n_steps} checkpoint{'s' * (n_steps > 1)}, {len(used_rules)} rules"
        _print(console, f"{heading}: {f'{len(lines)} alerts' if lines else 'no alert'}; {scope}")
        for line in lines:
            _print(console, f"  {line}")
        n_lines += len(lines)
    return n_lines


def _print(console: Console, line: str) -> None:
    console.print(Text(plain(line, console)), soft_wrap=True)


STATUS_STYLES: Mapping[Status, str] = {"healthy": "green", "watch": "yellow", "failed": "bold red", "unknown": "dim"}
_SEVERITY_STYLES: Mapping[Severity, str] = {"failed": "bold red", "watch": "yellow", "note": "dim"}
_MAX_WIDTH = 80


def print_insights(found: Sequence[RunInsights]) -> None:
    """Print the status and the statements of each run, at most 80 columns wide."""
    console = PrintableConsole()
    width = min(_MAX_WIDTH, console.width)
    for each in found:
        heading = Text(in_one_line(f"{of_stack(each.run, each.stack)} (probe {each.probe[:8]}): "))
        console.print(heading.append(each.status, STATUS_STYLES[each.status]), width=width)
        lines = Table.grid(padding=(0, 1, 0, 0))
        if not each.statements or each.reason != each.statements[0].sentence:
            lines.add_row("  reason", Text(in_one_line(each.reason)))
        for statement in each.statements:
            lines.add_row(
                Text(f"  {statement.severity}", _SEVERITY_STYLES[statement.severity]),
                Text(in_one_line(statement.sentence)),
            )
        console.print(lines, width=width)
