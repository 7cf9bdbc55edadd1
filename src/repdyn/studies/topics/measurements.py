"""Measure the topic gaps of every layer and head of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from repdyn.capture.attention import attention_weights
from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.capture import capture
from repdyn.capture.prepared_model import prepare
from repdyn.kernels import Undefined, topic_gap, topic_gap_dot
from repdyn.probe import Probe
from repdyn.studies.topics.gaps import (
    N_CONTROLS,
    AttentionGap,
    VectorGap,
    attention_gap,
    permuted_topics,
    shifted_topics,
)

PRODUCTS = {"cosine": topic_gap.or_raise, "dot": topic_gap_dot.or_raise}
TABLE = "input embeddings"
"""Name of the vocabulary as a layer, where each word counts once."""


@dataclass(frozen=True, eq=False)
class TopicMeasurements:
    """The topic gaps of one stack of blocks."""

    stack: str | None
    ids: Tensor
    """(n_vectors,) the tokens that have a topic."""
    length: int
    """Tokens in a sequence."""
    embeddings: dict[tuple[str | int, str], VectorGap | str]
    """By layer and kind of product; or why there is none."""
    attention: dict[int, AttentionGap | str] = field(default_factory=dict)
    """By layer, from 1 on; or why there is none."""

    @property
    def attention_gaps(self) -> dict[int, AttentionGap]:
        """The layers that have a gap of attention."""
        return {layer: gap for layer, gap in self.attention.items() if isinstance(gap, AttentionGap)}

    def embeddings_table(self) -> pd.DataFrame:
        """Return a row for each layer and kind of product."""
        rows = [
            (layer, product, gap.value, gap.control, gap.control_std)
            for (layer, product), gap in self.embeddings.items()
            if isinstance(gap, VectorGap)
        ]
        return pd.DataFrame(rows, columns=["layer", "product", "gap", "control", "control_std"])

    def attention_table(self) -> pd.DataFrame:
        """Return a row for each layer and head, and one for the mean over heads, whose head is empty."""
        rows = [
            (layer, head, *values)
            for layer, gap in self.attention_gaps.items()
            for heads, of_heads in ((range(gap.values.shape[1]), gap), ((None,), gap.mean_over_heads))
            for head, *values in zip(
                heads, of_heads.value, of_heads.control, of_heads.difference, of_heads.error, strict=True
            )
        ]
        columns = ["layer", "head", "gap", "control", "difference", "standard_error"]
        return pd.DataFrame(rows, columns=columns).astype({"head": "Int64"})


def measure_topics(
    model: nn.Module, probe: Probe, layers: LayerPatterns = None, *, title: str = "", seed: int = 0
) -> list[TopicMeasurements]:
    """Measure the gaps of every layer and head, each with its control.

    Args:
        model: a Hugging Face model.
        probe: with topics, sequences of one length, each from a document of its own.
        layers: as for :func:`repdyn.capture.capture.capture`.
        title: of the progress bar.
        seed: of the controls of the input embeddings.

    Returns:
        One for each stack of blocks.

    Raises:
        ValueError: a probe of one sequence, or without topics; otherwise as ``capture``.
    """
    if probe.topics is None or len(probe.lengths.unique()) > 1:
        raise ValueError("expected a probe with topics and sequences of one length, as TextTopics.probe makes one")
    length = int(probe.lengths[0])
    topics = [probe.topics, *(labels.flatten() for labels in shifted_topics(probe.topics.view(-1, length)))]
    whole = replace(probe, batch_vectors=int((~probe.is_sink).sum()), n_batches=1)
    states = capture(prepare(model, layers), whole, ["no_sink"], captures={"embeddings"})
    weights = attention_weights(prepare(model, layers), probe, n_tokens=len(probe.tokens))
    tokens = whole.sample("no_sink")[0]
    ids, labels = probe.tokens[tokens], [one[tokens] for one in topics]
    of_table = _table_gaps(states.embeddings, ids, labels[0], seed)
    with_topic = ids[labels[0] >= 0]
    measured = {
        layer.stack: TopicMeasurements(layer.stack, with_topic, length, {**of_table}) for layer in states.layers
    }
    for _ in tqdm(range(len(states.layers)), desc=title, leave=False):
        layer = states.take()
        one = measured[layer.stack]
        one.embeddings.update(_vector_gaps(layer.index, layer.states[states.rows_of(tokens)], ids, labels))
        if layer.index:
            try:
                gap = attention_gap(weights.of(layer.stack, layer.index), probe.tokens, *topics)
            except Undefined as error:
                gap = error.reason
            one.attention[layer.index] = gap
    return list(measured.values())


def _table_gaps(
    table: Tensor | str, ids: Tensor, topics: Tensor, seed: int
) -> dict[tuple[str | int, str], VectorGap | str]:
    """Return the gaps of the input embeddings of words with topics; a word's topic is its most frequent one."""
    if isinstance(table, str):
        return {(TABLE, product): table for product in PRODUCTS}
    words, place = ids[topics >= 0].unique(return_inverse=True)
    counts = torch.zeros(len(words), int(topics.max()) + 1, dtype=torch.long)
    counts.index_put_((place, topics[topics >= 0]), torch.tensor(1), accumulate=True)
    labels = counts.argmax(dim=1)
    return _vector_gaps(
        TABLE, table[words.to(table.device)], words, [labels, *permuted_topics(labels, N_CONTROLS, seed)]
    )


def _vector_gaps(
    layer: str | int, x: Tensor, ids: Tensor, labels: Sequence[Tensor]
) -> dict[tuple[str | int, str], VectorGap | str]:
    """Return the gaps of vectors under their own topics, which come first, and under those of others."""
    gaps: dict[tuple[str | int, str], VectorGap | str] = {}
    for product, kernel in PRODUCTS.items():
        try:
            gap, *controls = (kernel(x, ids, topics).item() for topics in labels)
            gaps[layer, product] = VectorGap(gap, np.array(controls))
        except Undefined as error:
            gaps[layer, product] = error.reason
    return gaps
