"""Compare the tokens of a sentence, and the words of a text, with the input embeddings in every
state of a model.

Of words also how they move from layer to layer, and which of them attention goes to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from repdyn import activations
from repdyn.activations import CheckpointError, LayerStates, LoadedModel
from repdyn.kernels import UndefinedError, Vocabulary, full_precision, topic_mean
from repdyn.kernels.vocabulary import nearest_rows, token_cosines, token_distances, token_ranks
from repdyn.lab.studies.bootstrap import Estimate, SequenceSums, bootstrap
from repdyn.probe import Probe

CLASSES = ("function", "content")
GAP = "function minus content"
"""The difference of the two classes, as a class."""
ANY = "any"
"""At least one layer, or all of them together, as a layer."""
NEARER = {"nearer": 1e-12, "nearer_by_0.01": 0.01}
"""How much a cosine has to rise, or a distance to fall: not by rounding."""
POINTS = 300  # tokens of each class that are returned one by one
NEIGHBOURS = 10
_RESAMPLES = 1000
CAPTURES = ("after_attention", "embeddings")
Measure: TypeAlias = Literal["cosine", "distance"]
State: TypeAlias = Literal["block", "attention"]
"""After a block (layer 0: what enters the first one), or after its attention."""
STATES: dict[State, str] = {
    "block": "after the block (0: input of the first)",
    "attention": "after the attention",
}
Quantity: TypeAlias = Measure | Literal["rank"]
QUANTITIES: dict[Quantity, str] = {
    "cosine": "cosine to the token's own embedding",
    "distance": "distance to the token's own embedding",
    "rank": "closer rows of the vocabulary (rank)",
}
"""Titles in figures."""


class SentenceStates(NamedTuple):
    """The tokens of a sentence in every state of a model."""

    ids: list[int]
    vectors: dict[tuple[int, State], Tensor]
    """(n_tokens, dim) by layer and state: layer by layer, after the attention (if it has that) and
    after the block.
    """
    embeddings: Tensor | str
    """The table of input embeddings, or why there is none."""
    reasons: list[str]
    """Why some layers have no state after their attention."""


def encode_sentence(loaded: LoadedModel, sentence: str) -> list[int]:
    """Return the token ids of a sentence, special tokens included."""
    ids: list[int] = loaded.tokenizer(sentence)["input_ids"]
    if not 2 <= len(ids) <= loaded.context:
        most = f" to {loaded.context}" if len(ids) > 1 else " or more"
        raise ValueError(f"expected a sentence of 2{most} tokens for {loaded.name}, got {len(ids)}")
    return ids


def capture_sentence(loaded: LoadedModel, sentence: str) -> SentenceStates:
    """Run the model once on a sentence and return the states of all its tokens."""
    ids = encode_sentence(loaded, sentence)
    states = activations.layer_states(loaded, [ids], captures=CAPTURES)
    captured = SentenceStates(ids=ids, vectors={}, embeddings=states.embeddings, reasons=[])
    for layer in states:
        captured.vectors.update(
            {(layer.index, state): vectors for state, vectors in states_of(layer)}
        )
        if isinstance(layer.after_attention, str):
            captured.reasons.append(f"layer {layer.index}: {layer.after_attention}")
    return captured


def compare_sentence(
    loaded: LoadedModel,
    states: SentenceStates,
    *,
    k: int,
    with_positions: bool = False,
    by_distance: bool = False,
    position: int | None = None,
) -> VocabularyComparison:
    """Compare the tokens of a sentence with the rows of the model's input embedding."""
    positions, at = None, slice(None) if position is None else slice(position, position + 1)
    some = states._replace(
        ids=states.ids[at], vectors={key: each[at] for key, each in states.vectors.items()}
    )
    with comparable(loaded, states.embeddings) as table, full_precision(table.device):
        if with_positions:
            table, positions = _with_positions(loaded, table, states.ids)
            positions = positions[at]
        return compare_with_vocabulary(
            some, table, loaded.tokenizer, k=k, positions=positions, by_distance=by_distance
        )


def states_of(layer: LayerStates) -> list[tuple[State, Tensor]]:
    """Return the states that a layer has, by name."""
    after = layer.after_attention
    return [*([("attention", after)] if isinstance(after, Tensor) else []), ("block", layer.states)]


