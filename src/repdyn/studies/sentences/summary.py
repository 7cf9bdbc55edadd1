"""Print what a study of sentence vectors found at the last layer, and the best layer for paraphrases."""

from __future__ import annotations

import pandas as pd

from repdyn.studies.charts import select
from repdyn.studies.output import print_line, print_table
from repdyn.studies.sentences.tables import SHARED_TOKENS
from repdyn.studies.sentences.vectors import POOLINGS


def print_separation(table: pd.DataFrame) -> None:
    """Print how well paraphrases are separated at the last layer, and the best layer of each pooling."""
    rows, best = [], []
    for name in (*POOLINGS, SHARED_TOKENS):
        layers = select(table, vector=name).to_dict("records")
        if not layers:
            continue
        last = layers[-1]
        row = (name, f"{last['within']:.3f}", f"{last['between']:.3f}", f"{last['effect']:.2f}")
        interval = f"[{last['effect_low']:.2f}, {last['effect_high']:.2f}]"
        rows.append((*row, interval, f"{last['probability']:.3f}", f"{last['nearest']:.0%}"))
        if name != SHARED_TOKENS:
            top = max(layers, key=lambda row: row["probability"])
            best.append(f"{name} {top['layer']:.0f} ({top['probability']:.3f})")
    print_line("paraphrases at the last layer:")
    print_table(("vector", "within", "between", "effect", "95 %", "closer", "nearest"), rows, left={"vector"})
    print_line(f"the layer at which paraphrases are closer most often: {', '.join(best)}")


def print_changes(table: pd.DataFrame) -> None:
    """Print how alike the differences are at the last layer."""
    formats = {"within": ".3f", "across": ".3f", "p": ".4f", "length": ".3f"}
    rows = [
        (row["vector"], row["change"], str(row["n"]), *(f"{row[c]:{f}}" for c, f in formats.items()))
        for row in select(table, layer=table["layer"].max()).to_dict("records")
    ]
    print_line("cosine of two differences at the last layer:")
    print_table(("vector", "change", "n", *formats), rows, left={"vector", "change"})


def print_collection(source: str, table: pd.DataFrame) -> None:
    """Print how alike any two texts are at the last layer."""
    columns = {"mean": "mean", "5 %": "q05", "median": "median", "95 %": "q95", "min": "min"}
    rows = [
        (row["vector"], *(f"{row[column]:.3f}" for column in columns.values()), f"{row['positive']:.1%}")
        for row in select(table, layer=table["layer"].max()).to_dict("records")
    ]
    print_line(f"cosine of two texts at the last layer ({source}):")
    print_table(("vector", *columns, "above 0"), rows, left={"vector"})
