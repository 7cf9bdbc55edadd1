"""Measure the embedding tables of a model: rows in use, distributions, spectra, closest pairs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repdyn.activations import TableKind, find_lookups, ordinary_tokens
from repdyn.kernels import Cloud, UndefinedError, full_precision
from repdyn.kernels.cloud import product as product_of_rows
from repdyn.kernels.cloud import row_chunks
from repdyn.kernels.spectrum import spectrum_of
from repdyn.kernels.vocabulary import unit_rows
from repdyn.lab.studies.result import join_tables

MAX_PAIRS = 1_000_000
"""Pairs of rows that are sampled; if a table has no more, all of them are measured."""
SHARES = (0.5, 0.9, 0.95, 0.99)
QUANTITIES = ("norm", "distance", "dot", "cosine", "cosine with mean")
TWIN = 0.99
"""Cosine from which on two rows are twins: training that distinguishes their tokens leaves none."""
UNUSED = re.compile(
    r"\[unused\d+\]|<unused_?\d+>|<\|unused_?\d+\|>|<\|reserved_special_token_\d+\|>|madeupword\d+"
)
"""Names of tokens that vocabularies reserve: no text is ever encoded as them."""
NO_TOKEN = "no token has them"
UNUSED_TOKEN = "unused tokens"
NO_POSITION = "before position 0"
TWINS = "with a twin"
"""Reasons for leaving rows out."""
LARGEST = "largest"
ENDS: dict[str, Callable[[Any], Any]] = {
    **{LARGEST: lambda cosines: cosines, "most negative": lambda cosines: -cosines},
    "nearest to zero": lambda cosines: -abs(cosines),
}
"""Scores of cosines: pairs of rows with the largest scores are at this end."""
_STATISTICS = ("n", "mean", "std", "min", "q01", "q05", "q25", "median", "q75", "q95", "q99", "max")
_PAIRS_AT_ONCE = 1 << 22
# rows of one tile of cosines: 64 MB in float32
_TILE = 4096
# pairs that are measured again in float64: those that rounding may put behind the k-th
_FEWEST_CANDIDATES = 1 << 14


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """The used rows of a table, with their names."""

    name: str
    """"input", "position", "segment"; with the parameter's name where a model has several of a
    kind.
    """
    kind: TableKind
    parameter: str
    """Name of the whole table in the model."""
    rows: Tensor
    """(n, dim)"""
    labels: tuple[str, ...]
    """(n,) what each row stands for: a token, or the number of a position or segment."""
    left_out: dict[str, int]
    """Number of rows of the whole table that are not used, by reason."""

    @cached_property
    def about(self) -> pd.DataFrame:
        """Return the relations of the rows to their mean, of :func:`about_mean`."""
        return about_mean(self.rows)

    @cached_property
    def explained(self) -> np.ndarray:
        """Return the cumulative share of variance by principal components; empty for fewer than 3
        different rows.
        """
        try:
            return explained_variance(self.rows)
        except UndefinedError:
            return np.empty(0)

    def subset(self, numbers: np.ndarray, reason: str) -> EmbeddingTable:
        """Return the table of some of its rows, with the reason for leaving the others out."""
        left_out = {**self.left_out, reason: len(self.rows) - len(numbers)}
        labels = tuple(self.labels[number] for number in numbers)
        return replace(
            self, rows=self.rows[torch.from_numpy(numbers)], labels=labels, left_out=left_out
        )


def embedding_tables(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, unused: bool = False
) -> list[EmbeddingTable]:
    """Return the input, position and segment tables of a model, without the rows that mean nothing,
    which are counted.

    Left out are input rows beyond the vocabulary (padding to a round size) and those of tokens that
    it names as unused (:data:`UNUSED`), and position rows before position 0.
    """
    vocabulary = {int(number): token for token, number in tokenizer.get_vocab().items()}
    lookups = find_lookups(model, ordinary_tokens(vocabulary, tokenizer))
    kinds = Counter(lookup.kind for lookup in lookups)
    tables = []
    for lookup in lookups:
        n_rows, first = len(lookup.weight), lookup.first_row
        if lookup.kind == "input":
            named = {row: vocabulary[row] for row in sorted(vocabulary) if row < n_rows}
            labels = {
                row: token for row, token in named.items() if unused or not UNUSED.fullmatch(token)
            }
            left_out = {NO_TOKEN: n_rows - len(named), UNUSED_TOKEN: len(named) - len(labels)}
        else:
            labels = {row: str(row - first) for row in range(first, n_rows)}
            left_out = {NO_POSITION: first}
        name = lookup.kind if kinds[lookup.kind] == 1 else f"{lookup.kind}: {lookup.parameter}"
        rows = lookup.weight if len(labels) == n_rows else lookup.weight[torch.tensor([*labels])]
        left_out = {why: count for why, count in left_out.items() if count}
        tables.append(
            EmbeddingTable(
                name=name,
                kind=lookup.kind,
                parameter=lookup.parameter,
                rows=rows,
                labels=tuple(labels.values()),
                left_out=left_out,
            )
        )
    return tables


def sample_pairs(n_rows: int, max_pairs: int = MAX_PAIRS, seed: int = 0) -> Tensor:
    """Return all unordered pairs of rows, or ``max_pairs`` drawn with replacement if there are
    more: (2, n) int64.
    """
    if n_rows * (n_rows - 1) // 2 <= max_pairs:
        return torch.triu_indices(n_rows, n_rows, offset=1)
    # numpy keeps RandomState's stream fixed: a seed draws the same pairs in every version
    random = np.random.RandomState(seed)
    first = random.randint(n_rows, size=max_pairs)
    other = random.randint(n_rows - 1, size=max_pairs)
    # one of the n - 1 other rows: those from the first on are moved up by one
    return torch.from_numpy(np.stack([first, other + (other >= first)]))


def norms(rows: Tensor) -> np.ndarray:
    """Return Euclidean norms of the rows (n, dim), (n,) float64."""
    return rows.detach().cpu().double().norm(dim=1).numpy()


def pair_values(rows: Tensor, pairs: Tensor, other: Tensor | None = None) -> dict[str, np.ndarray]:
    """Return ``distance`` |x - y|, ``dot`` x . y and ``cosine`` of pairs of rows (n, dim), each
    (n_pairs,) float64.

    ``pairs``, (2, n_pairs), are numbers of rows, the second ones of the ``other`` table, if there
    is one.
    """
    other = rows if other is None else other
    values: dict[str, list[Tensor]] = {"distance": [], "dot": [], "cosine": []}
    with full_precision(rows.device):
        for first, second in pairs.to(rows.device).split(
            max(1, _PAIRS_AT_ONCE // rows.shape[1]), dim=1
        ):
            x = rows[first].double()
            y = other[second].double()
            dot = (x * y).sum(1)
            values["distance"].append((x - y).norm(dim=1))
            values["dot"].append(dot)
            values["cosine"].append((dot / (x.norm(dim=1) * y.norm(dim=1))).clamp(-1, 1))
    return {name: torch.cat(parts).cpu().numpy() for name, parts in values.items()}


def cosine_matrix(rows: Tensor | np.ndarray) -> np.ndarray:
    """Return cosines of all pairs of rows (n, dim), (n, n) float64; NaN for a row that is zero."""
    x = torch.as_tensor(rows).detach().cpu().double().numpy()
    with np.errstate(invalid="ignore"):
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return (unit @ unit.T).clip(-1, 1)


def describe(values: np.ndarray) -> dict[str, Any]:
    """Return number, mean, standard deviation (n - 1) and quantiles of the values that are
    not NaN.
    """
    numbers = pd.Series(values).dropna()
    statistics = numbers.describe([0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99]).tolist()
    return {**dict(zip(_STATISTICS, statistics, strict=True)), "n": len(numbers)}


def about_mean(rows: Tensor) -> pd.DataFrame:
    """Return distance, cosine (NaN if either is zero) and dot of each row (n, dim) with the mean
    row m, and its own length, in float64.

    The mean of dot is |m|^2.
    """
    wide = rows.detach().cpu().double()
    mean = wide.mean(0)
    dots = wide @ mean
    lengths = wide.norm(dim=1)
    cosines = (dots / (lengths * mean.norm())).clamp(-1, 1)
    distances = (wide - mean).norm(dim=1)
    return pd.DataFrame({"distance": distances, "cosine": cosines, "dot": dots, "length": lengths})


def explained_variance(rows: Tensor) -> np.ndarray:
    """Return the cumulative share of variance that the principal components explain; of at least 3
    different rows.
    """
    variances = Cloud(rows).once(spectrum_of).cpu().numpy()
    return np.cumsum(variances) / variances.sum()


def components_for(cumulative: np.ndarray) -> dict[float, int]:
    """Return how many components reach each of :data:`SHARES` of the variance.

    >>> components_for(np.array([0.5, 0.8, 0.96, 1.0]))
    {0.5: 1, 0.9: 3, 0.95: 3, 0.99: 4}
    """
    # equal up to rounding counts as reached
    return {share: int(np.searchsorted(cumulative, share - 1e-12) + 1) for share in SHARES}


def closest_pairs(
    rows: Tensor,
    other: Tensor | None = None,
    *,
    k: int = 20,
    ends: Iterable[str] = (LARGEST,),
    title: str | None = None,
) -> tuple[dict[str, pd.DataFrame], Tensor]:
    """Find the ``k`` pairs of rows at ends of the cosines (all if there are fewer), and each row's
    largest cosine.

    The search computes every pair, a tile of float32 cosines at a time; the best 16,384 are
    measured again in float64, so the order is that of float64.

    Args:
        rows: (n, dim), any floating dtype, any device; rows that are zero have no cosine and are in
            no pair.
        other: (m, dim) for pairs across two tables; None for pairs of different rows within one.

    Returns:
        The pairs by end, most extreme first, equal ones by row number: first and second (row
        numbers), cosine, dot, distance. And each row's largest cosine with another, (n,) float32 on
        the CPU; -1 if it has none.
    """
    within = other is None
    n = max(4 * k, _FEWEST_CANDIDATES)
    with full_precision(rows.device):
        directions, numbers = _directions(rows)
        two, others = (directions, numbers) if other is None else _directions(other)
        best = {
            end: (
                directions.new_empty(0),
                torch.empty(0, 2, dtype=torch.long, device=directions.device),
            )
            for end in ends
        }
        nearest = torch.full_like(directions[:, 0], -1.0)
        tiles = product(range(0, len(directions), _TILE), range(0, len(two), _TILE))
        # within a table each pair is in two tiles, of which one is enough
        upper = [(row, column) for row, column in tiles if column >= row or not within]
        for row, column in tqdm(
            upper, desc=title and f"closest pairs: {title}", leave=False, disable=title is None
        ):
            cosines = product_of_rows(directions[row : row + _TILE], two[column : column + _TILE])
            of_others = cosines
            if within and row == column:
                # neither a row with itself nor a pair twice; a comparison with NaN is false
                cosines.masked_fill_(torch.ones_like(cosines, dtype=torch.bool).tril(), torch.nan)
                of_others = cosines.nan_to_num(nan=-1.0)
            # within a table a tile holds cosines of its columns' rows, too
            for start, along in ((row, 1), (column, 0))[: 1 + within]:
                part = nearest[start : start + _TILE]
                torch.maximum(part, of_others.amax(along), out=part)
            corner = torch.tensor([row, column], device=directions.device)
            best = {end: _best_with(*best[end], ENDS[end](cosines), corner, n) for end in ends}
    frames = {}
    for end, (_, places) in best.items():
        pairs = torch.stack([numbers[places[:, 0]], others[places[:, 1]]])
        values = pair_values(rows, pairs, other)
        candidates = pd.DataFrame(pairs.T.cpu().numpy(), columns=["first", "second"])
        candidates = candidates.assign(**values, score=-ENDS[end](values["cosine"])).sort_values(
            ["score", "first", "second"]
        )
        frames[end] = (
            candidates[["first", "second", "cosine", "dot", "distance"]]
            .head(k)
            .reset_index(drop=True)
        )
    of_all = torch.full((len(rows),), -1.0)
    of_all[numbers.cpu()] = nearest.cpu()
    return frames, of_all


def _best_with(
    scores: Tensor, places: Tensor, tile: Tensor, corner: Tensor, n: int
) -> tuple[Tensor, Tensor]:
    """Return the n best scores so far and of a tile, largest first, and their places; NaN
    is none.
    """
    # what is not above the n-th so far needs no sorting
    better = tile > (scores[-1] if len(scores) == n else -torch.inf)
    scores = torch.cat([scores, tile[better]])
    places = torch.cat([places, better.nonzero() + corner])
    best = scores.topk(min(n, len(scores)))
    return best.values, places[best.indices]


def _directions(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return nonzero rows scaled to length 1 in float32, and their row numbers."""
    unit = torch.cat([unit_rows(chunk).float() for chunk in row_chunks(rows)])
    nonzero = unit.isfinite().all(1)
    return unit[nonzero], nonzero.nonzero()[:, 0]


