"""From a model and a probe with topics to the gaps of every layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from repdyn.capture.attention import AttentionWeights, attention_weights
from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.capture import capture
from repdyn.capture.states import LayerStates
from repdyn.kernels import Cloud, Undefined, topic_gap_dot_of, topic_gap_of
from repdyn.probe import Probe
from repdyn.studies.topics.gaps import SHIFTS, AttentionGap, Gap, attention_gap, permuted, topics_of_others

PRODUCTS = {"cosine": topic_gap_of, "dot": topic_gap_dot_of}
TABLE = "input embeddings"
"""The layer of the vocabulary itself, where each word counts once, as in the source."""


@dataclass(frozen=True, eq=False)
class TopicMeasurements:
    """The gaps of one stack of blocks."""

    stack: str | None
    ids: Tensor
    """(n_vectors,) the tokens that have a topic."""
    length: int
    """Tokens in a sequence."""
    embeddings: dict[tuple[str | int, str], Gap | str]
    """By layer and kind of product; or why there is none."""
    attention: dict[int, AttentionGap | str] = field(default_factory=dict)
    """By layer, from 1 on; or why there is none."""

    def embeddings_table(self) -> pd.DataFrame:
        """One line for each layer and kind of product."""
        rows = [
            (layer, product, gap.value, gap.control, gap.control_std)
            for (layer, product), gap in self.embeddings.items()
            if isinstance(gap, Gap)
        ]
        return pd.DataFrame(rows, columns=["layer", "product", "gap", "control", "control_std"])

    def attention_table(self) -> pd.DataFrame:
        """One line for each layer and head, and one for the mean over heads, whose head is empty."""
        rows = [
            (layer, head, *lines)
            for layer, gap in self.attention.items()
            if isinstance(gap, AttentionGap)
            for heads, of_heads in ((range(gap.values.shape[1]), gap), ((None,), gap.mean_over_heads))
            for head, *lines in zip(
                heads, of_heads.value, of_heads.control, of_heads.difference, of_heads.error, strict=True
            )
        ]
        columns = ["layer", "head", "gap", "control", "difference", "standard_error"]
        return pd.DataFrame(rows, columns=columns).astype({"head": "Int64"})


def measure_topics(
    model: nn.Module, probe: Probe, layers: LayerPatterns = None, *, title: str = "", seed: int = 0
) -> list[TopicMeasurements]:
    """The gaps of every layer and head, each with its control.

    Args:
        model: a Hugging Face model.
        probe: with topics, sequences of one length, each from a document of its own.
        layers: as for :func:`repdyn.capture.capture.capture`.
        title: of the progress.
        seed: of the controls of the input embeddings.

    Returns:
        One for each stack of blocks.

    Raises:
        ValueError: a probe of one sequence, or without topics; otherwise as ``capture``.
    """
    if probe.topics is None or len(probe.lengths.unique()) > 1:
        raise ValueError("expected a probe with topics and sequences of one length, as TextTopics.probe makes one")
    length = int(probe.lengths[0])
    topics = [probe.topics, *(one.flatten() for one in topics_of_others(probe.topics.view(-1, length)))]
    whole = replace(probe, batch_vectors=int((~probe.is_sink).sum()), n_batches=1)
    states = capture(model, whole, ["no_sink"], layers, captures={"embeddings"})
    weights = attention_weights(model, probe, layers, n_tokens=len(probe.tokens))
    tokens = whole.sample("no_sink")[0]
    ids, labels = probe.tokens[tokens], [one[tokens] for one in topics]
    of_table = _of_table(states.embeddings, ids, labels[0], seed)
    measured = {
        layer.stack: TopicMeasurements(layer.stack, ids[labels[0] >= 0], length, {**of_table})
        for layer in states.layers
    }
    for _ in tqdm(range(len(states.layers)), desc=title, leave=False):
        layer = states.take()
        one = measured[layer.stack]
        one.embeddings.update(_of_vectors(layer.index, layer.states[states.rows_of(tokens)], ids, labels))
        if layer.index:
            one.attention[layer.index] = _of_attention(weights, layer, probe.tokens, topics)
    return list(measured.values())


def _of_table(table: Tensor | str, ids: Tensor, topics: Tensor, seed: int) -> dict[tuple[str | int, str], Gap | str]:
    """The gaps of the input embeddings of the words that have topics; a word's topic is the one it has most often."""
    if isinstance(table, str):
        return {(TABLE, product): table for product in PRODUCTS}
    words, place = ids[topics >= 0].unique(return_inverse=True)
    often = torch.zeros(len(words), int(topics.max()) + 1, dtype=torch.long)
    often.index_put_((place, topics[topics >= 0]), torch.tensor(1), accumulate=True)
    labels = often.argmax(dim=1)
    return _of_vectors(TABLE, table[words.to(table.device)], words, [labels, *permuted(labels, SHIFTS, seed)])


def _of_vectors(
    layer: str | int, x: Tensor, ids: Tensor, labels: Sequence[Tensor]
) -> dict[tuple[str | int, str], Gap | str]:
    """The gaps of vectors under their own topics, which come first, and under those of others."""
    gaps: dict[tuple[str | int, str], Gap | str] = {}
    for product, kernel in PRODUCTS.items():
        try:
            gap, *controls = (kernel(Cloud(x), ids, topics).item() for topics in labels)
            gaps[layer, product] = Gap(gap, np.array(controls))
        except Undefined as error:
            gaps[layer, product] = error.reason
    return gaps


def _of_attention(
    weights: AttentionWeights, layer: LayerStates, ids: Tensor, topics: Sequence[Tensor]
) -> AttentionGap | str:
    try:
        return attention_gap(weights.of(layer.stack, layer.index), ids, *topics)
    except Undefined as error:
        return error.reason
