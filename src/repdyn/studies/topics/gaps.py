"""Topic gaps and their control: the same tokens under the topics of another document.

In real text a topic is a stretch of a document, so that two words of one topic are closer together than others, and in
the same document. Positions and documents alone would cause a gap. With the topics of another document assigned to the
tokens position by position, stretches and documents stay the same and only the words no longer fit: any gap that
remains has nothing to do with words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from repdyn.kernels import Undefined, attention_topic_gap

N_CONTROLS = 10
"""Other documents whose topics are assigned to each; fewer if there are fewer sequences."""


@dataclass(frozen=True)
class VectorGap:
    """A gap of vectors, and the gaps under the topics of other documents."""

    value: float
    controls: np.ndarray
    """(n_controls,)."""

    @property
    def control(self) -> float:
        return float(self.controls.mean())

    @property
    def control_std(self) -> float:
        return float(self.controls.std(ddof=1)) if len(self.controls) > 1 else float("nan")


@dataclass(frozen=True)
class AttentionGap:
    """Gaps of one layer's heads, sequence by sequence; NaN for a sequence without one."""

    values: np.ndarray
    """(n_sequences, heads)."""
    controls: np.ndarray
    """(n_sequences, heads): the mean over the topics of other documents."""

    @property
    def value(self) -> np.ndarray:
        """(heads,)."""
        return np.nanmean(self.values, axis=0)

    @property
    def control(self) -> np.ndarray:
        """(heads,)."""
        return np.nanmean(self.controls, axis=0)

    @property
    def n_sequences(self) -> int:
        """Sequences that have both."""
        return int(np.isfinite(self.values - self.controls).all(axis=1).sum())

    @property
    def difference(self) -> np.ndarray:
        """(heads,) gap minus control, over the sequences that have both."""
        return np.nanmean(self.values - self.controls, axis=0)

    @property
    def error(self) -> np.ndarray:
        """(heads,) standard error of the difference, over independent sequences."""
        return np.nanstd(self.values - self.controls, axis=0, ddof=1) / np.sqrt(self.n_sequences)

    @property
    def mean_over_heads(self) -> AttentionGap:
        """The gap of the heads' mean, as of a single head."""
        return AttentionGap(self.values.mean(axis=1, keepdims=True), self.controls.mean(axis=1, keepdims=True))


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


def attention_gap(
    weights: Sequence[tuple[Tensor, np.ndarray]], ids: Tensor, topics: Tensor, *others: Tensor
) -> AttentionGap:
    """Compute the gaps of one layer's attention.

    Args:
        weights: for each sequence (heads, n, n), and the numbers of its tokens (n,).
        ids: (n_tokens,) of the probe.
        topics: (n_tokens,) of the probe.
        others: of the same shape.

    Raises:
        Undefined: fewer than two sequences have pairs of both kinds, under their own topics and under those of others.
    """
    values, controls = [], []
    for of_sequence, tokens in weights:
        words = ids[tokens]
        own, *under_others = (attention_topic_gap(of_sequence, words, labels[tokens]) for labels in (topics, *others))
        values.append(own.cpu().numpy())
        controls.append(torch.stack(under_others).nanmean(dim=0).cpu().numpy())
    gap = AttentionGap(np.stack(values), np.stack(controls))
    if gap.n_sequences < 2:
        raise Undefined(f"{gap.n_sequences} of {len(values)} sequences have pairs of one topic and of different topics")
    return gap
