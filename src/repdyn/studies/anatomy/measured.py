"""What is measured on a model's tables, as data frames: the files of the study and the ground of its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from repdyn.kernels import Undefined
from repdyn.studies.anatomy.closest import Closest, closest_pairs
from repdyn.studies.anatomy.geometry import (
    choose_pairs,
    components_for,
    explained,
    mean_relation,
    norms,
    pair_values,
    summary,
)
from repdyn.studies.anatomy.tables import Table

QUANTITIES = ("norm", "distance", "dot", "cosine", "cosine with mean")

TWIN = 0.99
"""Cosine from which on two rows are twins: a training that tells their tokens apart leaves none."""

TWINS = "with a twin"

_N_BINS = 100


@dataclass(frozen=True, eq=False)
class TableMeasurements:
    """One table and what was measured on it."""

    table: Table
    values: dict[str, np.ndarray]
    """By quantity, of :data:`QUANTITIES`: of every row, or of the pairs."""
    n_pairs: int
    all_pairs: bool
    mean_norm: float
    """Length of the mean row."""
    mean_share: float
    """Share of the squared length that the rows have in common with their mean."""
    explained: np.ndarray
    """Cumulative share of variance by principal components; empty where there are fewer than 3 different rows."""


def measure_table(table: Table, *, pairs: int, seed: int) -> TableMeasurements:
    """The distributions, mean and spectrum of a table; pairs only where it has two rows."""
    values, relation = {"norm": norms(table.rows)}, mean_relation(table.rows)
    n_pairs, all_pairs = 0, True
    if len(table.rows) > 1:
        chosen = choose_pairs(len(table.rows), pairs, seed)
        n_pairs, all_pairs = len(chosen.first), chosen.all_of_them
        values |= pair_values(table.rows, chosen)
    values["cosine with mean"] = relation.cosines
    try:
        cumulative = explained(table.rows)
    except Undefined:
        cumulative = np.empty(0)
    return TableMeasurements(table, values, n_pairs, all_pairs, relation.norm, relation.share, cumulative)


def overview(measured: Sequence[TableMeasurements]) -> pd.DataFrame:
    """One line for each table: rows, what is left out, its mean, components to shares of variance."""
    lines = []
    for one in measured:
        table = one.table
        needed = components_for(one.explained) if len(one.explained) else {}
        lines.append(
            {
                "table": table.name,
                "parameter": table.parameter,
                "rows": len(table.rows),
                "dim": table.rows.shape[1],
                "left_out": "; ".join(f"{count} {why}" for why, count in table.left_out.items()),
                "pairs": one.n_pairs,
                "all_pairs": one.all_pairs,
                "mean_norm": one.mean_norm,
                "mean_share": one.mean_share,
                **{f"components_{share * 100:.0f}": count for share, count in needed.items()},
            }
        )
    return pd.DataFrame(lines)


def distributions(measured: Sequence[TableMeasurements]) -> pd.DataFrame:
    """One line for each table and quantity: number, mean, standard deviation, quantiles."""
    lines = [
        {"table": one.table.name, "quantity": name, **summary(one.values[name])}
        for one in measured
        for name in QUANTITIES
        if name in one.values
    ]
    return pd.DataFrame(lines)


def histograms(measured: Sequence[TableMeasurements]) -> pd.DataFrame:
    """100 bins from the smallest to the largest value of each table and quantity: low, high, count."""
    frames = []
    for one in measured:
        for name, values in one.values.items():
            counts, edges = np.histogram(values[np.isfinite(values)], bins=_N_BINS)
            bins = {"low": edges[:-1], "high": edges[1:], "count": counts}
            frames.append(pd.DataFrame({"table": one.table.name, "quantity": name, **bins}))
    return pd.concat(frames, ignore_index=True)


def curves(measured: Sequence[TableMeasurements]) -> pd.DataFrame:
    """Cumulative share of variance by number of principal components."""
    parts = [
        pd.DataFrame(
            {
                "table": one.table.name,
                "components": np.arange(1, len(one.explained) + 1),
                "cumulative_share": one.explained,
            }
        )
        for one in measured
        if len(one.explained)
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def without_twins(table: Table, k: int) -> tuple[Table, Closest]:
    """An input table without the rows that nearly equal another, and the closest pairs of what is left.

    Such rows belong to tokens that training has never met: they all went the same way. A table of which fewer than two
    rows would be left keeps them all.
    """
    found = _watched(table, None, k)
    alone = np.flatnonzero((found.nearest < TWIN).numpy())
    if len(alone) == len(table.rows) or len(alone) < 2:
        return table, found
    left = table.subset(alone, why=TWINS)
    return left, _watched(left, None, k)


def closest(tables: Sequence[Table], k: int, known: Mapping[str, Closest]) -> pd.DataFrame:
    """The ``k`` closest pairs within each table and across each two of the same width.

    Args:
        known: by name of a table, what has been found within it.
    """
    frames = []
    for table in tables:
        found = known[table.name] if table.name in known else _watched(table, None, k)
        frames.append(_pairs(table.name, table, table, found))
    for one, other in combinations(tables, 2):
        if one.rows.shape[1] == other.rows.shape[1]:
            frames.append(_pairs(f"{one.name} and {other.name}", one, other, _watched(one, other, k)))
    return pd.concat(frames, ignore_index=True)


def _watched(one: Table, other: Table | None, k: int) -> Closest:
    name = one.name if other is None else f"{one.name} and {other.name}"
    with tqdm(total=100, desc=f"closest pairs: {name}", leave=False, bar_format="{desc} {percentage:3.0f} %") as bar:

        def progress(share: float) -> None:
            bar.update(100 * share - bar.n)

        return closest_pairs(one.rows, None if other is None else other.rows, k=k, progress=progress)


def _pairs(name: str, one: Table, other: Table, found: Closest) -> pd.DataFrame:
    lines = [
        {
            "tables": name,
            "first": one.labels[pair.first],
            "second": other.labels[pair.second],
            "cosine": pair.cosine,
            "dot": pair.dot,
            "distance": pair.distance,
        }
        for pair in found.pairs
    ]
    return pd.DataFrame(lines, columns=["tables", "first", "second", "cosine", "dot", "distance"])


def start_and_position(words: Table, places: Table, token: str | None) -> float:
    """cos(input embedding of the token that starts a text, position 0), in [-1, 1]; NaN where there is no such token,
    or the tables are of different widths."""
    if token is None or token not in words.labels or words.rows.shape[1] != places.rows.shape[1]:
        return math.nan
    one, other = words.row(token), places.row("0")
    return float(torch.dot(one, other) / (one.norm() * other.norm()))
