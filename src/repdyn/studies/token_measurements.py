"""Compare the tokens of a sentence, and the words of a text, with the input embeddings in every state of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repdyn.kernels import Undefined, full_precision
from repdyn.kernels.vocabulary import Vocabulary, nearest_rows, token_cosines, token_distances, token_ranks
from repdyn.reading import (
    CheckpointError,
    LayerPatterns,
    LayerStates,
    LoadedModel,
    causal_stacks,
    find_lookups,
    layer_states,
    ordinary_tokens,
)

CAPTURES = ("after_attention", "embeddings")
Measure: TypeAlias = Literal["cosine", "distance"]
State: TypeAlias = Literal["block", "attention"]
"""After a block (layer 0: what enters the first one), or after its attention."""


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
    """Return the token ids of a sentence, special tokens included."""
    ids: list[int] = loaded.tokenizer(sentence)["input_ids"]
    if not 2 <= len(ids) <= loaded.context:
        most = f" to {loaded.context}" if len(ids) > 1 else " or more"
        raise ValueError(f"expected a sentence of 2{most} tokens for {loaded.name}, got {len(ids)}")
    return ids


def capture_sentence(loaded: LoadedModel, sentence: str, layers: LayerPatterns = None) -> SentenceStates:
    """Run the model once on a sentence and return the states of all its tokens."""
    ids = encode_sentence(loaded, sentence)
    states = layer_states(loaded, [ids], layers, captures=CAPTURES)
    vectors, reasons = [], []
    for layer in states:
        for state, found in states_of(layer):
            vectors.append(LayerVectors(layer.stack, layer.index, state, found.to(layer.device)))
        if isinstance(layer.after_attention, str):
            stack = f"{layer.stack} " if layer.stack else ""
            reasons.append(f"{stack}layer {layer.index}: {layer.after_attention}")
    return SentenceStates(tuple(ids), tuple(vectors), states.embeddings, tuple(reasons))


def compare_sentence(
    loaded: LoadedModel,
    states: SentenceStates,
    *,
    k: int,
    with_positions: bool = False,
    by_distance: bool = False,
    place: int | None = None,
) -> VocabularyComparison:
    """Compare the tokens of a sentence with the rows of the model's input embedding."""
    table, ids = embedding_table(loaded, states.embeddings), list(states.ids)
    positions = position_rows(loaded, table, len(ids)) if with_positions else None
    table = table * embedding_scale(loaded.model, table, ids) if with_positions else table
    chosen = slice(None) if place is None else slice(place, place + 1)
    vectors = [layer._replace(vectors=layer.vectors[chosen].to(table.device)) for layer in states.vectors]
    positions = None if positions is None else positions[chosen]
    with comparable(loaded), full_precision(table.device):
        return compare_with_vocabulary(
            vectors, ids[chosen], table, loaded.tokenizer, k=k, positions=positions, by_distance=by_distance
        )


def embedding_table(loaded: LoadedModel, found: Tensor | str) -> Tensor:
    """Return the input embeddings that were captured."""
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
    """Let every token of a decoder see all others, by ``is_causal`` of the configuration."""
    sequences = [encode_sentence(loaded, sentence)]
    if causal_stacks(loaded, sequences) != {None: True}:
        raise ValueError(
            f"expected a decoder with --no-causal-mask, got {loaded.name}, whose positions see later ones already or "
            "cannot be tested; leave the option out"
        )
    config: dict = vars(loaded.model.config)
    before = {"is_causal": config["is_causal"]} if "is_causal" in config else {}
    config["is_causal"] = False
    try:
        try:
            is_causal = causal_stacks(loaded, sequences).get(None)
        except CheckpointError:  # code of a family that does not expect it
            is_causal = None
        if is_causal is not False:
            raise ValueError(
                f"expected a decoder whose causal mask transformers can take off, but {loaded.name} keeps it; leave "
                "--no-causal-mask out"
            )
        yield
    finally:
        config.pop("is_causal")
        config.update(before)


def position_rows(loaded: LoadedModel, table: Tensor, n_tokens: int) -> Tensor:
    """Return the embeddings of the first positions, (n_tokens, dim), from the table that the model looks them up in."""
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


