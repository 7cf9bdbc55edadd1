"""Lengths, pairs, means and spectra of tables against closed forms and float64 by other hands; closest pairs."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch

from repdyn.studies.embedding_tables import (
    closest_pairs,
    sample_pairs,
)


def test_drawn_pairs_are_of_different_rows_each_as_likely():
    pairs = sample_pairs(5, max_pairs=9, seed=1)
    assert not pairs.is_complete
    assert len(pairs.first) == 9
    many = sample_pairs(40, max_pairs=700, seed=1)
    assert bool((many.first != many.second).all())
    counts = np.bincount(torch.cat([sample_pairs(40, max_pairs=700, seed=s).first for s in range(40)]), minlength=40)
    assert counts.sum() == 28_000
    assert abs(counts - 700).max() < 5 * math.sqrt(700)


def numbers(pairs: pd.DataFrame) -> list[tuple[int, int]]:
    return list(zip(pairs["first"], pairs["second"], strict=True))


def test_differences_below_float32_are_told_apart():
    # cosines of 1 - 1e-10 and 1 - 4e-10 are both 1 in float32
    rows = torch.eye(4, dtype=torch.float64).repeat_interleave(2, dim=0)
    for pair, angle in enumerate((3e-5, 1e-5, 4e-5, 2e-5)):
        rows[2 * pair + 1, (pair + 1) % 4] = angle
    found = closest_pairs(rows, k=4).pairs
    assert numbers(found) == [(2, 3), (6, 7), (0, 1), (4, 5)]
