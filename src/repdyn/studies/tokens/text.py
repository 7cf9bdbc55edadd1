"""Compare function words and content words of a text with the vocabulary: crowded regions, common directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from tqdm import tqdm

from repdyn.capture.capture import capture
from repdyn.capture.prepared_model import prepare
from repdyn.checkpoints.errors import model_errors
from repdyn.kernels import full_precision
from repdyn.kernels.vocabulary import Vocabulary, nearest_rows, token_cosines, token_ranks, unit_rows
from repdyn.studies.driver import text_probe
from repdyn.studies.models import LoadedModel
from repdyn.studies.tokens.sentences import CAPTURES, comparable, embedding_table, states_of

CLASSES = ("function", "content")
NEIGHBOURS = 10


def measure_text(loaded: LoadedModel, options: Any) -> tuple[str, dict[str, pd.DataFrame]]:
    """Compare the words of a text with the vocabulary, and test whether its tokens move together.

    Args:
        loaded: the model.
        options: text, sequence_length, max_vectors, layers; as on the command line.

    Returns:
        The name of the text, and tables: classes (stack, layer, state, and the columns of :func:`class_rows`), steps (a
        row for each layer but the last: stack, layer, within, between, of :func:`common_direction`), and density (of
        :func:`density`).

    Raises:
        ValueError, OSError: a text that is too short, or cannot be read; states that cannot be compared.
        CheckpointError: the model cannot be run.
    """
    probe = text_probe(loaded, options, CLASSES)
    with model_errors(f"{loaded.name} cannot be measured"):
        states = capture(prepare(loaded.model, options.layers), probe, ("no_sink", *CLASSES), captures=CAPTURES)
    vocabulary = Vocabulary(embedding_table(loaded, states.embeddings))
    tokens = np.unique(np.concatenate([probe.sample(name).ravel() for name in CLASSES]))
    rows, ids = states.rows_of(tokens), probe.tokens[tokens]
    members = {n: torch.from_numpy(np.searchsorted(tokens, np.sort(probe.sample(n).ravel()))) for n in CLASSES}
    moving = probe.sample("no_sink").ravel()
    sequences = torch.arange(len(probe.lengths)).repeat_interleave(probe.lengths)[moving]
    classes, steps = [], []
    with comparable(loaded), tqdm(total=len(states.layers), desc=loaded.name, leave=False) as bar:
        while states.layers:
            layer = states.take()
            key = {"stack": layer.stack, "layer": layer.index}
            for state, vectors in states_of(layer):
                found = class_rows(vectors[rows].to(layer.device), ids.to(layer.device), vocabulary, members)
                classes += [{**key, "state": state, **row} for row in found]
            if not layer.is_last:
                at = states.rows_of(moving)
                within, between = common_direction(layer.states[at], states.following(layer)[at], sequences)
                steps.append({**key, "within": within, "between": between})
            bar.update()
    crowding = density(vocabulary, ids, probe.classes["function"][torch.from_numpy(tokens)])
    return probe.name, {"classes": pd.DataFrame(classes), "steps": pd.DataFrame(steps), "density": crowding}


def class_rows(x: Tensor, ids: Tensor, vocabulary: Vocabulary, classes: Mapping[str, Tensor]) -> list[dict]:
    """Measure how near the tokens of each class stay to their own input embeddings, in one state of one layer.

    Args:
        x: (n, dim) vectors.
        ids: (n,) their tokens.
        vocabulary: the input embeddings.
        classes: rows of ``x`` (indices) by name of the class.

    Returns:
        For each class: class, tokens (their number), cosine (mean), rank_q25, rank (median), rank_q75, kept (share of
        rank 0).

    Raises:
        Undefined: as :func:`repdyn.kernels.vocabulary.token_cosines`.
    """
    cosines, ranks = token_cosines(x, ids, vocabulary).cpu().numpy(), token_ranks(x, ids, vocabulary).cpu().numpy()
    found = []
    for name, rows in classes.items():
        low, middle, high = np.quantile(ranks[rows.numpy()], [0.25, 0.5, 0.75])
        row = {"class": name, "tokens": len(rows), "cosine": cosines[rows.numpy()].mean()}
        row |= {"rank_q25": low, "rank": middle, "rank_q75": high, "kept": (ranks[rows.numpy()] == 0).mean()}
        found.append(row)
    return found


def density(vocabulary: Vocabulary, ids: Tensor, is_function: Tensor) -> pd.DataFrame:
    """Measure how crowded the embedding space is around the tokens of a text: mean cosine to the 10 nearest other rows.

    Args:
        vocabulary: the input embeddings.
        ids: (n,) tokens of function words and content words, as often as they occur.
        is_function: (n,) bool, whether the word is a function word.

    Returns:
        A row for each different token: token_id, class (the more frequent one), count, norm, density in [-1, 1]. Tokens
        whose embedding is zero are left out.

    Raises:
        ValueError: a vocabulary of 10 rows or fewer.
    """
    tokens, place = ids.unique(return_inverse=True)
    count = torch.bincount(place)
    functions = torch.bincount(place, weights=is_function.to(place.device).double())
    nonzero = vocabulary.norms.to(tokens.device)[tokens] > 0
    tokens, count, functions = tokens[nonzero], count[nonzero], functions[nonzero]
    found, rows = nearest_rows(vocabulary.table[tokens.to(vocabulary.table.device)], vocabulary, NEIGHBOURS + 1)
    # the row itself is the nearest, or one of several that equal it: leave one of them out
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
    """Return the probability that a draw from ``values`` exceeds one from ``others``, ties counted half; in [0, 1].

    >>> higher_share(np.array([1.0, 3.0]), np.array([2.0, 3.0]))
    0.375
    """
    return float(stats.mannwhitneyu(values, others).statistic / (len(values) * len(others)))


def common_direction(before: Tensor, after: Tensor, sequences: Tensor) -> tuple[float, float]:
    """Compute the mean cosine between the steps of two tokens: 1 if all tokens move in the same direction.

    With unit steps ``u = (after - before) / |after - before|`` and their sums U_s over the tokens of each sequence s
    (m_s of them): within a sequence ``sum_s (|U_s|^2 - m_s) / sum_s m_s (m_s - 1)``, and between sequences
    ``(|sum_s U_s|^2 - sum_s |U_s|^2) / (n^2 - sum_s m_s^2)``; each is the mean over all such pairs.

    Args:
        before, after: (n, dim) vectors of the same tokens at a layer and at the next.
        sequences: (n,) the sequence of each.

    Returns:
        Within and between, each in [-1, 1]; NaN if there is no such pair. Tokens that do not move are left out.
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
