"""What is worked out from sentence vectors, a line for each layer and kind of vector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from repdyn.studies.anatomy.geometry import summary
from repdyn.studies.sentences.changes import consistency
from repdyn.studies.sentences.separation import Separation, cosines_of, separation
from repdyn.studies.sentences.vectors import SentenceVectors

WORDS = "tokens in common"
"""In the column vector: no vector at all, but the share of tokens that two sentences have in common."""

_ROUNDING = 1e-5
_BINS = np.linspace(-1, 1, 201)


def separation_table(
    vectors: Iterable[SentenceVectors], words: np.ndarray, groups: Sequence[str], *, seed: int
) -> pd.DataFrame:
    """One line for each layer and kind, the last one for what words alone give; see :class:`Separation`.

    Where all sentences have the same vector (layer 0 at a token that all begin with) there is no line.

    Args:
        vectors: of the sentences.
        words: of :func:`repdyn.studies.sentences.vectors.tokens_in_common`.
        groups: (n,) name of each sentence's group.
        seed: of the bootstrap.
    """
    numbers = pd.factorize(pd.Series(list(groups)))[0].tolist()
    lines = [
        {**_place(one), **_flat(separation(cosines_of(one.vectors), numbers, seed=seed))}
        for one in vectors
        if not _stays(one.vectors[:1], one.vectors).all()
    ]
    baseline = {"stack": None, "layer": None, "vector": WORDS, **_flat(separation(words, numbers, seed=seed))}
    return pd.DataFrame([*lines, baseline])


def change_table(
    before: Iterable[SentenceVectors],
    after: Iterable[SentenceVectors],
    kinds: Sequence[str],
    sources: Sequence[str],
    *,
    seed: int,
) -> pd.DataFrame:
    """One line for each layer, kind of vector and change; see :class:`repdyn.studies.sentences.changes.Consistency`.

    What a change does not move at a layer (layer 0, at a token that stays what it is and where it is) has no direction
    and is left out there; so is a kind of which fewer than two changes are left, and a layer with fewer than two kinds.
    """
    lines: list[dict[str, Any]] = []
    for one, other in zip(before, after, strict=True):
        kept = _comparable(~_stays(one.vectors, other.vectors), kinds, sources)
        if len({kinds[number] for number in kept}) < 2:
            continue
        of_kept = [[values[number] for number in kept] for values in (kinds, sources)]
        for found in consistency(one.vectors[kept], other.vectors[kept], *of_kept, seed=seed):
            lines.append({**_place(one), **{"change" if k == "kind" else k: v for k, v in found._asdict().items()}})
    return pd.DataFrame(lines)


def _comparable(moved: np.ndarray, kinds: Sequence[str], sources: Sequence[str]) -> list[int]:
    """Numbers of the changes that move something and are of a kind with two of different sentences that do."""
    started = {kind: set[str]() for kind in kinds}
    numbers: list[int] = np.flatnonzero(moved).tolist()
    for number in numbers:
        started[kinds[number]].add(sources[number])
    return [number for number in numbers if len(started[kinds[number]]) > 1]


def collection_table(vectors: Iterable[SentenceVectors]) -> pd.DataFrame:
    """One line for each layer and kind: the cosines of all pairs of texts, and the share of them above 0."""
    lines = []
    for one in vectors:
        values = _pair_cosines(one)
        lines.append({**_place(one), **summary(values), "positive": float((values > 0).mean())})
    return pd.DataFrame(lines)


def collection_histograms(vectors: Iterable[SentenceVectors]) -> pd.DataFrame:
    """How many pairs of texts have which cosine, in 200 bins from -1 to 1: low, high, count."""
    frames = []
    for one in vectors:
        counts, _ = np.histogram(_pair_cosines(one), bins=_BINS)
        frames.append(pd.DataFrame({**_place(one), "low": _BINS[:-1], "high": _BINS[1:], "count": counts}))
    return pd.concat(frames, ignore_index=True)


def _stays(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """(n,) which vectors a change moves by no more than rounding."""
    return np.linalg.norm(after - before, axis=1) <= _ROUNDING * np.linalg.norm(before, axis=1)


def _pair_cosines(vectors: SentenceVectors) -> np.ndarray:
    cosines = cosines_of(vectors.vectors)
    values = cosines[np.triu_indices(len(cosines), 1)]
    return values[~np.isnan(values)]


def _place(vectors: SentenceVectors) -> dict[str, Any]:
    return {"stack": vectors.layer.stack, "layer": vectors.layer.index, "vector": vectors.kind}


def _flat(found: Separation) -> dict[str, float]:
    columns = {"nearest": found.nearest}
    for name in ("within", "between", "effect", "probability"):
        interval = getattr(found, name)
        columns |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return columns
