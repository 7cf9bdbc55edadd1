"""The status of runs and the statements about them, in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from repdyn.diagnosis import RunInsights, Severity, Status
from repdyn.tables.style import of_stack
from repdyn.utils.console import PrintableConsole
from repdyn.utils.names import in_one_line

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
