"""Measure how much closer paraphrases lie together than sentences of different meaning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

N_BOOTSTRAP = 2000


def separation(cosines: np.ndarray, groups: Sequence[int], *, seed: int = 0) -> dict[str, float]:
    """Measure how far apart groups are, with intervals from a bootstrap over groups.

    The bootstrap resamples groups, not sentences, because the sentences of a group are not independent; pairs between
    two copies of one resampled group are left out.

    Args:
        cosines: (n, n) of all pairs of sentences, all finite.
        groups: (n,) the group of each sentence, 0, 1, ...; at least 3 groups, of two sentences or more.
        seed: of the bootstrap.

    Returns:
        nearest (share of sentences whose nearest other sentence is of their own group, in [0, 1]); within (mean cosine
        of two different sentences of a group), between (of two sentences of different groups), effect (within - between
        over the root of the mean of the two variances: Cohen's d), and probability (of a pair from within to be closer
        than one from between, ties counted half: area under the ROC curve), the latter four each with the bounds
        NAME_low and NAME_high of a 95 % interval.

    Raises:
        ValueError: fewer groups, a group of one sentence, or cosines that are not finite.
    """
    members = _members(cosines, groups)
    blocks = _blocks(cosines, members)
    random = np.random.RandomState(seed)
    drawn = random.randint(len(members), size=(N_BOOTSTRAP, len(members)))
    weights = np.stack([(drawn == group).sum(1) for group in range(len(members))], axis=1).astype(float)
    observed = _statistics(blocks, np.ones((1, len(members))))
    found = {"nearest": _nearest(cosines, np.asarray(groups))}
    for (name, draws), value in zip(_statistics(blocks, weights).items(), observed.values(), strict=True):
        # a draw of the same group every time has no value
        draws = draws[~np.isnan(draws)]
        low, high = np.quantile(draws, [0.025, 0.975]) if len(draws) else (math.nan, math.nan)
        found |= {name: float(value[0]), f"{name}_low": float(low), f"{name}_high": float(high)}
    return found


def _members(cosines: np.ndarray, groups: Sequence[int]) -> list[np.ndarray]:
    labels = np.asarray(groups)
    members = [np.flatnonzero(labels == group) for group in np.unique(labels)]
    if len(members) < 3 or min(map(len, members)) < 2:
        raise ValueError(
            f"expected at least 3 groups of two sentences or more, got {len(members)} of "
            f"{sorted(set(map(len, members)))} sentences; give more groups, or paraphrases of each sentence"
        )
    if not np.isfinite(cosines).all():
        raise ValueError("expected finite cosines, got some that are not; sentence vectors are zero, inf or NaN")
    return members


class _Blocks(NamedTuple):
    """Sums over the cosines within each group, and between each two groups."""

    within: np.ndarray
    """(n_groups, 3): number, sum and sum of squares."""
    between: np.ndarray
    """(n_pairs, 3)"""
    pairs: np.ndarray
    """(n_pairs, 2) the two groups."""
    closer: np.ndarray
    """(n_groups, n_pairs) how often a cosine from within is larger than one from between, ties counted half."""


def _blocks(cosines: np.ndarray, members: Sequence[np.ndarray]) -> _Blocks:
    inside = [cosines[np.ix_(one, one)][np.triu_indices(len(one), 1)] for one in members]
    pairs = [(a, b) for a in range(len(members)) for b in range(a + 1, len(members))]
    across = [np.sort(cosines[np.ix_(members[a], members[b])].ravel()) for a, b in pairs]
    closer = [
        [(np.searchsorted(other, one, "left") + np.searchsorted(other, one, "right")).sum() / 2 for other in across]
        for one in inside
    ]
    sums = [[(len(x), x.sum(), (x**2).sum()) for x in parts] for parts in (inside, across)]
    return _Blocks(np.array(sums[0]), np.array(sums[1]), np.array(pairs), np.array(closer))


def _statistics(blocks: _Blocks, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return within, between, effect and probability, each (n_draws,), for weights of groups (n_draws, n_groups)."""
    of_pairs = weights[:, blocks.pairs[:, 0]] * weights[:, blocks.pairs[:, 1]]
    (n_in, sum_in, square_in), (n_out, sum_out, square_out) = (weights @ blocks.within).T, (of_pairs @ blocks.between).T
    with np.errstate(invalid="ignore", divide="ignore"):
        within, between = sum_in / n_in, sum_out / n_out
        variances = square_in / n_in - within**2 + square_out / n_out - between**2
        effect = (within - between) / np.sqrt(variances.clip(0) / 2)
        closer = ((weights @ blocks.closer) * of_pairs).sum(1) / (n_in * n_out)
    effect = np.where(variances > 0, effect, math.nan)
    return {"within": within, "between": between, "effect": effect, "probability": closer}


def _nearest(cosines: np.ndarray, groups: np.ndarray) -> float:
    others = cosines.copy()
    np.fill_diagonal(others, -math.inf)
    return float((groups[others.argmax(1)] == groups).mean())
