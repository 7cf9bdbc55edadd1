"""Measure the topic gaps of every layer and head of a model, with their control: the topics of another document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from repdyn.capture.attention import attention_weights
from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.capture import capture
from repdyn.capture.prepared_model import prepare
from repdyn.kernels import Undefined, attention_topic_gap, topic_gap, topic_gap_dot
from repdyn.probe import Probe

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
    reason (why there is no gap); see :func:`repdyn.studies.topics.measurements.vector_gaps`."""
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
