"""The means over blocks that docs/neighbours/again.md quotes of short trainings."""

import pandas as pd

from benchmarks.first_steps import means


def _rows(near_duplicates: list[float]) -> pd.DataFrame:
    """Return the rows of three blocks at one step."""
    return pd.DataFrame(
        {
            "step": 0,
            "layer": [1, 2, 3],
            "subset": "all",
            "value": [1.0, 2.0, 6.0],
            "low": [0.5, 1.5, 4.0],
            "high": [1.5, 2.5, 8.0],
            "near_duplicate_share": near_duplicates,
        }
    )


def test_values_and_intervals_are_means_over_the_blocks():
    row = means(_rows([0.0, 0.05, 0.1])).loc[("all", 0)]
    assert row["value"] == 3.0
    assert row["low"] == 2.0
    assert row["high"] == 4.0


def test_a_block_of_near_duplicates_leaves_the_step_without_a_mean():
    row = means(_rows([0.0, 0.11, 0.1])).loc[("all", 0)]
    assert row[["value", "low", "high"]].isna().all()
    assert row["near_duplicate_share"] > 0
