"""Measure the embedding tables of a model: rows in use, distributions, spectra, closest pairs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repdyn.kernels import Undefined
from repdyn.studies.anatomy.geometry import (
    ClosestPairs,
    MeanRelation,
    closest_pairs,
    components_for,
    describe,
    explained_variance,
    mean_relation,
    norms,
    pair_values,
    sample_pairs,
)
from repdyn.studies.lookups import Lookup, TableKind, find_lookups, ordinary_tokens
from repdyn.studies.output import join_tables, progress_bar

QUANTITIES = ("norm", "distance", "dot", "cosine", "cosine with mean")

TWIN = 0.99
"""Cosine from which on two rows are twins: training that distinguishes their tokens leaves none."""
TWINS = "with a twin"
"""Reason for leaving rows out."""

_N_BINS = 100


@dataclass(frozen=True, eq=False)
class TableMeasurements:
    """An embedding table and its measurements."""

    table: EmbeddingTable
    values: dict[str, np.ndarray]
    """By quantity, of :data:`QUANTITIES`: of every row, or of the pairs."""
    n_pairs: int
    all_pairs: bool
    mean: MeanRelation
    explained: np.ndarray
    """Cumulative share of variance by principal components; empty for fewer than 3 different rows."""


def measure_table(table: EmbeddingTable, *, pairs: int, seed: int) -> TableMeasurements:
    """Measure the distributions, mean and spectrum of a table; pairs only if it has two rows."""
    values, mean = {"norm": norms(table.rows)}, mean_relation(table.rows)
    n_pairs, all_pairs = 0, True
    if len(table.rows) > 1:
        sampled = sample_pairs(len(table.rows), pairs, seed)
        n_pairs, all_pairs = len(sampled.first), sampled.is_complete
        values |= pair_values(table.rows, sampled)
    values["cosine with mean"] = mean.cosines
    try:
        explained = explained_variance(table.rows)
    except Undefined:
        explained = np.empty(0)
    return TableMeasurements(table, values, n_pairs, all_pairs, mean, explained)


def tabulate(measured: Sequence[TableMeasurements]) -> dict[str, pd.DataFrame]:
    """Return results of several embedding tables.

    Returns:
        tables: a row for each: its rows, those left out, its mean, components for shares of variance. distributions:
        number, mean, standard deviation and quantiles of each quantity. histograms: 100 bins from the smallest to the
        largest value of each quantity (low, high, count). dimension_curves: cumulative share of variance by number of
        principal components.
    """
    distributions, histograms, curves = {}, {}, {}
    for one in measured:
        for quantity in QUANTITIES:
            if quantity in one.values:
                values = one.values[quantity]
                distributions[one.table.name, quantity] = pd.DataFrame([describe(values)])
        for quantity, values in one.values.items():
            counts, edges = np.histogram(values[np.isfinite(values)], bins=_N_BINS)
            bins = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "count": counts})
            histograms[one.table.name, quantity] = bins
        if n_components := len(one.explained):
            curve = {"components": np.arange(1, n_components + 1), "cumulative_share": one.explained}
            curves[one.table.name] = pd.DataFrame(curve)
    return {
        "tables": pd.DataFrame(map(_overview, measured)),
        "distributions": join_tables(distributions, "table", "quantity"),
        "histograms": join_tables(histograms, "table", "quantity"),
        "dimension_curves": join_tables(curves, "table"),
    }


def _overview(one: TableMeasurements) -> dict[str, Any]:
    table, needed = one.table, components_for(one.explained) if len(one.explained) else {}
    return {
        "table": table.name,
        "parameter": table.parameter,
        "rows": len(table.rows),
        "dim": table.rows.shape[1],
        "left_out": "; ".join(f"{count} {reason}" for reason, count in table.left_out.items()),
        "pairs": one.n_pairs,
        "all_pairs": one.all_pairs,
        "mean_norm": one.mean.norm,
        "mean_share": one.mean.share,
        **{f"components_{share * 100:.0f}": count for share, count in needed.items()},
    }


def without_twins(table: EmbeddingTable, k: int) -> tuple[EmbeddingTable, ClosestPairs]:
    """Leave out the rows of an input table that nearly equal another; return the rest and its ``k`` closest pairs.

    Such rows belong to tokens that never occurred in training: they all moved the same way. A table that would be left
    with fewer than two rows keeps all.
    """
    found = _search(table, None, k)
    alone = np.flatnonzero((found.nearest < TWIN).numpy())
    if len(alone) == len(table.rows) or len(alone) < 2:
        return table, found
    rest = table.subset(alone, TWINS)
    return rest, _search(rest, None, k)


def closest_table(tables: Sequence[EmbeddingTable], k: int, known: Mapping[str, ClosestPairs]) -> pd.DataFrame:
    """Return the ``k`` closest pairs within each table and across each two of the same width.

    Args:
        tables: of one model.
        k: number of pairs.
        known: results of earlier searches, by name of the table.
    """
    pairs = [(one, one) for one in tables]
    pairs += [(one, other) for one, other in combinations(tables, 2) if one.rows.shape[1] == other.rows.shape[1]]
    frames = {}
    for one, other in pairs:
        if one is other:
            name, found = one.name, known.get(one.name) or _search(one, None, k)
        else:
            name, found = f"{one.name} and {other.name}", _search(one, other, k)
        names = {"first": [*map(one.labels.__getitem__, found.pairs["first"])]}
        names["second"] = [*map(other.labels.__getitem__, found.pairs["second"])]
        frames[name] = found.pairs.assign(**names)
    return join_tables(frames, "tables")


def _search(one: EmbeddingTable, other: EmbeddingTable | None, k: int) -> ClosestPairs:
    name = one.name if other is None else f"{one.name} and {other.name}"
    with progress_bar(f"closest pairs: {name}") as progress:
        return closest_pairs(one.rows, None if other is None else other.rows, k=k, progress=progress)


def start_cosine(words: EmbeddingTable, positions: EmbeddingTable, token: str | None) -> float:
    """Return cos(input embedding of the token that starts a text, position 0), in [-1, 1].

    NaN if there is no such token, or the tables are of different widths.
    """
    if token is None or token not in words.labels or words.rows.shape[1] != positions.rows.shape[1]:
        return math.nan
    one, other = words.row(token), positions.row("0")
    return float(torch.dot(one, other) / (one.norm() * other.norm()))


UNUSED = re.compile(r"\[unused\d+\]|<unused_?\d+>|<\|unused_?\d+\|>|<\|reserved_special_token_\d+\|>|madeupword\d+")
"""Names of tokens that vocabularies reserve: no text is ever encoded as them."""

NO_TOKEN, UNUSED_TOKEN, NO_POSITION = "no token has them", "unused tokens", "before position 0"
"""Reasons for leaving rows out."""


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """The used rows of a table, with their names."""

    name: str
    """"input", "position", "segment"; with the parameter's name where a model has several of a kind."""
    kind: TableKind
    parameter: str
    """Name of the whole table in the model."""
    rows: Tensor
    """(n, dim)"""
    labels: tuple[str, ...]
    """(n,) what each row stands for: a token, or the number of a position or segment."""
    left_out: dict[str, int]
    """Number of rows of the whole table that are not used, by reason."""

    def row(self, label: str) -> Tensor:
        """Return the row of a token, position or segment, (dim,) float64."""
        return self.rows[self.labels.index(label)].double()

    def subset(self, numbers: np.ndarray, reason: str) -> EmbeddingTable:
        """Return the table of some of its rows, with the reason for leaving the others out."""
        return replace(
            self,
            rows=self.rows[torch.from_numpy(numbers).to(self.rows.device)],
            labels=tuple(self.labels[number] for number in numbers),
            left_out={**self.left_out, reason: len(self.rows) - len(numbers)},
        )


