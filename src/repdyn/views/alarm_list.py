"""The alarms of a store, in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from repdyn.alarms import Rule, alarms_of, kept_rules
from repdyn.store import Store
from repdyn.views.selection import is_measured, select
from repdyn.views.style import plain
from repdyn.views.told_alarms import told


def print_alarms(
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
        Number of lines that tell of an alarm.

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
        watched = kept_rules(store.alarms_path(run)) if rules is None else rules
        lines = told(alarms_of(frame, watched))
        n_steps = frame.loc[frame["layer"].notna(), "step"].nunique()
        looked = f"{n_steps} checkpoint{'s' * (n_steps > 1)}, {len(watched)} rules"
        _say(console, f"{heading}: {f'{len(lines)} alarms' if lines else 'no alarm'}; {looked}")
        for line in lines:
            _say(console, f"  {line}")
        n_told += len(lines)
    return n_told


def _say(console: Console, line: str) -> None:
    console.print(Text(plain(line, console)), soft_wrap=True)
