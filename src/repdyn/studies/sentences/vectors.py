"""Vectors of whole sentences, at every layer: of the first token, of the last, and the mean of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.capture.capture import causality
from repdyn.capture.prepared_model import prepare
from repdyn.studies.anatomy.states import Layer, probe_of, token_states

FIRST, MEAN, LAST = KINDS = "first token", "mean", "last token"
"""The ways to make one vector of a sentence's tokens."""

_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class SentenceVectors:
    """One way to make a vector of a sentence, at one layer."""

    layer: Layer
    kind: str
    """:data:`FIRST`, :data:`MEAN` or :data:`LAST`."""
    vectors: np.ndarray
    """(n_sentences, dim) float64"""


def sentence_vectors(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    watched: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> list[SentenceVectors]:
    """The vectors of sentences at every layer.

    In a causal stack the first token has seen nothing of its sentence, and its vector is left out there. The first and
    last token and the mean count special tokens as the tokenizer puts them: the first of BERT's is [CLS], its last
    [SEP]. The last layer is the last block's output, before a final norm.

    Args:
        model: any model that :func:`repdyn.capture.capture.capture` takes.
        sequences: token ids of each sentence, special tokens included, at least one token each.
        watched: of the numbers of the first sentences of each pass, for a progress bar.

    Raises:
        ValueError: an empty sentence, or a model that cannot be captured.
    """
    causal = causality(prepare(model), probe_of(sequences[:_AT_ONCE]))
    parts: dict[tuple[Layer, str], list[Tensor]] = {}
    for start in watched(range(0, len(sequences), _AT_ONCE)):
        some = sequences[start : start + _AT_ONCE]
        for layer, states in token_states(model, some):
            for kind, vectors in _pooled(states, [len(sequence) for sequence in some]).items():
                if kind != FIRST or not causal[layer.stack]:
                    parts.setdefault((layer, kind), []).append(vectors)
    return [SentenceVectors(layer, kind, torch.cat(pieces).cpu().numpy()) for (layer, kind), pieces in parts.items()]


def _pooled(states: Tensor, lengths: Sequence[int]) -> dict[str, Tensor]:
    """By kind, (n_sentences, dim) float64, of the states of all tokens, sentence after sentence."""
    ends = torch.tensor(lengths, device=states.device).cumsum(0)
    starts = ends - torch.tensor(lengths, device=states.device)
    means = torch.stack([sentence.double().mean(0) for sentence in states.split(list(lengths))])
    return {FIRST: states[starts].double(), MEAN: means, LAST: states[ends - 1].double()}


def tokens_in_common(sequences: Sequence[Sequence[int]], ignored: Iterable[int] = ()) -> np.ndarray:
    """(n, n) cosines of sentences as sets of tokens, |A and B| / sqrt(|A| |B|): what can be had without a model.

    Args:
        sequences: token ids of each sentence.
        ignored: special tokens, which all have in common.

    Returns:
        0 with a sentence that has ignored tokens alone.
    """
    left_out = set(ignored)
    sets = [set(sequence) - left_out for sequence in sequences]
    numbers = {token: number for number, token in enumerate(sorted(set().union(*sets)))}
    present = np.zeros((len(sets), max(1, len(numbers))))
    for row, tokens in enumerate(sets):
        present[row, [numbers[token] for token in tokens]] = 1
    sizes = np.maximum(np.sqrt(present.sum(1)), 1)
    return (present @ present.T) / np.outer(sizes, sizes)
