"""Print what a study of sentence vectors found at the last layer, and the best layer for paraphrases."""

from __future__ import annotations

import pandas as pd

from repdyn.studies.charts import select
from repdyn.studies.output import print_line, print_table
from repdyn.studies.sentences.tables import SHARED_TOKENS
from repdyn.studies.sentences.vectors import POOLINGS


def print_separation(table: pd.DataFrame) -> None:
    """Print how well paraphrases are separated at the last layer, and the best layer of each pooling."""
    found = {name: rows for name in (*POOLINGS, SHARED_TOKENS) if len(rows := select(table, vector=name))}
    print_line("paraphrases at the last layer:")
    columns = [
        ("vector", "{vector}"),
        ("within", "{within:.3f}"),
        ("between", "{between:.3f}"),
        ("effect", "{effect:.2f}"),
    ]
    columns += [("95 %", "[{effect_low:.2f}, {effect_high:.2f}]"), ("closer", "{probability:.3f}")]
    print_table(pd.concat([rows.tail(1) for rows in found.values()]), [*columns, ("nearest", "{nearest:.0%}")])
    best = {name: rows.loc[rows["probability"].idxmax()] for name, rows in found.items() if name != SHARED_TOKENS}
    named = [f"{name} {row['layer']:.0f} ({row['probability']:.3f})" for name, row in best.items()]
    print_line(f"the layer at which paraphrases are closer most often: {', '.join(named)}")


def print_changes(table: pd.DataFrame) -> None:
    """Print how alike the differences are at the last layer."""
    columns = [("vector", "{vector}"), ("change", "{change}"), ("n", "{n:d}"), ("within", "{within:.3f}")]
    columns += [("across", "{across:.3f}"), ("p", "{p:.4f}"), ("length", "{length:.3f}")]
    print_line("cosine of two differences at the last layer:")
    print_table(select(table, layer=table["layer"].max()), columns)


def print_collection(source: str, table: pd.DataFrame) -> None:
    """Print how alike any two texts are at the last layer."""
    columns = [("vector", "{vector}"), ("mean", "{mean:.3f}"), ("5 %", "{q05:.3f}"), ("median", "{median:.3f}")]
    columns += [("95 %", "{q95:.3f}"), ("min", "{min:.3f}"), ("above 0", "{positive:.1%}")]
    print_line(f"cosine of two texts at the last layer ({source}):")
    print_table(select(table, layer=table["layer"].max()), columns)
