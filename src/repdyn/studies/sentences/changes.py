"""Test whether one kind of change moves sentence vectors in one direction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from repdyn.studies.anatomy.geometry import cosine_matrix

N_PERMUTATIONS = 2000
ALL_KINDS = "all kinds"


def consistency(
    before: np.ndarray, after: np.ndarray, kinds: Sequence[str], sources: Sequence[str], *, seed: int = 0
) -> pd.DataFrame:
    """Compare the differences ``after - before`` within a kind and across kinds: all kinds together, then each.

    Two differences that start from the same sentence share a vector, which makes them alike: they are not compared. The
    permutation test permutes the labels of the kinds over all differences; p-values are not corrected for their number.

    Args:
        before, after: (n, dim) vectors of the sentences before and after the change.
        kinds: (n,) kind of each change; at least two kinds of two changes or more.
        sources: (n,) the sentence before each change.
        seed: of the permutations.

    Returns:
        A row for :data:`ALL_KINDS`, then one for each kind: change (the kind), n (number of differences), within (mean
        cosine of two differences of the kind, in [-1, 1]), across (of one of the kind and one of another), p (share of
        permutations with as large a ``within - across``, in (0, 1]), length (mean norm of a difference, relative to the
        mean norm of the vectors before and after).

    Raises:
        ValueError: fewer kinds or changes; a kind with no two changes of different sentences; a change that leaves the
            vector as it was.
    """
    names = list(dict.fromkeys(kinds))
    labels = np.array([names.index(kind) for kind in kinds])
    counts = np.bincount(labels)
    if len(names) < 2 or counts.min() < 2:
        given = ", ".join(f"{count} of {name!r}" for name, count in zip(names, counts, strict=True))
        raise ValueError(f"expected at least two kinds of two changes or more, got {given}; give more")
    relative = _relative_lengths(before, after)
    compared = np.asarray(sources)[:, None] != np.asarray(sources)[None, :]
    cosines = np.where(compared, cosine_matrix(after - before), 0.0)
    random = np.random.RandomState(seed)
    permuted = np.stack([labels, *(random.permutation(labels) for _ in range(N_PERMUTATIONS))])
    within, across = _means(cosines, compared, permuted, len(names))
    gaps = within - across
    if np.isnan(gaps[0]).any():
        name = names[int(np.isnan(gaps[0]).argmax())]
        raise ValueError(f"expected changes of different sentences in every kind, got a single one in {name!r}")
    # equal up to rounding counts as large; the observed labels are one of the permutations
    p = (~(gaps < gaps[0] - 1e-12)).mean(0)
    members = np.stack([*(labels == number for number in range(len(names))), np.ones(len(labels), dtype=bool)])
    found = pd.DataFrame({"change": [*names, ALL_KINDS], "n": members.sum(1), "within": within[0], "across": across[0]})
    found = found.assign(p=p, length=[relative[mine].mean() for mine in members])
    return pd.concat([found.tail(1), found.head(-1)], ignore_index=True)


def _relative_lengths(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    moved = np.linalg.norm(after - before, axis=1)
    if not (moved > 0).all():
        raise ValueError(
            f"expected changes that move the vector, got {int((~(moved > 0)).sum())} of {len(moved)} that do not; the "
            "tokenizer may not tell the sentences apart, or the states are not finite"
        )
    return moved / (0.5 * (np.linalg.norm(before, axis=1) + np.linalg.norm(after, axis=1)))


def _means(
    cosines: np.ndarray, compared: np.ndarray, labels: np.ndarray, n_kinds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean cosines within and across, (n_draws, n_kinds + 1), all kinds last, for labels (n_draws, n)."""
    sums_in, counts_in, sums_out, counts_out = ([] for _ in range(4))
    for kind in range(n_kinds):
        mine = (labels == kind).astype(float)
        for values, inside, outside in ((cosines, sums_in, sums_out), (compared.astype(float), counts_in, counts_out)):
            reached = mine @ values
            inside.append((reached * mine).sum(1))
            outside.append((reached * (1 - mine)).sum(1))
    with np.errstate(invalid="ignore"):
        parts = [np.stack(part, axis=1) for part in (sums_in, counts_in, sums_out, counts_out)]
        sum_in, count_in, sum_out, count_out = (np.hstack([part, part.sum(1, keepdims=True)]) for part in parts)
        return sum_in / count_in, sum_out / count_out
