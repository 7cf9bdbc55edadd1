"""Topic gaps with a control: the same tokens under the topics of another document.

In real text a topic is a stretch of a document, so that two words of one topic stand closer together than others, and
in the same document. Positions and documents alone would make a gap of that. With the topics of another document laid
over the tokens, place by place, stretches and documents are as before, and only the words no longer fit: what is left
of the gap then has nothing to do with words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from repdyn.kernels import Undefined, attention_topic_gap

SHIFTS = 10
"""Other documents whose topics are laid over each; fewer where there are fewer sequences."""


@dataclass(frozen=True)
class Gap:
    """A gap of vectors, and what it is under the topics of other documents."""

    value: float
    controls: np.ndarray
    """(n_shifts,)."""

    @property
    def control(self) -> float:
        return float(self.controls.mean())

    @property
    def control_std(self) -> float:
        return float(self.controls.std(ddof=1)) if len(self.controls) > 1 else float("nan")


@dataclass(frozen=True)
class AttentionGap:
    """Gaps of one layer's heads, sequence by sequence; NaN where a sequence has none."""

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
        """Those that have both."""
        return int(np.isfinite(self.values - self.controls).all(axis=1).sum())

    @property
    def difference(self) -> np.ndarray:
        """(heads,) gap minus control, over the sequences that have both."""
        return np.nanmean(self.values - self.controls, axis=0)

    @property
    def error(self) -> np.ndarray:
        """(heads,) standard error of the difference, sequences being independent."""
        return np.nanstd(self.values - self.controls, axis=0, ddof=1) / np.sqrt(self.n_sequences)

    @property
    def mean_over_heads(self) -> AttentionGap:
        """As if the heads were one."""
        return AttentionGap(self.values.mean(axis=1, keepdims=True), self.controls.mean(axis=1, keepdims=True))


def topics_of_others(topics: Tensor, n_shifts: int = SHIFTS) -> list[Tensor]:
    """The topics of other sequences, place by place.

    Args:
        topics: (n_sequences, length), -1 for none; each sequence from a document of its own.
        n_shifts: how many others, fewer where there are fewer.

    Returns:
        Tensors of the same shape; the s-th holds, for each sequence, the topics of the one s places before it.

    Raises:
        ValueError: fewer than two sequences.
    """
    if len(topics) < 2:
        raise ValueError(f"expected at least 2 sequences, got {len(topics)}; raise --sequences")
    return [topics.roll(shift, dims=0) for shift in range(1, min(n_shifts, len(topics) - 1) + 1)]


def permuted(topics: Tensor, number: int, seed: int) -> list[Tensor]:
    """The same topics given to other words, at random: what a table of words is held against."""
    random = np.random.RandomState(seed)
    return [topics[torch.from_numpy(random.permutation(len(topics)))] for _ in range(number)]


def attention_gap(
    weights: Sequence[tuple[Tensor, np.ndarray]], ids: Tensor, topics: Tensor, *others: Tensor
) -> AttentionGap:
    """The gaps of one layer's attention.

    Args:
        weights: of each sequence (heads, n, n), and the numbers of its tokens (n,).
        ids: (n_tokens,) of the probe.
        topics: (n_tokens,) of the probe.
        others: of the same shape.

    Raises:
        Undefined: no sequence has pairs of both kinds, under its own topics and under those of others.
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
