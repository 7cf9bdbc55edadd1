"""How the words of a text move against the vocabulary from layer to layer, and which of them attention goes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from repdyn.kernels import Undefined, topic_mean
from repdyn.kernels.vocabulary import Vocabulary, nearest_rows, token_ranks
from repdyn.reading import LoadedModel, attention_weights, layer_states
from repdyn.studies.bootstrap import Estimate, SequenceSums, bootstrap
from repdyn.studies.study import text_probe
from repdyn.studies.token_measurements import CAPTURES, Measure, State, comparable, embedding_table, states_of, to_own

CLASSES = ("function", "content")
GAP = "function minus content"
"""The difference of the two classes, as a class."""
ANY = "any"
"""At least one layer, or all of them together, as a layer."""
NEARER = {"nearer": 1e-12, "nearer_by_0.01": 0.01}
"""How much a cosine has to rise, or a distance to fall: not by rounding."""
POINTS = 300
"""Tokens of each class that are returned one by one."""
NEIGHBOURS = 10
_RESAMPLES = 1000


def measure_text(loaded: LoadedModel, options: Any) -> tuple[str, dict[str, pd.DataFrame]]:
    """Compare the words of a text with the vocabulary, and measure how they move and what attention they receive.

    Returns:
        The name of the text, and tables, by stack and state: those of :func:`class_tables`, attention of
        :func:`received_attention`, steps (within and between, of :func:`common_direction`), and density.
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
    of_stacks = []
    for (stack, state), of_layers in found.items():
        # what enters the first block comes before its attention, too
        layers = {0: found[stack, "block"][0], **of_layers}
        parts = class_tables(layers, members, sequence_of[torch.from_numpy(tokens)].numpy(), measure)
        keys = {"stack": stack, "state": state}
        of_stacks.append(
            {k: table[table["layer"].isin([*of_layers, ANY])].assign(**keys) for k, table in parts.items()}
        )
    tables = {kind: pd.concat([each[kind] for each in of_stacks], ignore_index=True) for kind in of_stacks[0]}
    tables["steps"] = pd.DataFrame(steps)
    tables["attention"] = pd.concat(attention, ignore_index=True) if attention else pd.DataFrame()
    is_function = probe.classes["function"][torch.from_numpy(tokens)]
    tables["density"] = density(Vocabulary(vocabulary.table), ids, is_function)
    return probe.name, tables