@contextmanager
def comparable(loaded: LoadedModel, embeddings: Tensor | str) -> Iterator[Tensor]:
    """Yield the captured input embeddings; raise ValueError in place of UndefinedError."""
    if isinstance(embeddings, str):
        raise ValueError(
            f"expected a model with a table of input embeddings, got {loaded.name}: {embeddings}"
        )
    try:
        yield embeddings
    except UndefinedError as undefined:
        raise ValueError(
            f"expected vectors that can be compared with the input embeddings of {loaded.name}, "
            f"but {undefined.reason}"
        ) from undefined


@contextmanager
def without_causal_mask(loaded: LoadedModel, sentence: str) -> Iterator[None]:
    """Let every token of a decoder see all others, by ``is_causal`` of the configuration."""
    sequences = [encode_sentence(loaded, sentence)]
    # one stack, and shown by running it that no position sees a later one
    if activations.causal_stacks(loaded, sequences) != {None: True}:
        raise ValueError(
            f"expected a decoder with no_causal_mask=, got {loaded.name}, whose positions see "
            "later ones already or cannot be tested; leave the option out"
        )
    # the attribute itself, so that it can be taken away again where the configuration had none
    config: dict = vars(loaded.model.config)
    before = {"is_causal": config["is_causal"]} if "is_causal" in config else {}
    config["is_causal"] = False
    is_causal = None
    try:
        with suppress(CheckpointError):  # code of a family that does not expect it
            # not every family heeds the option: only the model itself shows whether the mask is off
            is_causal = activations.causal_stacks(loaded, sequences).get(None)
        if is_causal is not False:
            raise ValueError(
                "expected a decoder whose causal mask transformers can take off, but "
                f"{loaded.name} keeps it; leave no_causal_mask= out"
            )
        yield
    finally:
        config.pop("is_causal")
        config.update(before)


