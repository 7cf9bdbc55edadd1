"""Tabulate results on sentence vectors, a row for each layer and pooling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from repdyn.studies.anatomy.geometry import cosine_matrix, describe
from repdyn.studies.sentences.changes import consistency
from repdyn.studies.sentences.separation import separation
from repdyn.studies.sentences.vectors import SentenceVectors

SHARED_TOKENS = "tokens in common"
"""In the column vector: the baseline without a model, the share of tokens that two sentences have in common."""

_ROUNDING = 1e-5
_BINS = np.linspace(-1, 1, 201)


def separation_table(
    vectors: Iterable[SentenceVectors], baseline: np.ndarray, groups: Sequence[str], *, seed: int
) -> pd.DataFrame:
    """Return a row for each layer and pooling, the last one for the baseline; see :func:`separation`.

    There is no row where all sentences have the same vector (layer 0 at a token that all begin with).

    Args:
        vectors: of the sentences.
        baseline: of :func:`repdyn.studies.sentences.vectors.shared_token_cosines`.
        groups: (n,) name of each sentence's group.
        seed: of the bootstrap.
    """
    numbers = pd.factorize(pd.Series(list(groups)))[0].tolist()
    rows = [
        {**one.keys, **separation(cosine_matrix(one.vectors), numbers, seed=seed)}
        for one in vectors
        if not _is_unmoved(one.vectors[:1], one.vectors).all()
    ]
    last = {"stack": None, "layer": None, "vector": SHARED_TOKENS}
    return pd.DataFrame([*rows, {**last, **separation(baseline, numbers, seed=seed)}])


def change_table(
    before: Iterable[SentenceVectors], after: Iterable[SentenceVectors], changes: pd.DataFrame, *, seed: int
) -> pd.DataFrame:
    """Return a row for each layer, pooling and change; see :func:`repdyn.studies.sentences.changes.consistency`.

    A change that does not move the vector at a layer (layer 0, at a token that stays the same in the same place) is
    left out there; so is a kind with fewer than two changes left, or a layer with fewer than two kinds.

    Args:
        before, after: of the sentences of each change.
        changes: of :func:`repdyn.studies.sentences.inputs.read_changes`.
        seed: of the permutations.
    """
    frames = []
    for one, other in zip(before, after, strict=True):
        moved = changes.loc[~_is_unmoved(one.vectors, other.vectors)]
        # a kind needs changes of two different sentences
        chosen = moved.loc[moved.groupby("kind")["before"].transform("nunique") > 1]
        if chosen["kind"].nunique() > 1:
            vectors = one.vectors[chosen.index], other.vectors[chosen.index]
            found = consistency(*vectors, chosen["kind"].tolist(), chosen["before"].tolist(), seed=seed)
            frames.append(pd.DataFrame({**one.keys, **found}))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def collection_table(vectors: Iterable[SentenceVectors]) -> pd.DataFrame:
    """Return a row for each layer and pooling: the cosines of all pairs of texts, and the share of them above 0."""
    rows = []
    for one in vectors:
        values = _pair_cosines(one)
        rows.append({**one.keys, **describe(values), "positive": float((values > 0).mean())})
    return pd.DataFrame(rows)


def collection_histograms(vectors: Iterable[SentenceVectors]) -> pd.DataFrame:
    """Return the number of pairs of texts by cosine, in 200 bins from -1 to 1: low, high, count."""
    frames = []
    for one in vectors:
        counts, _ = np.histogram(_pair_cosines(one), bins=_BINS)
        frames.append(pd.DataFrame({**one.keys, "low": _BINS[:-1], "high": _BINS[1:], "count": counts}))
    return pd.concat(frames, ignore_index=True)


def _is_unmoved(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return (n,) bool, whether vectors are equal up to rounding."""
    return np.linalg.norm(after - before, axis=1) <= _ROUNDING * np.linalg.norm(before, axis=1)


def _pair_cosines(one: SentenceVectors) -> np.ndarray:
    cosines = cosine_matrix(one.vectors)
    values = cosines[np.triu_indices(len(cosines), 1)]
    return values[~np.isnan(values)]
