"""The dimension of a short training on two clouds: a table of its rows, and means over its blocks.

    python benchmarks/first_steps.py RUN/repdyn --output docs/neighbours/decoder.csv
    python benchmarks/first_steps.py RUN/repdyn --output docs/neighbours/encoder.csv \\
        --blocks 2 3 4 5 6

A mean has a value at the steps at which each of the blocks has one, and at most a tenth of near
duplicates. Its interval is the mean of those of the blocks, as if their errors were one; dense
windows have none, and the standard deviation over their batches in its place.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from repdyn import open_store

COLUMNS = [
    *("step", "layer", "subset", "value", "low", "high", "std", "n_vectors"),
    *("same_token_fraction", "same_input_fraction", "near_duplicate_share"),
]
NEAR = 0.1
"""Largest fraction of near duplicates of a block that has a value."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path, help="the store of the training, or of its checkpoints")
    parser.add_argument("--output", type=Path, required=True, help="file for the table")
    parser.add_argument("--blocks", type=int, nargs="+", help="of the means (default: all)")
    options = parser.parse_args()
    rows = open_store(options.store).to_pandas().query("metric == 'two_nn'").astype({"layer": int})
    rows = rows.sort_values(["step", "subset", "layer"])[COLUMNS].dropna(axis=1, how="all")
    rows.to_csv(options.output, index=False, float_format="%.6g")
    blocks = options.blocks or sorted(rows.loc[rows["layer"] > 0, "layer"].unique())
    print(means(rows[rows["layer"].isin(blocks)]).to_string(float_format="{:.3g}".format))


def means(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the means over the blocks by cloud and step, without value where a block has none."""
    has_value = rows["near_duplicate_share"].fillna(1) <= NEAR
    numbers = [name for name in ("value", "low", "high", "std") if name in rows]
    rows = rows.assign(**{name: rows[name].where(has_value) for name in numbers})
    about = [name for name in rows if name not in ("step", "layer", "subset", *numbers)]
    by_step = rows.groupby(["subset", "step"])
    return by_step[numbers].mean(skipna=False).join(by_step[about].mean())


if __name__ == "__main__":
    main()
