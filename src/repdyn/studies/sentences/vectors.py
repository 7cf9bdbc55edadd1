"""Compute vectors of whole sentences at every layer: first token, last token, and mean of all tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from repdyn.capture.capture import causality
from repdyn.capture.prepared_model import prepare
from repdyn.studies.states import LayerKey, sentences_probe, token_states

FIRST, MEAN, LAST = POOLINGS = "first token", "mean", "last token"
"""The ways to make one vector of a sentence's tokens."""

_BATCH_SENTENCES = 64


@dataclass(frozen=True, eq=False)
class SentenceVectors:
    """Vectors of sentences at one layer, by one pooling."""

    layer: LayerKey
    pooling: str
    """:data:`FIRST`, :data:`MEAN` or :data:`LAST`."""
    vectors: np.ndarray
    """(n_sentences, dim) float64"""

    @property
    def keys(self) -> dict[str, str | int | None]:
        """The first columns of a table."""
        return {"stack": self.layer.stack, "layer": self.layer.index, "vector": self.pooling}

    def take(self, rows: np.ndarray) -> SentenceVectors:
        """Return the vectors of some of the sentences, by their numbers."""
        return replace(self, vectors=self.vectors[rows])


def sentence_vectors(
    model: nn.Module, sequences: Sequence[Sequence[int]], title: str | None = None
) -> list[SentenceVectors]:
    """Compute the vectors of sentences at every layer.

    In a causal stack the first token depends on nothing else in its sentence, and its vector is left out. The first and
    last token and the mean include the tokenizer's special tokens: the first of BERT's is [CLS], its last [SEP]. The
    last layer is the last block's output, before a final norm.

    Args:
        model: any model that :func:`repdyn.capture.capture.capture` takes.
        sequences: token ids of each sentence, special tokens included, at least one token each.
        title: of the progress bar.

    Raises:
        ValueError: an empty sentence, or a model that cannot be captured.
    """
    causal = causality(prepare(model), sentences_probe(sequences[:_BATCH_SENTENCES]))
    parts: dict[tuple[LayerKey, str], list[Tensor]] = {}
    for start in tqdm(range(0, len(sequences), _BATCH_SENTENCES), desc=title, leave=False):
        batch = sequences[start : start + _BATCH_SENTENCES]
        for layer, states in token_states(model, batch):
            for pooling, vectors in _pool(states, [len(sequence) for sequence in batch]).items():
                if pooling != FIRST or not causal[layer.stack]:
                    parts.setdefault((layer, pooling), []).append(vectors)
    return [SentenceVectors(*key, torch.cat(pieces).cpu().numpy()) for key, pieces in parts.items()]


def _pool(states: Tensor, lengths: Sequence[int]) -> dict[str, Tensor]:
    """Return (n_sentences, dim) float64 by pooling, from the states of all tokens, sentence after sentence."""
    ends = torch.tensor(lengths, device=states.device).cumsum(0)
    starts = ends - torch.tensor(lengths, device=states.device)
    means = torch.stack([sentence.double().mean(0) for sentence in states.split(list(lengths))])
    return {FIRST: states[starts].double(), MEAN: means, LAST: states[ends - 1].double()}


def shared_token_cosines(sequences: Sequence[Sequence[int]], ignored: Iterable[int] = ()) -> np.ndarray:
    """Return (n, n) cosines of sentences as sets of tokens, |A and B| / sqrt(|A| |B|): a baseline without a model.

    Args:
        sequences: token ids of each sentence.
        ignored: special tokens, which all sentences share.

    Returns:
        0 for a sentence of ignored tokens alone.
    """
    sets = [set(sequence) - set(ignored) for sequence in sequences]
    columns = {token: column for column, token in enumerate(sorted(set().union(*sets)))}
    present = np.zeros((len(sets), max(1, len(columns))))
    for row, tokens in enumerate(sets):
        present[row, [columns[token] for token in tokens]] = 1
    sizes = np.maximum(np.sqrt(present.sum(1)), 1)
    return (present @ present.T) / np.outer(sizes, sizes)