def without_twins(
    table: EmbeddingTable, k: int, twin: float = TWIN
) -> tuple[EmbeddingTable, dict[str, pd.DataFrame]]:
    """Leave out the rows of an input table that nearly equal another; return the rest and its ``k``
    pairs at each end.

    Such rows belong to tokens that never occurred in training: they all moved the same way. A table
    that would be left with fewer than two rows keeps all.
    """
    candidates, nearest = closest_pairs(
        table.rows, k=_FEWEST_CANDIDATES, ends=ENDS, title=table.name
    )
    alone = np.flatnonzero((nearest < twin).numpy())
    if len(alone) == len(table.rows) or len(alone) < 2:
        return table, {end: pairs.head(k) for end, pairs in candidates.items()}
    rest = table.subset(alone, TWINS)
    sides = ["first", "second"]
    # many more candidates were found than k, so that the rest mostly has its pairs among them
    pairs_without = {
        end: pairs[pairs[sides].isin(alone.tolist()).all(axis=1)].head(k)
        for end, pairs in candidates.items()
    }
    if all(len(pairs) == k for pairs in pairs_without.values()):
        return rest, {
            end: pairs.assign(
                **{side: np.searchsorted(alone, np.asarray(pairs[side])) for side in sides}
            )
            for end, pairs in pairs_without.items()
        }
    return rest, closest_pairs(rest.rows, k=k, ends=ENDS, title=table.name)[0]


