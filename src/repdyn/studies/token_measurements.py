"""Compare the tokens of a sentence, and the words of a text, with the input embeddings in every state of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repdyn.kernels import Undefined, full_precision
from repdyn.kernels.vocabulary import Vocabulary, nearest_rows, token_cosines, token_ranks, unit_rows
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
from repdyn.studies.study import text_probe

CAPTURES = ("after_attention", "embeddings")
CLASSES = ("function", "content")
NEIGHBOURS = 10
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
        vectors += [
            LayerVectors(layer.stack, layer.index, state, found.to(layer.device)) for state, found in states_of(layer)
        ]
        if isinstance(layer.after_attention, str):
            stack = f"{layer.stack} " if layer.stack else ""
            reasons.append(f"{stack}layer {layer.index}: {layer.after_attention}")
    return SentenceStates(tuple(ids), tuple(vectors), states.embeddings, tuple(reasons))


def compare_sentence(
    loaded: LoadedModel, states: SentenceStates, *, k: int, with_positions: bool = False, place: int | None = None
) -> VocabularyComparison:
    """Compare the tokens of a sentence with the rows of the model's input embedding."""
    table, ids = embedding_table(loaded, states.embeddings), list(states.ids)
    positions = position_rows(loaded, table, len(ids)) if with_positions else None
    table = table * embedding_scale(loaded.model, table, ids) if with_positions else table
    chosen = slice(None) if place is None else slice(place, place + 1)
    vectors = [layer._replace(vectors=layer.vectors[chosen].to(table.device)) for layer in states.vectors]
    positions = None if positions is None else positions[chosen]
    with comparable(loaded), full_precision(table.device):
        return compare_with_vocabulary(vectors, ids[chosen], table, loaded.tokenizer, k=k, positions=positions)


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


def measure_text(loaded: LoadedModel, options: Any) -> tuple[str, dict[str, pd.DataFrame]]:
    """Compare the words of a text with the vocabulary, and test whether its tokens move together.

    Returns:
        The name of the text, and tables: classes (stack, layer, state, and the columns of :func:`class_rows`), steps (a
        row for each layer but the last: stack, layer, within, between, of :func:`common_direction`), and density (of
        :func:`density`).
    """
    probe = text_probe(loaded, options, CLASSES)
    states = layer_states(loaded, probe, options.layers, subsets=("no_sink", *CLASSES), captures=CAPTURES)
    vocabulary = Vocabulary(embedding_table(loaded, states.embeddings))
    tokens = np.unique(np.concatenate([probe.sample(name).ravel() for name in CLASSES]))
    rows, ids = states.rows_of(tokens), probe.tokens[tokens]
    members = {n: torch.from_numpy(np.searchsorted(tokens, np.sort(probe.sample(n).ravel()))) for n in CLASSES}
    moving = probe.sample("no_sink").ravel()
    sequences = torch.arange(len(probe.lengths)).repeat_interleave(probe.lengths)[moving]
    classes, steps = [], []
    with comparable(loaded):
        for layer in tqdm(states, total=len(states.layers), desc=loaded.name, leave=False):
            key = {"stack": layer.stack, "layer": layer.index}
            for state, vectors in states_of(layer):
                found = class_rows(vectors[rows].to(layer.device), ids.to(layer.device), vocabulary, members)
                classes += [{**key, "state": state, **row} for row in found]
            if not layer.is_last:
                at = states.rows_of(moving)
                within, between = common_direction(layer.states[at], states.following(layer)[at], sequences)
                steps.append({**key, "within": within, "between": between})
    crowding = density(vocabulary, ids, probe.classes["function"][torch.from_numpy(tokens)])
    return probe.name, {"classes": pd.DataFrame(classes), "steps": pd.DataFrame(steps), "density": crowding}


def class_rows(x: Tensor, ids: Tensor, vocabulary: Vocabulary, classes: Mapping[str, Tensor]) -> list[dict]:
    """Measure how near the tokens of each class stay to their own input embeddings, in one state of one layer.

    Args:
        x: (n, dim) vectors.
        ids: (n,) their tokens.

    Returns:
        For each class: class, tokens (their number), cosine (mean), rank_q25, rank (median), rank_q75, kept (share of
        rank 0).
    """
    cosines, ranks = token_cosines(x, ids, vocabulary).cpu().numpy(), token_ranks(x, ids, vocabulary).cpu().numpy()
    found = []
    for name, rows in classes.items():
        low, middle, high = np.quantile(ranks[rows.numpy()], [0.25, 0.5, 0.75])
        row = {"class": name, "tokens": len(rows), "cosine": cosines[rows.numpy()].mean()}
        row |= {"rank_q25": low, "rank": middle, "rank_q75": high, "kept": (ranks[rows.numpy()] == 0).mean()}
        found.append(row)
    return found


