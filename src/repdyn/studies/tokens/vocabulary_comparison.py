"""Compare the vectors of a sentence's tokens with the input embeddings, in every state of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from repdyn.kernels.vocabulary import Vocabulary, nearest_rows, token_cosines, token_ranks

State: TypeAlias = Literal["block", "attention"]
"""After a block (layer 0: what enters the first one), or after its attention."""


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
    """A row for each state and token: stack, layer, state, position, token_id, token, cosine, rank."""
    nearest: pd.DataFrame
    """A row for each state, token and place (from 1): the first columns, place, nearest_id, nearest, cosine."""


def compare_with_vocabulary(
    layers: Sequence[LayerVectors],
    ids: Sequence[int],
    table: Tensor,
    tokenizer: PreTrainedTokenizerBase,
    *,
    k: int,
    positions: Tensor | None = None,
) -> VocabularyComparison:
    """Compute cosine and rank of every token's own input embedding, and the nearest embeddings, state by state.

    Args:
        layers: the vectors, in any order.
        ids: (n_tokens) of the sentence.
        table: (vocabulary, dim) input embeddings.
        tokenizer: names the tokens.
        k: how many nearest embeddings of each vector.
        positions: (n_tokens, dim) the embedding of each token's position, added to every row of the table before the
            token's vectors are compared with it; None for the table as it is.

    Raises:
        Undefined: a vector or a token's own embedding without a direction, or of another dimension.
        ValueError: fewer rows than ``k``.
    """
    names = token_names(tokenizer, ids)
    states = torch.stack([layer.vectors for layer in layers])  # (n_states, n_tokens, dim)
    own = torch.tensor(ids, device=states.device)
    if positions is None:
        parts = _compare(states.flatten(0, 1), own.repeat(len(layers)), Vocabulary(table), k)
        cosines, ranks, near, rows = (part.unflatten(0, (len(layers), len(ids))) for part in parts)
    else:
        of_places = [
            _compare(states[:, place], own[place].repeat(len(layers)), Vocabulary(table, vector), k)
            for place, vector in enumerate(positions)
        ]
        cosines, ranks, near, rows = (torch.stack(parts, 1) for parts in zip(*of_places, strict=True))
    tokens = list(zip(range(len(ids)), ids, names, strict=True))
    keys = pd.DataFrame(
        [(layer.stack, layer.layer, layer.state, *token) for layer in layers for token in tokens],
        columns=["stack", "layer", "state", "position", "token_id", "token"],
    )
    compared = keys.assign(cosine=cosines.flatten().cpu().numpy(), rank=ranks.flatten().cpu().numpy())
    numbers = rows.flatten().tolist()
    nearest = keys.loc[keys.index.repeat(k)].reset_index(drop=True)
    nearest = nearest.assign(
        place=np.tile(np.arange(1, k + 1), len(keys)),
        nearest_id=numbers,
        nearest=token_names(tokenizer, numbers),
        cosine=near.flatten().cpu().numpy(),
    )
    return VocabularyComparison(compared, nearest)


def token_names(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return tokens as they read: decoded, "▁" for a leading space; as the vocabulary spells them where that fails.

    An id that is no token, of a row that pads the table, is displayed as "#50300".
    """
    known = {number: _name(tokenizer, number) for number in set(ids)}
    return [known[number] for number in ids]


def _name(tokenizer: PreTrainedTokenizerBase, number: int) -> str:
    token = tokenizer.convert_ids_to_tokens(number) if number < len(tokenizer) else None
    if not isinstance(token, str):
        return f"#{number}"
    text = tokenizer.convert_tokens_to_string([token])
    space = "▁" if token[0] in "Ġ▁" or text.startswith(" ") else ""
    readable = text.strip().isprintable() and bool(text.strip()) and "\N{REPLACEMENT CHARACTER}" not in text
    return space + text.strip() if readable else token


def _compare(x: Tensor, ids: Tensor, vocabulary: Vocabulary, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (token_cosines(x, ids, vocabulary), token_ranks(x, ids, vocabulary), *nearest_rows(x, vocabulary, k))