def density(vocabulary: Vocabulary, ids: Tensor, is_function: Tensor) -> pd.DataFrame:
    """Measure how crowded the embedding space is around the tokens of a text: mean cosine to the 10 nearest other rows.

    Args:
        vocabulary: by cosine.
        ids, is_function: (n,) each, as often as they occur.

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
    columns = {"token_id": tokens.tolist(), "class": np.where((2 * functions > count).cpu(), "function", "content")}
    columns |= {"count": count.tolist(), "norm": vocabulary.norms[tokens.to(vocabulary.norms.device)].tolist()}
    return pd.DataFrame({**columns, "density": (others / NEIGHBOURS).tolist()})


def common_direction(before: Tensor, after: Tensor, sequences: Tensor) -> tuple[float, float]:
    """Compute the mean cosine between the steps of two tokens: 1 if all tokens move in the same direction.

    Args:
        before, after: (n, dim) vectors of the same tokens at a layer and at the next.
        sequences: (n,) the sequence of each.

    Returns:
        Within a sequence and between sequences, in [-1, 1]; NaN without such pairs. Tokens that do not move are left
        out.
    """
    steps = after.to(before.device).double() - before.double()
    moved = steps.any(1)
    tokens, of = torch.arange(int(moved.sum()), device=steps.device), sequences.to(steps.device)[moved]
    within, between = (float(topic_mean(steps[moved], tokens, of, pairs=pairs)) for pairs in ("same", "different"))
    return within, between


def class_means(values: np.ndarray, members: Mapping[str, np.ndarray], sequences: np.ndarray) -> dict[str, Estimate]:
    """Average values (m, n_tokens) over the tokens of each class (their numbers), with a bootstrap over ``sequences``.

    Returns:
        By class, and the difference as :data:`GAP`, whose classes share their draws.
    """
    n_sequences = int(sequences.max()) + 1
    sums = [SequenceSums.of(values[:, tokens], sequences[tokens], n_sequences) for tokens in members.values()]
    return _with_gap(dict(zip(members, bootstrap(sums, _RESAMPLES), strict=True)))


def _with_gap(found: dict[str, Estimate]) -> dict[str, Estimate]:
    return {**found, GAP: found["function"].map(np.subtract, found["content"])}


def class_tables(
    layers: Mapping[int, tuple[np.ndarray, np.ndarray]],
    members: Mapping[str, np.ndarray],
    sequences: np.ndarray,
    measure: str,
) -> dict[str, pd.DataFrame]:
    """Measure where the tokens of each class are in every layer, and how they move from layer to layer.

    Args:
        layers: by number, the cosine or distance (``measure``) of each token to its own input embedding and its rank.
        members, sequences: as for :func:`class_means`.

    Returns:
        Classes: layer, class, tokens (their number), ``measure`` (mean), rank_q25, rank (median), rank_q75, kept (share
        of rank 0).
        Changes: class, quantity, layer, value, and its 95% interval low and high. Quantities are the means of
        ``measure`` and log_rank (log10 of 1 + rank), and their change from the layer before (``..._change``); nearer
        and nearer_by_0.01 (share of tokens that are nearer to their embedding than at the layer before, layer "any": at
        least once); and ranks_per_0.01 (all changes of rank, without sign, over those of ``measure``, times 0.01).
        Jumps: class, quantity, layer (of the largest change), jump, and returned: the largest part of it that a later
        layer has taken back; with intervals.
        Points: class, token, layer, ``measure``, rank of up to :data:`POINTS` tokens of each class.
    """
    numbers = [*layers]
    values, ranks = (np.stack(parts).astype(float) for parts in zip(*layers.values(), strict=True))
    found: dict[str, list[pd.DataFrame]] = {kind: [] for kind in ("classes", "changes", "jumps", "points")}
    random = np.random.RandomState(0)
    for name, tokens in members.items():
        low, middle, high = np.quantile(ranks[:, tokens], [0.25, 0.5, 0.75], axis=1)
        levels = {measure: values[:, tokens].mean(1), "rank_q25": low, "rank": middle, "rank_q75": high}
        keys = {"layer": numbers, "class": name, "tokens": len(tokens)}
        found["classes"].append(pd.DataFrame({**keys, **levels, "kept": (ranks[:, tokens] == 0).mean(1)}))
        some = random.permutation(tokens)[:POINTS]
        places = {"layer": np.repeat(numbers, len(some)), "class": name, "token": np.tile(some, len(numbers))}
        cells = {measure: values[:, some].ravel(), "rank": ranks[:, some].ravel()}
        found["points"].append(pd.DataFrame({**places, **cells}))

    def add(estimate: Estimate, of_class: str, quantity: str, layers: Sequence[object]) -> None:
        keys = {"layer": layers, "class": of_class, "quantity": quantity}
        found["changes"].append(pd.DataFrame({**keys, **estimate.columns("value", "")}))

    for quantity, of_tokens in {measure: values, "log_rank": np.log10(1 + ranks)}.items():
        for name, level in class_means(of_tokens, members, sequences).items():
            change = level.map(np.diff)
            largest = int(np.abs(change.values).argmax())
            jump = change.map(lambda part, at=largest: part[..., [at]])
            returned = level.map(lambda part, at=largest: _returned(part, at))
            keys = {"layer": numbers[largest + 1], "class": name, "quantity": quantity}
            found["jumps"].append(pd.DataFrame({**keys, **jump.columns("jump"), **returned.columns("returned")}))
            add(level, name, quantity, numbers)
            add(change, name, f"{quantity}_change", numbers[1:])
    steps, later = np.diff(values, axis=0), [*numbers[1:], ANY]
    for quantity, least in NEARER.items():
        is_nearer = (-steps if measure == "distance" else steps) > least
        for name, shares in class_means(np.vstack([is_nearer, is_nearer.any(0)]), members, sequences).items():
            add(shares, name, quantity, later)
    moved = [np.vstack([part, part.sum(0)]) for part in (np.abs(np.diff(ranks, axis=0)), np.abs(steps))]
    of_ranks, of_values = (class_means(part, members, sequences) for part in moved)
    for name in members:
        ratio = of_ranks[name].map(lambda one, other: 0.01 * one / np.where(other > 0, other, np.nan), of_values[name])
        add(ratio, name, "ranks_per_0.01", later)
    return {kind: pd.concat(parts, ignore_index=True) for kind, parts in found.items()}


def _returned(levels: np.ndarray, jump: int) -> np.ndarray:
    """Return the share of a jump, (..., layers) from one layer to the next, that the layers after it take back."""
    size = levels[..., [jump + 1]] - levels[..., [jump]]
    back = (levels[..., [jump + 1]] - levels[..., jump + 1 :]) / np.where(size == 0, np.nan, size)
    return back.max(-1, keepdims=True) + 0.0  # not -0


def received_attention(weights: Sequence[tuple[Tensor, np.ndarray]], classes: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Measure how much attention the tokens of each class receive in one layer.

    A class receives the sum of all weights ``a_ij`` to its positions j, over what it would receive if each position i
    attended evenly to the n_i that it sees, ``sum_ij 1 / n_i``. What position alone explains is the same of the mean
    weights to the same place in the other sequences. Sequences of another length than most are left out.

    Args:
        weights: of each sequence, (heads, n, n), and the numbers of its tokens (n,).
        classes: (n_tokens of the probe,) bool by name.

    Returns:
        A row for each head, and one for their mean, whose head is missing, and class: head, class, received,
        by_position and beyond (their difference), each with its 95% interval.
    """
    lengths = [len(tokens) for _, tokens in weights]
    length = max(set(lengths), key=lengths.count)
    kept = [(of_sequence, tokens) for of_sequence, tokens in weights if len(tokens) == length]
    seen = [(of_sequence != 0).any(0).double() for of_sequence, _ in kept]
    even = np.stack([(one / one.sum(1, keepdim=True)).sum(0).cpu().numpy() for one in seen])
    received = np.stack([of_sequence.double().sum(1).cpu().numpy() for of_sequence, _ in kept])
    received = np.concatenate([received, received.mean(1, keepdims=True)], axis=1)
    by_position = (received.sum(0) - received) / (len(received) - 1)
    tokens = np.concatenate([numbers for _, numbers in kept])
    members = {name: np.flatnonzero(mask[tokens]) for name, mask in classes.items()}
    sequences = np.repeat(np.arange(len(kept)), length)
    heads = pd.array([*range(received.shape[1] - 1), None], dtype="Int64")
    of_even = class_means(even.reshape(1, -1), members, sequences)
    tables: dict[str, dict[str, np.ndarray]] = {}
    for quantity, of in {"received": received, "by_position": by_position, "beyond": received - by_position}.items():
        means = class_means(of.transpose(1, 0, 2).reshape(len(heads), -1), members, sequences)
        shares = {name: means[name].map(np.divide, of_even[name]) for name in members}
        for name, estimate in _with_gap(shares).items():
            tables.setdefault(name, {}).update(estimate.columns(quantity))
    return pd.concat(
        [pd.DataFrame(columns).assign(**{"head": heads, "class": name}) for name, columns in tables.items()]
    )