def density(vocabulary: Vocabulary, ids: Tensor, is_function: Tensor) -> pd.DataFrame:
    """Measure how crowded the embedding space is around the tokens of a text: mean cosine to the 10 nearest other rows.

    Args:
        ids: (n,) tokens of function words and content words, as often as they occur.
        is_function: (n,) bool, whether the word is a function word.

    Returns:
        A row for each different token: token_id, class (the more frequent one), count, norm, density in [-1, 1]. Tokens
        whose embedding is zero are left out.
    """
    tokens, place = ids.unique(return_inverse=True)
    count = torch.bincount(place)
    functions = torch.bincount(place, weights=is_function.to(place.device).double())
    nonzero = vocabulary.norms.to(tokens.device)[tokens] > 0
    tokens, count, functions = tokens[nonzero], count[nonzero], functions[nonzero]
    found, rows = nearest_rows(vocabulary.table[tokens.to(vocabulary.table.device)], vocabulary, NEIGHBOURS + 1)
    # the row itself is the nearest, or one of several that equal it: leave one of them out
    own = (rows == tokens.to(rows.device).unsqueeze(1)).double().argmax(1)
    others = found.sum(1) - found.gather(1, own.unsqueeze(1)).squeeze(1)
    return pd.DataFrame(
        {
            "token_id": tokens.tolist(),
            "class": np.where((2 * functions > count).cpu().numpy(), "function", "content"),
            "count": count.tolist(),
            "norm": vocabulary.norms[tokens.to(vocabulary.norms.device)].tolist(),
            "density": (others / NEIGHBOURS).tolist(),
        }
    )


def higher_share(values: np.ndarray, others: np.ndarray) -> float:
    """Return the probability that a draw from ``values`` exceeds one from ``others``, ties counted half; in [0, 1].

    >>> higher_share(np.array([1.0, 3.0]), np.array([2.0, 3.0]))
    0.375
    """
    return float(stats.mannwhitneyu(values, others).statistic / (len(values) * len(others)))


def common_direction(before: Tensor, after: Tensor, sequences: Tensor) -> tuple[float, float]:
    """Compute the mean cosine between the steps of two tokens: 1 if all tokens move in the same direction.

    With unit steps ``u = (after - before) / |after - before|`` and their sums U_s over the tokens of each sequence s
    (m_s of them): within a sequence ``sum_s (|U_s|^2 - m_s) / sum_s m_s (m_s - 1)``, and between sequences
    ``(|sum_s U_s|^2 - sum_s |U_s|^2) / (n^2 - sum_s m_s^2)``; each is the mean over all such pairs.

    Args:
        before, after: (n, dim) vectors of the same tokens at a layer and at the next.
        sequences: (n,) the sequence of each.

    Returns:
        Within and between, each in [-1, 1]; NaN if there is no such pair. Tokens that do not move are left out.
    """
    with full_precision(before.device):
        steps = unit_rows(after.to(before.device).double() - before.double())
    moved = ~steps.isnan().any(1)
    steps, of = steps[moved], sequences.to(steps.device)[moved]
    of = of.unique(return_inverse=True)[1]
    members = torch.bincount(of)
    sums = steps.new_zeros(len(members), steps.shape[1]).index_add_(0, of, steps)
    squares, n = sums.square().sum(1), len(steps)
    pairs_within = int((members * (members - 1)).sum())
    pairs_between = n * (n - 1) - pairs_within
    within = float(squares.sum() - n) / pairs_within if pairs_within else math.nan
    between = float(sums.sum(0).square().sum() - squares.sum()) / pairs_between if pairs_between else math.nan
    return within, between


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
        ids: (n_tokens) of the sentence.
        table: (vocabulary, dim) input embeddings.
        positions: (n_tokens, dim) the embedding of each token's position, added to every row of the table before the
            token's vectors are compared with it; None for the table as it is.
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
