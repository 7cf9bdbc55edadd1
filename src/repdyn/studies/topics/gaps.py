"""Topic gaps and their control: the same tokens under the topics of another document.

In real text a topic is a stretch of a document, so that two words of one topic are closer together than others, and in
the same document. Positions and documents alone would cause a gap. With the topics of another document assigned to the
tokens position by position, stretches and documents stay the same and only the words no longer fit: any gap that
remains has nothing to do with words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from repdyn.kernels import Undefined, attention_topic_gap, topic_gap, topic_gap_dot

PRODUCTS = {"cosine": topic_gap.or_raise, "dot": topic_gap_dot.or_raise}

N_CONTROLS = 10
"""Other documents whose topics are assigned to each; fewer if there are fewer sequences."""


def shifted_topics(topics: Tensor, n_shifts: int = N_CONTROLS) -> list[Tensor]:
    """Return the topics of other sequences, position by position.

    Args:
        topics: (n_sequences, length), -1 for none; each sequence from a document of its own.
        n_shifts: number of other sequences, at most as many as there are.

    Returns:
        Tensors of the same shape; the s-th holds, for each sequence, the topics of the one s places before it.

    Raises:
        ValueError: fewer than two sequences.
    """
    if len(topics) < 2:
        raise ValueError(f"expected at least 2 sequences, got {len(topics)}; raise --sequences")
    return [topics.roll(shift, dims=0) for shift in range(1, min(n_shifts, len(topics) - 1) + 1)]


def permuted_topics(topics: Tensor, number: int, seed: int) -> list[Tensor]:
    """Return random permutations of the topics of words, the control of a table of words."""
    random = np.random.RandomState(seed)
    return [topics[torch.from_numpy(random.permutation(len(topics)))] for _ in range(number)]


def vector_gaps(x: Tensor, ids: Tensor, labels: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Compute the gaps of vectors.

    Args:
        x: (n, dim) vectors.
        ids: (n,) their tokens.
        labels: (n,) topics, -1 for none: first their own, then those of other documents.

    Returns:
        For the products cosine and dot: product, gap, control (mean gap under the topics of other documents) and
        control_std (its standard deviation over them, NaN for a single one), or product and reason.
    """
    rows: list[dict[str, Any]] = []
    for product, kernel in PRODUCTS.items():
        try:
            gap, *controls = (kernel(x, ids, topics).item() for topics in labels)
            spread = float(np.std(controls, ddof=1)) if len(controls) > 1 else float("nan")
            rows.append({"product": product, "gap": gap, "control": float(np.mean(controls)), "control_std": spread})
        except Undefined as error:
            rows.append({"product": product, "reason": error.reason})
    return rows


def attention_gaps(
    weights: Sequence[tuple[Tensor, np.ndarray]], ids: Tensor, topics: Tensor, *others: Tensor
) -> pd.DataFrame:
    """Compute the gaps of one layer's attention.

    Args:
        weights: for each sequence (heads, n, n), and the numbers of its tokens (n,).
        ids: (n_tokens,) of the probe.
        topics: (n_tokens,) of the probe.
        others: topics of other documents, of the same shape.

    Returns:
        As :func:`gaps_over_sequences`.

    Raises:
        Undefined: fewer than two sequences have pairs of both kinds, under their own topics and under those of others.
    """
    values, controls = [], []
    for of_sequence, tokens in weights:
        words = ids[tokens]
        own, *under_others = (attention_topic_gap(of_sequence, words, labels[tokens]) for labels in (topics, *others))
        values.append(own.cpu().numpy())
        controls.append(torch.stack(under_others).nanmean(dim=0).cpu().numpy())
    return gaps_over_sequences(np.stack(values), np.stack(controls))


def gaps_over_sequences(values: np.ndarray, controls: np.ndarray) -> pd.DataFrame:
    """Average gaps over sequences.

    Args:
        values: (n_sequences, heads); NaN for a sequence without a gap.
        controls: (n_sequences, heads), the mean over the topics of other documents.

    Returns:
        A row for each head, and one for their mean, whose head is missing: head, gap, control, difference (gap minus
        control, over the sequences that have both), standard_error (of the difference; sequences are independent).

    Raises:
        Undefined: fewer than two sequences have both.
    """
    n_sequences = int(np.isfinite(values - controls).all(axis=1).sum())
    if n_sequences < 2:
        raise Undefined(f"{n_sequences} of {len(values)} sequences have pairs of one topic and of different topics")
    frames = []
    for gaps, under_others in ((values, controls), (x.mean(axis=1, keepdims=True) for x in (values, controls))):
        columns = {"gap": gaps, "control": under_others, "difference": gaps - under_others}
        frame = pd.DataFrame({name: np.nanmean(found, axis=0) for name, found in columns.items()})
        errors = np.nanstd(columns["difference"], axis=0, ddof=1) / np.sqrt(n_sequences)
        frames.append(frame.assign(standard_error=errors))
    heads = pd.array([*range(values.shape[1]), None], dtype="Int64")
    return pd.concat(frames, ignore_index=True).assign(head=heads)
