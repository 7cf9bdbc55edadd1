"""Run a model on a sentence: the states of its tokens against the vocabulary, and its attention weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from repdyn.capture.attention import LENGTH, AttentionWeights, attention_weights
from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.capture import capture, causality
from repdyn.capture.prepared_model import prepare
from repdyn.capture.states import LayerStates
from repdyn.checkpoints.errors import model_errors
from repdyn.kernels import Undefined, full_precision
from repdyn.probe import Probe
from repdyn.studies.lookups import find_lookups, ordinary_tokens
from repdyn.studies.models import LoadedModel
from repdyn.studies.tokens.vocabulary_comparison import (
    LayerVectors,
    State,
    VocabularyComparison,
    compare_with_vocabulary,
)

CAPTURES = ("after_attention", "embeddings")
_SUBSET = "sentence"


class SentenceStates(NamedTuple):
    """The tokens of a sentence in every state of a model."""

    ids: tuple[int, ...]
    vectors: tuple[LayerVectors, ...]
    """Layer by layer, after the attention (if the layer has such a state) and after the block."""
    embeddings: Tensor | str
    """The table of input embeddings, or why there is none."""
    reasons: tuple[str, ...]
    """Why some layers have no state after their attention."""


def encode_sentence(loaded: LoadedModel, sentence: str) -> list[int]:
    """Return the token ids of a sentence, special tokens included.

    Raises:
        ValueError: fewer than two tokens, or more than the model takes.
    """
    ids: list[int] = loaded.tokenizer(sentence)["input_ids"]
    if not 2 <= len(ids) <= loaded.context:
        most = f" to {loaded.context}" if len(ids) > 1 else " or more"
        raise ValueError(f"expected a sentence of 2{most} tokens for {loaded.name}, got {len(ids)}")
    return ids


def sentence_probe(ids: Sequence[int]) -> Probe:
    """Return a probe of one sentence, all of whose tokens, from 0 on, are in the class "sentence"."""
    # with copies, the default subsets of a probe are large enough for a sentence of any length
    n_sampled = 2 * len(ids)
    probe = Probe.from_tokens([ids] * 4, max_vectors=n_sampled, batch_vectors=n_sampled)
    return probe.with_classes({_SUBSET: torch.arange(len(probe.tokens)) < n_sampled})


def capture_sentence(loaded: LoadedModel, sentence: str, layers: LayerPatterns = None) -> SentenceStates:
    """Run the model once on a sentence and return the states of all its tokens.

    Raises:
        ValueError: a sentence of fewer than two tokens, or of more than the model takes.
        CheckpointError: the model cannot be run.
    """
    ids = encode_sentence(loaded, sentence)
    with model_errors(f"{loaded.name} cannot be measured"):
        states = capture(prepare(loaded.model, layers), sentence_probe(ids), (_SUBSET,), captures=CAPTURES)
    rows = states.rows_of(np.arange(len(ids)))
    vectors, reasons = [], []
    while states.layers:
        layer = states.take()
        vectors += [
            LayerVectors(layer.stack, layer.index, state, found[rows].to(layer.device))
            for state, found in states_of(layer)
        ]
        if isinstance(layer.after_attention, str):
            stack = f"{layer.stack} " if layer.stack else ""
            reasons.append(f"{stack}layer {layer.index}: {layer.after_attention}")
    return SentenceStates(tuple(ids), tuple(vectors), states.embeddings, tuple(reasons))


def compare_sentence(
    loaded: LoadedModel, states: SentenceStates, *, k: int, with_positions: bool = False, place: int | None = None
) -> VocabularyComparison:
    """Compare the tokens of a sentence with the rows of the model's input embedding.

    Args:
        loaded: the model.
        states: of the sentence.
        k: how many nearest rows of each vector.
        with_positions: add the embedding of each token's position to every row.
        place: of a single token; None for all of them. A token's numbers do not depend on it.

    Raises:
        ValueError: a state that cannot be compared with the input embeddings, or positions are to be added and there is
            no table of them.
    """
    table, ids = embedding_table(loaded, states.embeddings), list(states.ids)
    positions = position_rows(loaded, table, len(ids)) if with_positions else None
    table = table * embedding_scale(loaded.model, table, ids) if with_positions else table
    chosen = slice(None) if place is None else slice(place, place + 1)
    vectors = [layer._replace(vectors=layer.vectors[chosen].to(table.device)) for layer in states.vectors]
    positions = None if positions is None else positions[chosen]
    with comparable(loaded), full_precision(table.device):
        return compare_with_vocabulary(vectors, ids[chosen], table, loaded.tokenizer, k=k, positions=positions)


def embedding_table(loaded: LoadedModel, found: Tensor | str) -> Tensor:
    """Return the input embeddings that were captured.

    Raises:
        ValueError: the reason why there are none.
    """
    if isinstance(found, str):
        raise ValueError(f"expected a model with a table of input embeddings, got {loaded.name}: {found}")
    return found


def states_of(layer: LayerStates) -> list[tuple[State, Tensor]]:
    """Return the states that a layer has, by name."""
    after = layer.after_attention
    return [*([("attention", after)] if isinstance(after, Tensor) else []), ("block", layer.states)]


@contextmanager
def comparable(loaded: LoadedModel) -> Iterator[None]:
    """Raise ValueError in place of Undefined."""
    try:
        yield
    except Undefined as undefined:
        raise ValueError(
            f"expected vectors that can be compared with the input embeddings of {loaded.name}, but {undefined.reason}"
        ) from undefined


@contextmanager
def without_causal_mask(loaded: LoadedModel, sentence: str) -> Iterator[None]:
    """Let every token of a decoder see all others, by ``is_causal`` of the configuration, which transformers respects.

    Args:
        loaded: a decoder, restored at the end.
        sentence: to verify that the mask is gone.

    Raises:
        ValueError: the model is no decoder, has several stacks, or keeps its mask.
    """
    model, probe = loaded.model, sentence_probe(encode_sentence(loaded, sentence))
    if causality(prepare(model), probe) != {None: True}:
        raise ValueError(
            f"expected a decoder with --no-causal-mask, got {loaded.name}, whose positions see later ones already or "
            "cannot be tested; leave the option out"
        )
    config: dict = vars(model.config)
    before = {"is_causal": config["is_causal"]} if "is_causal" in config else {}
    config["is_causal"] = False
    try:
        if _is_causal(model, probe) is not False:
            raise ValueError(
                f"expected a decoder whose causal mask transformers can take off, but {loaded.name} keeps it; leave "
                "--no-causal-mask out"
            )
        yield
    finally:
        config.pop("is_causal")
        config.update(before)


def _is_causal(model: PreTrainedModel, probe: Probe) -> bool | None:
    try:
        return causality(prepare(model), probe).get(None)
    except Exception:  # code of a family that does not expect it
        return None


def position_rows(loaded: LoadedModel, table: Tensor, n_tokens: int) -> Tensor:
    """Return the embeddings of the first positions, (n_tokens, dim), from the table that the model looks them up in.

    Raises:
        ValueError: no such table or several, one of another dimension, or one that is too short.
    """
    lookups = find_lookups(loaded.model, ordinary_tokens(range(len(table)), loaded.tokenizer))
    found = [lookup for lookup in lookups if lookup.kind == "position"]
    if len(found) != 1 or found[0].weight.shape[1] != table.shape[1]:
        tables = ", ".join(f"{lookup.parameter} {tuple(lookup.weight.shape)}" for lookup in found) or "none"
        raise ValueError(
            f"expected one table of positions with {table.shape[1]} dimensions for --positions, got {tables} in "
            f"{loaded.name}; leave the option out"
        )
    first = found[0].first_row
    rows = found[0].weight[first : first + n_tokens]
    if len(rows) < n_tokens:
        raise ValueError(f"expected at most {len(rows)} tokens, the positions of {loaded.name}, got {n_tokens}")
    return rows.to(table.device)


def embedding_scale(model: PreTrainedModel, table: Tensor, ids: Sequence[int]) -> float:
    """Return the factor that the model's embedding applies to its rows, as some families do; 1 for most."""
    with torch.no_grad():
        embedded = model.get_input_embeddings()(torch.tensor([ids], device=table.device))[0].double()
    rows = table[torch.tensor(ids, device=table.device)].double()
    scale = float((embedded * rows).sum() / rows.square().sum())
    return 1.0 if abs(scale - 1) < 1e-6 else scale