def embedding_tables(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, unused: bool = False
) -> list[EmbeddingTable]:
    """Return the input, position and segment tables of a model.

    Rows without a meaning are left out, and counted: in the input table those beyond the vocabulary (padding to a round
    size) and those of tokens that the vocabulary names as unused (:data:`UNUSED`); in a position table those before
    position 0.

    Args:
        model: any model of transformers.
        tokenizer: its own.
        unused: keep the unused tokens.

    Raises:
        ValueError: no input table is found, or the tokenizer has too few tokens.
    """
    vocabulary = {int(number): token for token, number in tokenizer.get_vocab().items()}
    lookups = find_lookups(model, ordinary_tokens(vocabulary, tokenizer))
    kinds = Counter(lookup.kind for lookup in lookups)
    return [
        _table(lookup, lookup.kind if kinds[lookup.kind] == 1 else f"{lookup.kind}: {lookup.parameter}", found, left)
        for lookup in lookups
        for found, left in [_rows(lookup, vocabulary, unused)]
    ]


def _rows(lookup: Lookup, vocabulary: dict[int, str], unused: bool) -> tuple[dict[int, str], dict[str, int]]:
    """Return names of the used rows, by their numbers, and how many others there are."""
    n_rows, first = len(lookup.weight), lookup.first_row
    if lookup.kind != "input":
        return {row: str(row - first) for row in range(first, n_rows)}, {NO_POSITION: first} if first else {}
    named = {row: vocabulary[row] for row in sorted(vocabulary) if row < n_rows}
    kept = named if unused else {row: token for row, token in named.items() if not UNUSED.fullmatch(token)}
    left = {NO_TOKEN: n_rows - len(named), UNUSED_TOKEN: len(named) - len(kept)}
    return kept, {why: count for why, count in left.items() if count}


def _table(lookup: Lookup, name: str, kept: dict[int, str], left_out: dict[str, int]) -> EmbeddingTable:
    numbers = list(kept)
    whole = numbers == list(range(len(lookup.weight)))
    rows = lookup.weight if whole else lookup.weight[torch.tensor(numbers, device=lookup.weight.device)]
    return EmbeddingTable(name, lookup.kind, lookup.parameter, rows, tuple(kept.values()), left_out)
