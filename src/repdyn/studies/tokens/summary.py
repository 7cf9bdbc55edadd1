"""Print what a study of tokens found."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from repdyn.studies.charts import select
from repdyn.studies.output import print_line, print_table, print_title
from repdyn.studies.tokens.text import NEIGHBOURS, higher_share

_MAX_LAYERS = 9


def print_sentence(name: str, table: pd.DataFrame, reasons: Iterable[str]) -> None:
    """Print the rank of each token's own embedding after some of the blocks, and missing states after attention.

    Args:
        name: of the model, and of a stack.
        table: of a ``VocabularyComparison``, one stack.
        reasons: one for each layer without a state after its attention.
    """
    blocks = select(table, state="block")
    layers = np.unique(np.linspace(0, blocks["layer"].nunique() - 1, _MAX_LAYERS).round().astype(int))
    ranks = blocks.pivot(index=["position", "token"], columns="layer", values="rank").iloc[:, layers]
    columns = [(f"layer {layer}", f"{{layer {layer}:,}}") for layer in ranks.columns]
    print_title(f"{name}: rank of each token's own embedding among the input embeddings")
    print_table(ranks.add_prefix("layer ").reset_index(), [("token", "{token}"), *columns])
    layers_of: dict[str, list[str]] = {}
    for reason in reasons:
        layers_of.setdefault(reason.partition(": ")[2], []).append(reason)
    for first, *others in layers_of.values():
        print_line(f"no state after attention at {first}{f' and {len(others)} more' if others else ''}")


def print_classes(name: str, table: pd.DataFrame) -> None:
    """Print mean cosine, median rank and share of rank 0 of each class, layer by layer of one stack."""
    columns = [("layer", "{layer:d}"), ("state", "{state}"), ("class", "{class}"), ("tokens", "{tokens:,}")]
    columns += [("cosine", "{cosine:.4f}"), ("median rank", "{rank:,.1f}"), ("rank 0", "{kept:.1%}")]
    print_title(name)
    print_table(table, columns)


def print_density(table: pd.DataFrame) -> None:
    """Print how crowded it is around function words and content words."""
    classes = {label: rows["density"].to_numpy() for label, rows in table.groupby("class")}
    means = [f"{label} words {values.mean():.4f} ({len(values):,} tokens)" for label, values in classes.items()]
    print_line(f"mean cosine to the {NEIGHBOURS} nearest other input embeddings: {', '.join(means)}")
    if len(classes) == 2:
        share = higher_share(classes["function"], classes["content"])
        frequency = pd.Series(table["count"]).corr(pd.Series(table["density"]), method="spearman")
        print_line(
            f"the embedding of a function word is in the denser place in {share:.1%} of all pairs with a content word; "
            f"rank correlation of density and occurrences {frequency:.2f}"
        )


def print_steps(table: pd.DataFrame) -> None:
    """Print whether tokens move together."""
    ranges = [
        f"{table[c].min():.3f} to {table[c].max():.3f} (mean {table[c].mean():.3f})" for c in ("within", "between")
    ]
    print_line(f"mean cosine of two tokens' steps: of one sequence {ranges[0]}, of different sequences {ranges[1]}")