class SentenceAttention(NamedTuple):
    """The attention weights of a sentence in every layer."""

    ids: tuple[int, ...]
    """Token ids from the first one on, at most :data:`repdyn.capture.attention.LENGTH`."""
    stacks: tuple[str | None, ...]
    """Names of the model's stacks of blocks; None alone in a model that has one."""
    weights: AttentionWeights

    def layer(self, index: int) -> Iterator[tuple[str | None, Tensor | str]]:
        """Yield each stack with its weights (heads, n, n), from each token to each, or the reason why it has none.

        Args:
            index: of the layer; layer l is the l-th block that runs.
        """
        for stack in self.stacks:
            try:
                [(weights, _)] = self.weights.of(stack, index)
                yield stack, weights
            except Undefined as undefined:
                yield stack, undefined.reason


def sentence_attention(loaded: LoadedModel, ids: Sequence[int], layers: LayerPatterns = None) -> SentenceAttention:
    """Run the model on a sentence and keep the attention weights of every layer and head.

    Args:
        loaded: the model.
        ids: of the sentence; the model reads the first :data:`repdyn.capture.attention.LENGTH` of them.
        layers: as for :func:`repdyn.capture.prepared_model.prepare`.

    Raises:
        CheckpointError: the model cannot be run.
    """
    read = tuple(ids[:LENGTH])
    with model_errors(f"{loaded.name} cannot be measured"):
        model = prepare(loaded.model, layers)
        weights = attention_weights(model, sentence_probe(read), n_tokens=len(read))
    return SentenceAttention(read, tuple(dict.fromkeys(block.stack for block in model.blocks)), weights)
