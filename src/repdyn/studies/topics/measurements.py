"""Measure the topic gaps of every layer and head of a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from repdyn.capture.attention import attention_weights
from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.capture import capture
from repdyn.capture.prepared_model import prepare
from repdyn.kernels import Undefined
from repdyn.probe import Probe
from repdyn.studies.topics.gaps import (
    N_CONTROLS,
    PRODUCTS,
    attention_gaps,
    permuted_topics,
    shifted_topics,
    vector_gaps,
)

TABLE = "input embeddings"
"""Name of the vocabulary as a layer, where each word counts once."""


class TopicMeasurements(NamedTuple):
    """The topic gaps of one stack of blocks."""

    stack: str | None
    ids: Tensor
    """(n_vectors,) the tokens that have a topic."""
    length: int
    """Tokens in a sequence."""
    embeddings: pd.DataFrame
    """A row for each layer, :data:`TABLE` first, and kind of product: layer, product, gap, control, control_std, and
    reason (why there is no gap); see :func:`repdyn.studies.topics.gaps.vector_gaps`."""
    attention: pd.DataFrame
    """A row for each layer from 1 on and head, and one for the mean over heads, whose head is missing: layer, head,
    gap, control, difference, standard_error; only layer and reason for a layer without a gap."""


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
    embeddings = {layer.stack: [{"layer": TABLE, **row} for row in of_table] for layer in states.layers}
    attention: dict[str | None, list[pd.DataFrame]] = {stack: [] for stack in embeddings}
    for _ in tqdm(range(len(states.layers)), desc=title, leave=False):
        layer = states.take()
        rows = vector_gaps(layer.states[states.rows_of(tokens)], ids, labels)
        embeddings[layer.stack] += [{"layer": layer.index, **row} for row in rows]
        if layer.index:
            try:
                gaps = attention_gaps(weights.of(layer.stack, layer.index), probe.tokens, *topics)
            except Undefined as error:
                gaps = pd.DataFrame({"reason": [error.reason]})
            attention[layer.stack].append(gaps.assign(layer=layer.index))
    return [
        TopicMeasurements(
            stack,
            ids[labels[0] >= 0],
            length,
            pd.DataFrame(rows).reindex(columns=["layer", "product", "gap", "control", "control_std", "reason"]),
            pd.concat(attention[stack], ignore_index=True)
            .reindex(columns=["layer", "head", "gap", "control", "difference", "standard_error", "reason"])
            .astype({"head": "Int64"}),
        )
        for stack, rows in embeddings.items()
    ]


def _table_gaps(table: Tensor | str, ids: Tensor, topics: Tensor, seed: int) -> list[dict[str, Any]]:
    """Return the gaps of the input embeddings of words with topics; a word's topic is its most frequent one."""
    if isinstance(table, str):
        return [{"product": product, "reason": table} for product in PRODUCTS]
    words, place = ids[topics >= 0].unique(return_inverse=True)
    counts = torch.zeros(len(words), int(topics.max()) + 1, dtype=torch.long)
    counts.index_put_((place, topics[topics >= 0]), torch.tensor(1), accumulate=True)
    labels = counts.argmax(dim=1)
    return vector_gaps(table[words.to(table.device)], words, [labels, *permuted_topics(labels, N_CONTROLS, seed)])
