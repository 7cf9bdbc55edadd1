"""What a study of sentence vectors says in the terminal: the last layer, and where it is best."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repdyn.studies.sentences.results import WORDS
from repdyn.studies.sentences.vectors import KINDS


def print_name(name: str, console: Console | None = None) -> None:
    """Whose study begins."""
    (console or Console()).print(Text(name, style="bold"))


def print_separation(table: pd.DataFrame, console: Console | None = None) -> None:
    """How paraphrases are told apart at the last layer, and the best layer of each kind of vector."""
    console, kinds = console or Console(), [kind for kind in (*KINDS, WORDS) if kind in set(table["vector"])]
    printed = _printed("vector", "within", "between", "effect", "95 %", "closer", "nearest")
    best = []
    for kind in kinds:
        rows = table.loc[table["vector"] == kind].to_dict("records")
        last = rows[-1]
        printed.add_row(
            kind,
            *(f"{last[column]:.3f}" for column in ("within", "between")),
            f"{last['effect']:.2f}",
            f"[{last['effect_low']:.2f}, {last['effect_high']:.2f}]",
            f"{last['probability']:.3f}",
            f"{last['nearest']:.0%}",
        )
        if kind != WORDS:
            row = max(rows, key=lambda row: row["probability"])
            best.append(f"{kind} {row['layer']:.0f} ({row['probability']:.3f})")
    _say(console, "paraphrases at the last layer:")
    console.print(printed)
    _say(console, f"the layer at which paraphrases are closer most often: {', '.join(best)}")


def print_changes(table: pd.DataFrame, console: Console | None = None) -> None:
    """How alike the differences are at the last layer."""
    console = console or Console()
    printed = _printed("vector", "change", "n", "within", "across", "p", "length")
    last = table.loc[table["layer"] == table["layer"].max()]
    for row in last.to_dict("records"):
        values = (f"{row['within']:.3f}", f"{row['across']:.3f}", f"{row['p']:.4f}", f"{row['length']:.3f}")
        printed.add_row(row["vector"], row["change"], str(row["n"]), *values)
    _say(console, "cosine of two differences at the last layer:")
    console.print(printed)


def print_collection(source: str, table: pd.DataFrame, console: Console | None = None) -> None:
    """How alike any two texts are at the last layer."""
    console = console or Console()
    printed = _printed("vector", "mean", "5 %", "median", "95 %", "min", "above 0")
    last = table.loc[table["layer"] == table["layer"].max()]
    for row in last.to_dict("records"):
        values = (f"{row[column]:.3f}" for column in ("mean", "q05", "median", "q95", "min"))
        printed.add_row(row["vector"], *values, f"{row['positive']:.1%}")
    _say(console, f"cosine of two texts at the last layer ({source}):")
    console.print(printed)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _printed(*columns: str) -> Table:
    printed = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        is_text = column in {"vector", "change"}
        printed.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text)
    return printed