def measure_of(table: pd.DataFrame) -> Measure:
    """Return by what the tokens of a table are compared with the vocabulary: the column that there is."""
    return "distance" if "distance" in table else "cosine"


class LayerVectors(NamedTuple):
    """The vectors of a sentence's tokens in one state of one layer."""

    stack: str | None
    layer: int
    state: State
    vectors: Tensor
    """(n_tokens, dim)"""


class VocabularyComparison(NamedTuple):
    """The tokens of a sentence against the vocabulary, state by state."""

    table: pd.DataFrame
    """A row for each state and token: stack, layer, state, position, token_id, token, cosine or distance, rank."""
    nearest: pd.DataFrame
    """A row for each state, token and place (from 1): the first columns, place, nearest_id, nearest, cosine or
    distance."""


def compare_with_vocabulary(
    layers: Sequence[LayerVectors],
    ids: Sequence[int],
    table: Tensor,
    tokenizer: PreTrainedTokenizerBase,
    *,
    k: int,
    positions: Tensor | None = None,
    by_distance: bool = False,
) -> VocabularyComparison:
    """Compute cosine (or distance) and rank of every token's own input embedding, and the nearest ones, state by state.

    ``positions``, (n_tokens, dim), are added to every row of ``table``, (vocabulary, dim), for the token of each.
    """
    states = torch.stack([layer.vectors for layer in layers])  # (n_states, n_tokens, dim)
    own = torch.tensor(ids, device=states.device)
    if positions is None:
        parts = [_compare(states, own, Vocabulary(table, by_distance=by_distance), k)]
    else:
        places = zip(states.split(1, 1), own.split(1), positions, strict=True)
        parts = [_compare(x, of, Vocabulary(table, vector, by_distance=by_distance), k) for x, of, vector in places]
    values, ranks, near, rows = (torch.cat(part, 1).cpu().numpy() for part in zip(*parts, strict=True))
    tokens = list(zip(range(len(ids)), ids, token_names(tokenizer, ids), strict=True))
    columns = ["stack", "layer", "state", "position", "token_id", "token"]
    keys = pd.DataFrame([(*layer[:3], *token) for layer in layers for token in tokens], columns=columns)
    measure, numbers = "distance" if by_distance else "cosine", rows.flatten().tolist()
    compared = keys.assign(**{measure: values.flatten(), "rank": ranks.flatten()})
    nearest = keys.loc[keys.index.repeat(k)].reset_index(drop=True)
    nearest = nearest.assign(place=np.tile(np.arange(1, k + 1), len(keys)), nearest_id=numbers)
    nearest = nearest.assign(nearest=token_names(tokenizer, numbers), **{measure: near.flatten()})
    return VocabularyComparison(compared, nearest)


def _compare(states: Tensor, ids: Tensor, vocabulary: Vocabulary, k: int) -> list[Tensor]:
    """Return value and rank of each token's own row, and of the nearest rows, each (n_states, n_tokens, ...)."""
    x, own = states.flatten(0, 1), ids.repeat(len(states))
    found = to_own(x, own, vocabulary), token_ranks(x, own, vocabulary), *nearest_rows(x, vocabulary, k)
    return [each.unflatten(0, states.shape[:2]) for each in found]


def token_names(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return tokens as they read: decoded, "▁" for a leading space; as the vocabulary spells them where that fails.

    An id that is no token, of a row that pads the table, is displayed as "#50300".
    """

    def name(number: int) -> str:
        token = tokenizer.convert_ids_to_tokens(number) if number < len(tokenizer) else None
        if not isinstance(token, str):
            return f"#{number}"
        text = tokenizer.convert_tokens_to_string([token])
        space, word = "▁" if token[0] in "Ġ▁" or text.startswith(" ") else "", text.strip()
        readable = word and word.isprintable() and "\N{REPLACEMENT CHARACTER}" not in word
        return space + word if readable else token

    known = {number: name(number) for number in set(ids)}
    return [known[number] for number in ids]


def to_own(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the cosine of each vector to its token's own row, or the distance in a vocabulary by distance, (n,)."""
    return (token_distances if vocabulary.by_distance else token_cosines)(x, ids, vocabulary)
