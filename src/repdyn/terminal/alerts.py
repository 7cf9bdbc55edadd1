"""The alerts of a store, in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from repdyn.alerts import ALERT_COLUMNS, Rule, find_alerts, stored_rules
from repdyn.store import Store
from repdyn.tables.alert_text import alert_lines
from repdyn.tables.selection import is_measured, select
from repdyn.tables.style import plain
from repdyn.utils.console import PrintableConsole


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
