"""A text against the vocabulary: function words and content words, crowded regions, common directions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from repdyn.kernels import full_precision
from repdyn.kernels.token_rank import nearest_rows
from repdyn.kernels.tokens import token_cosines, token_ranks
from repdyn.kernels.vocabulary import Vocabulary, unit_rows

NEIGHBOURS = 10


def class_lines(x: Tensor, ids: Tensor, vocabulary: Vocabulary, classes: Mapping[str, Tensor]) -> list[dict]:
    """How near the tokens of each class stay to their own input embeddings, in one state of one layer.

    Args:
        x: (n, dim) vectors.
        ids: (n,) their tokens.
        vocabulary: the input embeddings.
        classes: by name, which rows of ``x`` (indices).

    Returns:
        For each class: class, tokens (their number), cosine (mean), rank_q25, rank (median), rank_q75, kept (share of
        rank 0).

    Raises:
        Undefined: as :func:`repdyn.kernels.tokens.token_cosines`.
    """
    cosines, ranks = token_cosines(x, ids, vocabulary).cpu().numpy(), token_ranks(x, ids, vocabulary).cpu().numpy()
    lines = []
    for name, rows in classes.items():
        low, middle, high = np.quantile(ranks[rows.numpy()], [0.25, 0.5, 0.75])
        lines.append(
            {
                "class": name,
                "tokens": len(rows),
                "cosine": cosines[rows.numpy()].mean(),
                "rank_q25": low,
                "rank": middle,
                "rank_q75": high,
                "kept": (ranks[rows.numpy()] == 0).mean(),
            }
        )
    return lines


def density(vocabulary: Vocabulary, ids: Tensor, is_function: Tensor) -> pd.DataFrame:
    """How crowded the embedding space is around the tokens of a text: mean cosine to the 10 nearest other rows.

    Args:
        vocabulary: the input embeddings.
        ids: (n,) tokens of function words and content words, as often as they occur.
        is_function: (n,) bool, whether the word is a function word.

    Returns:
        One line for each different token: token_id, class (the one it is in more often), count, norm, density in
        [-1, 1]. Rows that are zero are left out.

    Raises:
        ValueError: a vocabulary of 10 rows or fewer.
    """
    tokens, place = ids.unique(return_inverse=True)
    count = torch.bincount(place)
    functions = torch.bincount(place, weights=is_function.to(place.device).double())
    kept = vocabulary.norms.to(tokens.device)[tokens] > 0
    tokens, count, functions = tokens[kept], count[kept], functions[kept]
    found, rows = nearest_rows(vocabulary.table[tokens.to(vocabulary.table.device)], vocabulary, NEIGHBOURS + 1)
    # the row itself is the nearest, or one of several that equal it: one of them is left out
    own = (rows == tokens.to(rows.device).unsqueeze(1)).double().argmax(1)
    others = found.sum(1) - found.gather(1, own.unsqueeze(1)).squeeze(1)
    return pd.DataFrame(
        {
            "token_id": tokens.tolist(),
            "class": np.where((2 * functions > count).cpu().numpy(), "function", "content"),
            "count": count.tolist(),
            "norm": vocabulary.norms[tokens.to(vocabulary.norms.device)].tolist(),
            "density": (others / NEIGHBOURS).tolist(),
        }
    )


def higher_share(values: np.ndarray, others: np.ndarray) -> float:
    """Probability that one drawn from ``values`` exceeds one drawn from ``others``, ties counted half; in [0, 1].

    >>> higher_share(np.array([1.0, 3.0]), np.array([2.0, 3.0]))
    0.375
    """
    below = np.searchsorted(np.sort(others), values, side="left")
    not_above = np.searchsorted(np.sort(others), values, side="right")
    return float((below + not_above).mean() / 2 / len(others))


def common_direction(before: Tensor, after: Tensor, sequences: Tensor) -> tuple[float, float]:
    """Whether tokens move in the same direction: mean cosine between the steps of two tokens.

    With unit steps ``u = (after - before) / |after - before|`` and their sums U_s over the tokens of each sequence s
    (m_s of them): within a sequence ``sum_s (|U_s|^2 - m_s) / sum_s m_s (m_s - 1)``, and between sequences
    ``(|sum_s U_s|^2 - sum_s |U_s|^2) / (n^2 - sum_s m_s^2)``; each is the mean over all such pairs.

    Args:
        before, after: (n, dim) vectors of the same tokens at a layer and at the next.
        sequences: (n,) which sequence each stands in.

    Returns:
        Within and between, each in [-1, 1]; NaN where there is no such pair. Tokens that do not move are left out.
    """
    with full_precision(before.device):
        steps = unit_rows(after.to(before.device).double() - before.double())
    moved = ~steps.isnan().any(1)
    steps, of = steps[moved], sequences.to(steps.device)[moved]
    of = of.unique(return_inverse=True)[1]
    members = torch.bincount(of)
    sums = steps.new_zeros(len(members), steps.shape[1]).index_add_(0, of, steps)
    squares, n = sums.square().sum(1), len(steps)
    pairs_within = int((members * (members - 1)).sum())
    pairs_between = n * (n - 1) - pairs_within
    within = float(squares.sum() - n) / pairs_within if pairs_within else math.nan
    between = float(sums.sum(0).square().sum() - squares.sum()) / pairs_between if pairs_between else math.nan
    return within, between