def _with_positions(
    loaded: LoadedModel, table: Tensor, ids: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the table with the factor that the embeddings of some families apply to its rows, and
    the rows of the first positions, (n_tokens, dim), from the table that the model looks them up
    in."""
    lookups = activations.find_lookups(
        loaded.model, activations.ordinary_tokens(range(len(table)), loaded.tokenizer)
    )
    position_lookups = [lookup for lookup in lookups if lookup.kind == "position"]
    if len(position_lookups) != 1 or position_lookups[0].weight.shape[1] != table.shape[1]:
        tables = (
            ", ".join(
                f"{lookup.parameter} {tuple(lookup.weight.shape)}" for lookup in position_lookups
            )
            or "none"
        )
        raise ValueError(
            f"expected one table of positions with {table.shape[1]} dimensions, got {tables} in "
            f"{loaded.name}; take the position embeddings off"
        )
    positions = position_lookups[0].weight[position_lookups[0].first_row :][: len(ids)]
    own_positions = torch.tensor([ids], device=table.device)
    with torch.no_grad():
        embedded = loaded.model.get_input_embeddings()(own_positions)[0].double()
        rows = table[own_positions[0]].double()
    # by least squares, over all numbers of all tokens
    scale = float((embedded * rows).sum() / rows.square().sum())
    return table if abs(scale - 1) < 1e-6 else table * scale, positions.to(table.device)


def measure_of(table: pd.DataFrame) -> Measure:
    """Return by what the tokens of a table are compared with the vocabulary: the column that there
    is.
    """
    return "distance" if "distance" in table else "cosine"


class VocabularyComparison(NamedTuple):
    """The tokens of a sentence against the vocabulary, state by state."""

    table: pd.DataFrame
    """A row for each state and token: layer, state, position, token_id, token, cosine or distance,
    rank.
    """
    nearest: pd.DataFrame
    """A row for each state, token and place (from 1): the first columns, place, nearest_id,
    nearest, cosine or distance."""


def compare_with_vocabulary(
    sentence: SentenceStates,
    table: Tensor,
    tokenizer: PreTrainedTokenizerBase,
    *,
    k: int,
    positions: Tensor | None = None,
    by_distance: bool = False,
) -> VocabularyComparison:
    """Compute cosine (or distance) and rank of every token's own input embedding, and the nearest
    ones, state by state.

    ``positions``, (n_tokens, dim), are added to every row of ``table``, (vocabulary, dim), for the
    token of each.
    """
    ids, states = (
        sentence.ids,
        torch.stack([flat.to(table.device) for flat in sentence.vectors.values()]),
    )
    # with positions every token has a vocabulary of its own
    places = [slice(None)] if positions is None else [slice(n, n + 1) for n in range(len(ids))]
    parts = []
    for position in places:
        vocabulary = Vocabulary(
            table, None if positions is None else positions[position][0], by_distance=by_distance
        )
        x = states[:, position].flatten(0, 1)
        own_ids = torch.tensor(ids[position], device=table.device).repeat(len(states))
        comparisons = (
            to_own(x, own_ids, vocabulary),
            token_ranks(x, own_ids, vocabulary),
            *nearest_rows(x, vocabulary, k),
        )
        parts.append([flat.unflatten(0, (len(states), -1)) for flat in comparisons])
    values, ranks, near, rows = (
        torch.cat(part, 1).cpu().numpy() for part in zip(*parts, strict=True)
    )
    tokens = list(zip(range(len(ids)), ids, token_names(tokenizer, ids), strict=True))
    columns = ["layer", "state", "position", "token_id", "token"]
    keys = pd.DataFrame(
        [(*key, *token) for key in sentence.vectors for token in tokens], columns=columns
    )
    measure = "distance" if by_distance else "cosine"
    numbers = rows.flatten().tolist()
    compared = keys.assign(**{measure: values.flatten(), "rank": ranks.flatten()})
    nearest = keys.loc[keys.index.repeat(k)].reset_index(drop=True)
    nearest = nearest.assign(place=np.tile(np.arange(1, k + 1), len(keys)), nearest_id=numbers)
    nearest = nearest.assign(nearest=token_names(tokenizer, numbers), **{measure: near.flatten()})
    return VocabularyComparison(compared, nearest)


def token_names(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return tokens as they read: decoded, "▁" for a leading space; as the vocabulary spells them
    where that fails.

    An id that is no token, of a row that pads the table, is displayed as "#50300".
    """

    def name(number: int) -> str:
        token = tokenizer.convert_ids_to_tokens(number) if number < len(tokenizer) else None
        if not isinstance(token, str):
            return f"#{number}"
        text = tokenizer.convert_tokens_to_string([token])
        space = "▁" if token[0] in "Ġ▁" or text.startswith(" ") else ""
        word = text.strip()
        readable = word and word.isprintable() and "\N{REPLACEMENT CHARACTER}" not in word
        return space + word if readable else token

    known = {number: name(number) for number in set(ids)}
    return [known[number] for number in ids]


def to_own(x: Tensor, ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the cosine of each vector to its token's own row, or the distance in a vocabulary by
    distance, (n,).
    """
    measure = token_distances if vocabulary.by_distance else token_cosines
    return measure(x, ids, vocabulary)


def measure_text(
    loaded: LoadedModel, probe: Probe, *, by_distance: bool = False
) -> dict[str, pd.DataFrame]:
    """Compare the words of a probe with the vocabulary, and measure how they move and what
    attention they receive.

    Tables are those of :func:`class_tables`, by state, attention of :func:`received_attention`,
    steps of :func:`common_direction`, and density. The probe has :data:`CLASSES`.
    """
    states = activations.layer_states(
        loaded, probe, subsets=("no_sink", *CLASSES), captures=CAPTURES
    )
    measure: Measure = "distance" if by_distance else "cosine"
    tokens = np.unique(np.concatenate([probe.sample(name).ravel() for name in CLASSES]))
    rows = states.rows_of(tokens)
    ids = probe.tokens[tokens]
    members = {
        name: np.searchsorted(tokens, np.sort(probe.sample(name).ravel())) for name in CLASSES
    }
    moving = probe.sample("no_sink").ravel()
    sequence_of = torch.arange(len(probe.lengths)).repeat_interleave(probe.lengths)
    weights = activations.attention_weights(loaded, probe, n_tokens=len(probe.tokens))
    in_class = {name: probe.classes[name].numpy() for name in CLASSES}
    measured: dict[State, dict[int, tuple[np.ndarray, np.ndarray]]] = {}
    steps = []
    attention = []
    with comparable(loaded, states.embeddings) as table:
        vocabulary = Vocabulary(table, by_distance=by_distance)
        for layer in tqdm(states, total=len(states.layers), desc=loaded.name, leave=False):
            for state, vectors in states_of(layer):
                given = vectors[rows].to(layer.device), ids.to(layer.device), vocabulary
                values = to_own(*given).cpu().numpy(), token_ranks(*given).cpu().numpy()
                measured.setdefault(state, {})[layer.index] = values
            # layer 0 is the input of the first block: no attention comes before it
            if layer.index:
                with suppress(UndefinedError):
                    received = received_attention(weights.of(layer.stack, layer.index), in_class)
                    attention.append(received.assign(layer=layer.index))
            if not layer.is_last:
                at = states.rows_of(moving)
                moved = layer.states[at], states.following(layer)[at], sequence_of[moving]
                steps.append((layer.index, *common_direction(*moved)))
    sequences = sequence_of[torch.from_numpy(tokens)].numpy()
    tables = _tables_by_state(measured, members, sequences, measure)
    tables["steps"] = pd.DataFrame(steps, columns=["layer", "within", "between"])
    tables["attention"] = pd.concat(attention, ignore_index=True) if attention else pd.DataFrame()
    is_function = probe.classes["function"][torch.from_numpy(tokens)]
    tables["density"] = density(Vocabulary(table), ids, is_function)
    return tables


def _tables_by_state(
    measured: Mapping[State, dict[int, tuple[np.ndarray, np.ndarray]]],
    members: dict[str, np.ndarray],
    sequences: np.ndarray,
    measure: Measure,
) -> dict[str, pd.DataFrame]:
    """Return the tables of classes, with a column that names the state.

    Args:
        measured: by state and layer, the values and ranks of the tokens.
        members, sequences, measure: as for :func:`class_tables`.
    """
    frames_by_kind: dict[str, list[pd.DataFrame]] = {}
    for state, of_layers in measured.items():
        # what enters the first block comes before its attention, too
        layers = {0: measured["block"][0], **of_layers}
        of_state = class_tables(layers, members, sequences, measure)
        for kind, frame in of_state.items():
            shown = frame[frame["layer"].isin([*of_layers, ANY])].assign(state=state)
            frames_by_kind.setdefault(kind, []).append(shown)
    return {kind: pd.concat(frames, ignore_index=True) for kind, frames in frames_by_kind.items()}


def density(vocabulary: Vocabulary, ids: Tensor, is_function: Tensor) -> pd.DataFrame:
    """Measure how crowded the embedding space is around the tokens of a text: mean cosine to the 10
    nearest other rows.

    There is a row for each different token of ``ids``, (n,), with the class that it has more often;
    none for tokens whose embedding is zero.
    """
    tokens, inverse = ids.unique(return_inverse=True)
    count = torch.bincount(inverse)
    functions = torch.bincount(inverse, weights=is_function.to(inverse.device).double())
    nonzero = vocabulary.norms.to(tokens.device)[tokens] > 0
    tokens = tokens[nonzero]
    count = count[nonzero]
    functions = functions[nonzero]
    neighbours, rows = nearest_rows(
        vocabulary.table[tokens.to(vocabulary.table.device)], vocabulary, NEIGHBOURS + 1
    )
    # the row itself is the nearest, or one of several that equal it: leave one of them out
    own = (rows == tokens.to(rows.device).unsqueeze(1)).double().argmax(1)
    others = neighbours.sum(1) - neighbours.gather(1, own.unsqueeze(1)).squeeze(1)
    columns = {
        "token_id": tokens.tolist(),
        "class": np.where((2 * functions > count).cpu(), "function", "content"),
    }
    columns |= {
        "count": count.tolist(),
        "norm": vocabulary.norms[tokens.to(vocabulary.norms.device)].tolist(),
    }
    return pd.DataFrame({**columns, "density": (others / NEIGHBOURS).tolist()})


def common_direction(before: Tensor, after: Tensor, sequences: Tensor) -> tuple[float, float]:
    """Compute the mean cosine between the steps of two tokens, from (n, dim) vectors at a layer and
    at the next: 1 if all move in the same direction.

    Returns:
        Within a sequence and between ``sequences``, (n,); NaN without such pairs. Tokens that do
        not move are left out.
    """
    steps = after.to(before.device).double() - before.double()
    moved = steps.any(1)
    # each its own word, because topic_mean leaves out the pairs of one word
    tokens = torch.arange(int(moved.sum()), device=steps.device)
    of = sequences.to(steps.device)[moved]
    within, between = (
        float(topic_mean(steps[moved], tokens, of, pairs=pairs)) for pairs in ("same", "different")
    )
    return within, between


def class_means(
    values: np.ndarray, members: Mapping[str, np.ndarray], sequences: np.ndarray
) -> dict[str, Estimate]:
    """Average values (m, n_tokens) over the tokens of each class (their numbers), with a bootstrap
    over ``sequences``.

    Returns:
        By class, and the difference as :data:`GAP`, whose classes share their draws.
    """
    n_sequences = int(sequences.max()) + 1
    sums = [
        SequenceSums.of(values[:, tokens], sequences[tokens], n_sequences)
        for tokens in members.values()
    ]
    return _with_gap(dict(zip(members, bootstrap(sums, _RESAMPLES), strict=True)))


def _with_gap(found: dict[str, Estimate]) -> dict[str, Estimate]:
    return {**found, GAP: found["function"].map(np.subtract, found["content"])}


def class_tables(
    layers: Mapping[int, tuple[np.ndarray, np.ndarray]],
    members: Mapping[str, np.ndarray],
    sequences: np.ndarray,
    measure: str,
) -> dict[str, pd.DataFrame]:
    """Measure where the tokens of each class are in every layer, and how they move from layer to
    layer.

    Args:
        layers: by number, the cosine or distance (``measure``) of each token to its own input
            embedding and its rank.
        members, sequences: as for :func:`class_means`.

    Returns:
        Classes: layer, class, tokens (their number), ``measure`` (mean), rank_q25, rank (median),
            rank_q75, kept (share
        of rank 0).
        Changes: class, quantity, layer, value, and its 95% interval low and high. Quantities are
            the means of
        ``measure`` and log_rank (log10 of 1 + rank), and their change from the layer before
        (``..._change``); nearer and nearer_by_0.01 (share of tokens that are nearer to their
        embedding than at the layer before, layer "any": at least once); and ranks_per_0.01 (all
        changes of rank, without sign, over those of ``measure``, times 0.01).
        Jumps: class, quantity, layer (of the largest change), jump, and returned: the largest part
            of it that a later
        layer has taken back; with intervals.
        Points: class, token, layer, ``measure``, rank of up to :data:`POINTS` tokens of each class.
    """
    numbers = [*layers]
    values, ranks = (np.stack(parts).astype(float) for parts in zip(*layers.values(), strict=True))
    levels, points = _levels_and_points(numbers, values, ranks, members, measure)
    changes: list[pd.DataFrame] = []
    jumps: list[pd.DataFrame] = []

    def add(estimate: Estimate, of_class: str, quantity: str, layers: Sequence[object]) -> None:
        keys = {"layer": layers, "class": of_class, "quantity": quantity}
        changes.append(pd.DataFrame({**keys, **estimate.columns("value", "")}))

    for quantity, of_tokens in {measure: values, "log_rank": np.log10(1 + ranks)}.items():
        for name, level in class_means(of_tokens, members, sequences).items():
            change = level.map(np.diff)
            # of the mean itself: every resample is read at this layer, so the interval is of one
            # jump
            largest = int(np.abs(change.values).argmax())
            jump = change.map(lambda at_layers, at=largest: at_layers[..., [at]])
            returned = level.map(lambda at_layers, at=largest: _returned(at_layers, at))
            keys = {"layer": numbers[largest + 1], "class": name, "quantity": quantity}
            jumps.append(
                pd.DataFrame({**keys, **jump.columns("jump"), **returned.columns("returned")})
            )
            add(level, name, quantity, numbers)
            add(change, name, f"{quantity}_change", numbers[1:])
    steps = np.diff(values, axis=0)
    later = [*numbers[1:], ANY]  # each layer but the first, and all of them together
    for quantity, least in NEARER.items():
        is_nearer = (-steps if measure == "distance" else steps) > least
        at_any = is_nearer.any(axis=0)
        shares = class_means(np.vstack([is_nearer, at_any]), members, sequences)
        for name, of_class in shares.items():
            add(of_class, name, quantity, later)
    moved_ranks, moved_values = (
        class_means(np.vstack([changed, changed.sum(axis=0)]), members, sequences)
        for changed in (np.abs(np.diff(ranks, axis=0)), np.abs(steps))
    )
    for name in members:
        ratio = moved_ranks[name].map(_ranks_per_hundredth, moved_values[name])
        add(ratio, name, "ranks_per_0.01", later)
    return {
        "classes": levels,
        "changes": pd.concat(changes, ignore_index=True),
        "jumps": pd.concat(jumps, ignore_index=True),
        "points": points,
    }


def _levels_and_points(
    numbers: Sequence[int],
    values: np.ndarray,
    ranks: np.ndarray,
    members: Mapping[str, np.ndarray],
    measure: str,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables of classes and points of :func:`class_tables`, from ``values`` and
    ``ranks`` (n_layers, n_tokens) of the layers ``numbers``.
    """
    levels = []
    points = []
    random = np.random.RandomState(0)
    for name, tokens in members.items():
        low, middle, high = np.quantile(ranks[:, tokens], [0.25, 0.5, 0.75], axis=1)
        of_class = {
            "layer": numbers,
            "class": name,
            "tokens": len(tokens),
            measure: values[:, tokens].mean(axis=1),
            "rank_q25": low,
            "rank": middle,
            "rank_q75": high,
            "kept": (ranks[:, tokens] == 0).mean(axis=1),
        }
        levels.append(pd.DataFrame(of_class))
        sample = random.permutation(tokens)[:POINTS]
        of_sample = {
            "layer": np.repeat(numbers, len(sample)),
            "class": name,
            "token": np.tile(sample, len(numbers)),
            measure: values[:, sample].ravel(),
            "rank": ranks[:, sample].ravel(),
        }
        points.append(pd.DataFrame(of_sample))
    return pd.concat(levels, ignore_index=True), pd.concat(points, ignore_index=True)


def _ranks_per_hundredth(ranks: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return how many ranks go with a change of 0.01; NaN where the values have not changed."""
    return 0.01 * ranks / np.where(values > 0, values, np.nan)


def _returned(levels: np.ndarray, jump: int) -> np.ndarray:
    """Return the share of a jump, (..., layers) from one layer to the next, that the layers after
    it take back.
    """
    size = levels[..., [jump + 1]] - levels[..., [jump]]
    back = (levels[..., [jump + 1]] - levels[..., jump + 1 :]) / np.where(size == 0, np.nan, size)
    return back.max(-1, keepdims=True) + 0.0  # not -0


def received_attention(
    weights: Sequence[tuple[Tensor, np.ndarray]], classes: Mapping[str, np.ndarray]
) -> pd.DataFrame:
    """Measure how much attention the tokens of each class receive in one layer.

    A class receives the sum of all weights ``a_ij`` to its positions j, over what it would receive
    if each position i attended evenly to the n_i that it sees, ``sum_ij 1 / n_i``. What position
    alone explains is the same of the mean weights to the same place in the other sequences.
    Sequences of another length than most are left out.

    Args:
        weights: of each sequence, (heads, n, n), and the numbers of its tokens (n,).
        classes: (n_tokens of the probe,) bool by name.

    Returns:
        A row for each head, and one for their mean, whose head is missing, and class: head, class,
        received, by_position and beyond (their difference), each with its 95% interval.
    """
    lengths = [len(tokens) for _, tokens in weights]
    length = max(set(lengths), key=lengths.count)
    same_length = [
        (of_sequence, tokens) for of_sequence, tokens in weights if len(tokens) == length
    ]
    # a masked position has weight 0 in every head, so that no mask needs to be known
    seen = [(of_sequence != 0).any(0).double() for of_sequence, _ in same_length]
    even = np.stack([(one / one.sum(1, keepdim=True)).sum(0).cpu().numpy() for one in seen])
    received = np.stack(
        [of_sequence.double().sum(1).cpu().numpy() for of_sequence, _ in same_length]
    )
    # the mean over heads is one more head from here on
    received = np.concatenate([received, received.mean(1, keepdims=True)], axis=1)
    # of the other sequences alone: with its own, each would explain a part of itself
    by_position = (received.sum(0) - received) / (len(received) - 1)
    tokens = np.concatenate([numbers for _, numbers in same_length])
    members = {name: np.flatnonzero(mask[tokens]) for name, mask in classes.items()}
    sequences = np.repeat(np.arange(len(same_length)), length)
    heads = pd.array([*range(received.shape[1] - 1), None], dtype="Int64")
    of_even = class_means(even.reshape(1, -1), members, sequences)
    tables: dict[str, dict[str, np.ndarray]] = {}
    for quantity, of in {
        "received": received,
        "by_position": by_position,
        "beyond": received - by_position,
    }.items():
        means = class_means(of.transpose(1, 0, 2).reshape(len(heads), -1), members, sequences)
        shares = {name: means[name].map(np.divide, of_even[name]) for name in members}
        for name, estimate in _with_gap(shares).items():
            tables.setdefault(name, {}).update(estimate.columns(quantity))
    return pd.concat(
        [
            pd.DataFrame(columns).assign(**{"head": heads, "class": name})
            for name, columns in tables.items()
        ]
    )
