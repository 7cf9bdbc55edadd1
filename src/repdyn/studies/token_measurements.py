"""Compare the tokens of a sentence, and the words of a text, with the input embeddings in every state of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repdyn.kernels import Undefined, full_precision
from repdyn.kernels.vocabulary import Vocabulary, nearest_rows, token_cosines, token_distances, token_ranks, unit_rows
from repdyn.reading import (
    CheckpointError,
    LayerPatterns,
    LayerStates,
    LoadedModel,
    attention_weights,
    causal_stacks,
    find_lookups,
    layer_states,
    ordinary_tokens,
)
from repdyn.studies.study import text_probe
from repdyn.studies.token_changes import ANY, class_tables, received_attention

CAPTURES = ("after_attention", "embeddings")
CLASSES = ("function", "content")
NEIGHBOURS = 10
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
        vectors += [
            LayerVectors(layer.stack, layer.index, state, found.to(layer.device)) for state, found in states_of(layer)
        ]
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


def measure_text(loaded: LoadedModel, options: Any) -> tuple[str, dict[str, pd.DataFrame]]:
    """Compare the words of a text with the vocabulary, and measure how they move and what attention they receive.

    Returns:
        The name of the text, and tables, by stack and state: classes, changes, jumps and points of
        :func:`class_tables`, attention of :func:`received_attention`, steps (a row for each layer but the last: within
        and between, of :func:`common_direction`), and density (of :func:`density`).
    """
    probe = text_probe(loaded, options, CLASSES)
    states = layer_states(loaded, probe, options.layers, subsets=("no_sink", *CLASSES), captures=CAPTURES)
    vocabulary = Vocabulary(embedding_table(loaded, states.embeddings), by_distance=options.distance)
    measure: Measure = "distance" if options.distance else "cosine"
    tokens = np.unique(np.concatenate([probe.sample(name).ravel() for name in CLASSES]))
    rows, ids = states.rows_of(tokens), probe.tokens[tokens]
    members = {name: np.searchsorted(tokens, np.sort(probe.sample(name).ravel())) for name in CLASSES}
    moving = probe.sample("no_sink").ravel()
    sequence_of = torch.arange(len(probe.lengths)).repeat_interleave(probe.lengths)
    weights = attention_weights(loaded, probe, options.layers, n_tokens=len(probe.tokens))
    in_class = {name: probe.classes[name].numpy() for name in CLASSES}
    found: dict[tuple[str | None, State], dict[int, tuple[np.ndarray, np.ndarray]]] = {}
    steps, attention = [], []
    with comparable(loaded):
        for layer in tqdm(states, total=len(states.layers), desc=loaded.name, leave=False):
            key = {"stack": layer.stack, "layer": layer.index}
            for state, vectors in states_of(layer):
                given = vectors[rows].to(layer.device), ids.to(layer.device), vocabulary
                values = to_own(*given).cpu().numpy(), token_ranks(*given).cpu().numpy()
                found.setdefault((layer.stack, state), {})[layer.index] = values
            if layer.index:
                with suppress(Undefined):
                    received = received_attention(weights.of(layer.stack, layer.index), in_class)
                    attention.append(received.assign(**key))
            if not layer.is_last:
                at = states.rows_of(moving)
                moved = layer.states[at], states.following(layer)[at], sequence_of[moving]
                steps.append({**key, **dict(zip(("within", "between"), common_direction(*moved), strict=True))})
    frames: dict[str, list[pd.DataFrame]] = {kind: [] for kind in ("classes", "changes", "jumps", "points")}
    for (stack, state), of_layers in found.items():
        # what enters the first block comes before its attention, too
        layers = {0: found[stack, "block"][0], **of_layers}
        parts = class_tables(layers, members, sequence_of[torch.from_numpy(tokens)].numpy(), measure)
        for kind, table in zip(frames, parts, strict=True):
            frames[kind].append(table[table["layer"].isin([*of_layers, ANY])].assign(stack=stack, state=state))
    tables = {kind: pd.concat(parts, ignore_index=True) for kind, parts in frames.items()}
    tables["steps"] = pd.DataFrame(steps)
    tables["attention"] = pd.concat(attention, ignore_index=True) if attention else pd.DataFrame()
    is_function = probe.classes["function"][torch.from_numpy(tokens)]
    tables["density"] = density(Vocabulary(vocabulary.table), ids, is_function)
    return probe.name, tables


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
        vocabulary = Vocabulary(table, by_distance=by_distance)
        parts = _compare(states.flatten(0, 1), own.repeat(len(layers)), vocabulary, k)
        values, ranks, near, rows = (part.unflatten(0, (len(layers), len(ids))) for part in parts)
    else:
        of_places = [
            _compare(
                states[:, place],
                own[place].repeat(len(layers)),
                Vocabulary(table, vector, by_distance=by_distance),
                k,
            )
            for place, vector in enumerate(positions)
        ]
        values, ranks, near, rows = (torch.stack(parts, 1) for parts in zip(*of_places, strict=True))
    tokens = list(zip(range(len(ids)), ids, names, strict=True))
    keys = pd.DataFrame(
        [(layer.stack, layer.layer, layer.state, *token) for layer in layers for token in tokens],
        columns=["stack", "layer", "state", "position", "token_id", "token"],
    )
    measure = "distance" if by_distance else "cosine"
    compared = keys.assign(**{measure: values.flatten().cpu().numpy(), "rank": ranks.flatten().cpu().numpy()})
    numbers = rows.flatten().tolist()
    nearest = keys.loc[keys.index.repeat(k)].reset_index(drop=True)
    nearest = nearest.assign(
        place=np.tile(np.arange(1, k + 1), len(keys)),
        nearest_id=numbers,
        nearest=token_names(tokenizer, numbers),
        **{measure: near.flatten().cpu().numpy()},
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
    return (to_own(x, ids, vocabulary), token_ranks(x, ids, vocabulary), *nearest_rows(x, vocabulary, k))


def to_own(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the cosine of each vector to its token's own row, or the distance in a vocabulary by distance, (n,)."""
    return (token_distances if vocabulary.by_distance else token_cosines)(x, ids, vocabulary)
