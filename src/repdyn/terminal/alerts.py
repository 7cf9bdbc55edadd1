"""The alerts of a store, in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from repdyn.alerts import Rule, alerts_of, kept_rules
from repdyn.store import Store
from repdyn.tables.alert_text import told
from repdyn.tables.selection import is_measured, select
from repdyn.tables.style import plain


def print_alerts(
    store: Store,
    runs: Sequence[str] | None = None,
    *,
    probe: str | None = None,
    rules: Sequence[Rule] | None = None,
    console: Console | None = None,
) -> int:
    """Print what rules find in the runs of a store.

    Args:
        store: with at least one measured checkpoint.
        runs: names; all runs of the store unless given.
        probe: hash, or the beginning of one, of the probe to keep to.
        rules: None takes those that each run was watched by, or else the default ones.
        console: where to; standard output unless given.

    Returns:
        Number of lines that tell of an alert.

    Raises:
        ValueError: nothing is stored; no such run or probe; rules in the store that do not read.
    """
    console = console or Console()
    n_told = 0
    for (run, found), frame in select(store, runs, probe).items():
        heading = f"{run} (probe {found[:8]})"
        if not is_measured(frame):
            _say(console, f"{heading}: nothing measured")
            continue
        watched = kept_rules(store.alerts_path(run)) if rules is None else rules
        lines = told(alerts_of(frame, watched))
        n_steps = frame.loc[frame["layer"].notna(), "step"].nunique()
        looked = f"{n_steps} checkpoint{'s' * (n_steps > 1)}, {len(watched)} rules"
        _say(console, f"{heading}: {f'{len(lines)} alerts' if lines else 'no alert'}; {looked}")
        for line in lines:
            _say(console, f"  {line}")
        n_told += len(lines)
    return n_told


def _say(console: Console, line: str) -> None:
    console.print(Text(plain(line, console)), soft_wrap=True)