def closest_table(
    tables: Sequence[EmbeddingTable],
    k: int,
    pairs_by_table: Mapping[str, Mapping[str, pd.DataFrame]],
) -> pd.DataFrame:
    """Return the ``k`` closest pairs within each table, and across each two of one width. Those
    within a table are not searched for where ``pairs_by_table`` has them.
    """
    frames = {}
    for left, other in [*((table, None) for table in tables), *combinations(tables, 2)]:
        name, rows = (
            (left.name, None) if other is None else (f"{left.name} and {other.name}", other.rows)
        )
        if rows is None or rows.shape[1] == left.rows.shape[1]:
            found = pairs_by_table.get(name) or closest_pairs(left.rows, rows, k=k, title=name)[0]
            frames[name] = name_rows(found[LARGEST], left, other or left)
    return join_tables(frames, "tables")


def name_rows(pairs: pd.DataFrame, left: EmbeddingTable, other: EmbeddingTable) -> pd.DataFrame:
    """Return pairs with the names of the rows in place of their numbers."""
    sides = {"first": left, "second": other}
    return pairs.assign(
        **{side: np.array(table.labels, object)[pairs[side]] for side, table in sides.items()}
    )


def distributions(table: EmbeddingTable, *, pairs: int, seed: int) -> dict[str, np.ndarray]:
    """Return each quantity of :data:`QUANTITIES`, of every row or of sampled pairs; of pairs only
    if there are two rows."""
    n = len(table.rows)
    of_pairs = pair_values(table.rows, sample_pairs(n, pairs, seed)) if n > 1 else {}
    return {
        "norm": norms(table.rows),
        **of_pairs,
        "cosine with mean": table.about["cosine"].to_numpy(),
    }


