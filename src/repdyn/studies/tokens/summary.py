"""What a study of tokens says in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repdyn.studies.tokens.figures import only
from repdyn.studies.tokens.text import NEIGHBOURS, higher_share

_MAX_LAYERS = 9


def print_sentence(name: str, table: pd.DataFrame, reasons: Sequence[str], console: Console | None = None) -> None:
    """The rank of each token's own row after some of the blocks; and where no state after attention was found.

    Args:
        name: of the model, and of a stack.
        table: of one stack.
        reasons: one for each layer without such a state.
    """
    console = console or Console()
    of_blocks = only(table, "state", "block")
    ranks = of_blocks.pivot(index="position", columns="layer", values="rank")
    layers = ranks.columns[np.unique(np.linspace(0, ranks.shape[1] - 1, _MAX_LAYERS).round().astype(int))]
    title = f"{name}: rank of each token's own row among the input embeddings"
    console.print(Text(title, style="bold"), soft_wrap=True)
    printed = Table("token", box=None, pad_edge=False)
    for layer in layers:
        printed.add_column(f"layer {layer}", justify="right")
    for token, (_, line) in zip(of_blocks.groupby("position")["token"].first(), ranks.iterrows(), strict=True):
        printed.add_row(Text(str(token)), *(f"{line[layer]:,}" for layer in layers))
    console.print(printed)
    for reason, count in _counted(reasons):
        _say(console, f"no state after attention at {reason}{f' and {count - 1} more' if count > 1 else ''}")


def print_classes(name: str, table: pd.DataFrame, console: Console | None = None) -> None:
    """Mean cosine, median rank and share of rank 0 of each class, layer by layer of one stack."""
    console = console or Console()
    console.print(Text(name, style="bold"), soft_wrap=True)
    printed = Table(box=None, pad_edge=False)
    for column in ("layer", "state", "class", "tokens", "cosine", "median rank", "kept"):
        printed.add_column(column, justify="left" if column in {"state", "class"} else "right")
    for line in table.to_dict("records"):
        printed.add_row(
            f"{line['layer']}",
            line["state"],
            line["class"],
            f"{line['tokens']:,}",
            f"{line['cosine']:.4f}",
            f"{line['rank']:,.1f}",
            f"{line['kept']:.1%}",
        )
    console.print(printed)


def print_density(table: pd.DataFrame, console: Console | None = None) -> None:
    """How crowded it is around function words and content words."""
    console = console or Console()
    of = {label: rows["density"].to_numpy() for label, rows in table.groupby("class")}
    means = ", ".join(f"{label} words {values.mean():.4f} ({len(values):,} tokens)" for label, values in of.items())
    _say(console, f"mean cosine to the {NEIGHBOURS} nearest other input embeddings: {means}")
    if len(of) == 2:
        share = higher_share(of["function"], of["content"])
        frequency = np.corrcoef(table["count"].rank(), table["density"].rank())[0, 1]
        _say(
            console,
            f"a function word's row is in the denser place in {share:.1%} of all pairs with a content word's; rank "
            f"correlation of density and occurrences {frequency:.2f}",
        )


def print_steps(table: pd.DataFrame, console: Console | None = None) -> None:
    """Whether tokens move together."""
    within, between = table["within"], table["between"]
    _say(
        console or Console(),
        f"mean cosine of two tokens' steps: of one sequence {within.min():.3f} to {within.max():.3f} (mean "
        f"{within.mean():.3f}), of different sequences {between.min():.3f} to {between.max():.3f} (mean "
        f"{between.mean():.3f})",
    )


def _counted(reasons: Sequence[str]) -> list[tuple[str, int]]:
    """The first layer of each reason, and how many have it."""
    firsts: dict[str, str] = {}
    for reason in reasons:
        firsts.setdefault(reason.partition(": ")[2], reason)
    return [(first, sum(reason.endswith(why) for reason in reasons)) for why, first in firsts.items()]


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
