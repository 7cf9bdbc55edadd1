"""What a study of anatomy says in the terminal."""

from __future__ import annotations

import math

import pandas as pd
from rich.console import Console
from rich.table import Table as Printed
from rich.text import Text

from repdyn.studies.anatomy.depth import TokenTrajectory, lengths, step_cosines, steps
from repdyn.studies.anatomy.positions import Turn
from repdyn.studies.anatomy.tables import Table


def print_name(name: str, console: Console | None = None) -> None:
    """Whose study begins."""
    (console or Console()).print(Text(name, style="bold"))


def say(text: str, console: Console | None = None) -> None:
    """A line as it is."""
    (console or Console()).print(text, markup=False, highlight=False, soft_wrap=True)


def print_tables(overview: pd.DataFrame, distributions: pd.DataFrame, console: Console | None = None) -> None:
    """One line for each table and quantity, and what was left out.

    Args:
        overview, distributions: of :mod:`repdyn.studies.anatomy.measured`.
    """
    columns = {"mean": "mean", "5 %": "q05", "median": "median", "95 %": "q95", "min": "min", "max": "max"}
    printed = _printed("table", "quantity", *columns)
    for line in distributions.to_dict("records"):
        printed.add_row(line["table"], line["quantity"], *(f"{line[column]:.3f}" for column in columns.values()))
    (console or Console()).print(printed)
    for line in overview.to_dict("records"):
        left_out = f"; left out: {line['left_out']}" if line["left_out"] else ""
        pairs = "all pairs" if line["all_pairs"] else f"{line['pairs']:,} pairs drawn"
        shares = {name.removeprefix("components_"): line[name] for name in line if name.startswith("components_")}
        needed = ", ".join(f"{share} %: {count:.0f}" for share, count in shares.items() if not math.isnan(count))
        say(
            f"{line['table']}: {line['rows']:,} rows of {line['dim']} ({line['parameter']}), {pairs}{left_out}; "
            f"the mean row holds {line['mean_share']:.1%} of the squared length"
            + (f"; components for a share of variance, {needed}" if needed else ""),
            console,
        )


def print_closest(pairs: pd.DataFrame, console: Console | None = None) -> None:
    """A few of the closest pairs within and across tables."""
    for tables, group in pairs.groupby("tables", sort=False):
        told = [f"{line['first']} {line['second']} {line['cosine']:.4f}" for line in group.to_dict("records")]
        say(f"closest, {tables}: {'; '.join(told)}", console)


def print_positions(
    table: Table,
    offsets: pd.DataFrame,
    turn: Turn | None,
    ends: int | None,
    start: str | None,
    start_cosine: float,
    console: Console | None = None,
) -> None:
    """How positions lie: neighbours, turn, order, and position 0 beside the token that starts a text."""
    one_apart = offsets.loc[offsets["offset"] == 1, "mean"]
    n = len(table.rows)
    if len(one_apart):
        say(f"{table.name}: cosine of neighbours {float(one_apart.iloc[0]):.3f} on average", console)
    if turn is not None and turn.is_clear:
        a, b = (number + 1 for number in turn.components)
        until = "to the last" if turn.ends == n else f"up to position {turn.ends}"
        say(
            f"{table.name}: one turn per {turn.period:.2f} positions in components {a} and {b}, "
            f"{turn.share:.1%} of the variance, {until}",
            console,
        )
    elif turn is not None:
        say(f"{table.name}: no plane turns clearly (the best has a purity of {turn.purity:.2f})", console)
    if ends is not None:
        say(f"{table.name}: {'order holds to the last position' if ends == n else f'order ends near {ends}'}", console)
    if not math.isnan(start_cosine):
        say(f"cosine of the input embedding of {start} and position 0: {start_cosine:.3f}", console)


def print_depth(stack: str | None, journey: TokenTrajectory, console: Console | None = None) -> None:
    """Means over the tokens of the first sentence, layer by layer."""
    printed = _printed("layer" if stack is None else f"{stack} layer", "|h|", "step", "cosine with next")
    of_all = (lengths(journey.states).mean(1), steps(journey.states).mean(1), step_cosines(journey.states).mean(1))
    for number, layer in enumerate(journey.layers):
        told = [f"{values[number]:.3f}" if number < len(values) else "" for values in of_all]
        printed.add_row(str(layer.index), *told)
    (console or Console()).print(printed)


def _printed(*columns: str) -> Printed:
    printed = Printed(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        is_text = column in {"table", "quantity"}
        printed.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text)
    return printed