def count_pairs(table: EmbeddingTable, values: Mapping[str, np.ndarray]) -> tuple[int, bool]:
    """Return of how many pairs of rows :func:`distributions` are, and whether these are all."""
    n_pairs = len(values.get("cosine", ()))
    return n_pairs, n_pairs == math.comb(len(table.rows), 2)


def tabulate(
    measured: Mapping[EmbeddingTable, Mapping[str, np.ndarray]],
) -> dict[str, pd.DataFrame]:
    """Return results of several embedding tables, from their :func:`distributions`.

    Returns:
        tables: rows, those left out, mean, components for shares of variance. distributions: of
            each quantity.
        dimension_curves: cumulative share of variance.
    """
    curves = {
        table.name: pd.DataFrame(
            {"components": range(1, n + 1), "cumulative_share": table.explained}
        )
        for table in measured
        if (n := len(table.explained))
    }
    described = [
        {"table": table.name, "quantity": name, **describe(of_quantity)}
        for table, values in measured.items()
        for name, of_quantity in values.items()
    ]
    return {
        "tables": pd.DataFrame([_overview(table, values) for table, values in measured.items()]),
        "distributions": pd.DataFrame(described),
        "dimension_curves": join_tables(curves, "table"),
    }


def _overview(table: EmbeddingTable, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
    needed = components_for(table.explained) if len(table.explained) else {}
    of_mean = table.about["dot"].to_numpy().mean()
    of_rows = np.square(values["norm"]).mean()
    n_pairs, are_all = count_pairs(table, values)
    return {
        "table": table.name,
        "parameter": table.parameter,
        "rows": len(table.rows),
        "dim": table.rows.shape[1],
        "left_out": "; ".join(f"{count} {reason}" for reason, count in table.left_out.items()),
        "pairs": n_pairs,
        "all_pairs": are_all,
        "mean_norm": math.sqrt(max(of_mean, 0.0)),
        "mean_share": of_mean / of_rows if of_rows else math.nan,
        **{f"components_{share * 100:.0f}": count for share, count in needed.items()},
    }
