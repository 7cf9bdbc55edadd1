"""How tokens of each class move against the vocabulary from layer to layer, and which of them attention goes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from repdyn.studies.convergence_estimates import percentile_interval, resample_profiles
from repdyn.studies.convergence_measurements import SequenceSums

GAP = "function minus content"
"""The difference of the two classes, as a class."""
ANY = "any"
"""At least one layer, or all of them together, as a layer."""
NEARER = {"nearer": 1e-12, "nearer_by_0.01": 0.01}
"""How much a cosine has to rise, or a distance to fall: not by rounding."""
POINTS = 300
"""Tokens of each class that are returned one by one."""
_RESAMPLES = 1000


class Estimate(NamedTuple):
    """Means over the tokens of a class, and the same in each resample of the sequences."""

    values: np.ndarray
    """(m,)"""
    draws: np.ndarray
    """(n_resamples, m)"""

    def table(self, index: Sequence[object], name: str = "value") -> pd.DataFrame:
        """Return the values with their 95 % intervals: layer, name, low, high."""
        low, high = percentile_interval(self.draws)
        ends = {"low": low, "high": high} if name == "value" else {f"{name}_low": low, f"{name}_high": high}
        return pd.DataFrame({"layer": index, name: self.values, **ends})


def class_means(
    values: np.ndarray, members: Mapping[str, np.ndarray], sequences: np.ndarray, seed: int = 0
) -> dict[str, Estimate]:
    """Average values of tokens over the tokens of each class, with a bootstrap over sequences.

    Args:
        values: (m, n_tokens).
        members: of each class, the numbers of its tokens.
        sequences: (n_tokens,) the sequence of each token.

    Returns:
        By class, and the difference as :data:`GAP`, whose classes share the draws of a seed.
    """
    n_sequences = int(sequences.max()) + 1
    sums = {}
    for name, tokens in members.items():
        of = sequences[tokens]
        by_sequence = [np.bincount(of, of_tokens, n_sequences) for of_tokens in values[:, tokens]]
        sums[name] = SequenceSums(np.stack(by_sequence, axis=1), np.bincount(of, minlength=n_sequences))
    draws = resample_profiles(list(sums.values()), _RESAMPLES, seed)
    return _with_gap(
        {name: Estimate(one.over_tokens, drawn) for (name, one), drawn in zip(sums.items(), draws, strict=True)}
    )


def _with_gap(found: dict[str, Estimate]) -> dict[str, Estimate]:
    first, second = (found[name] for name in ("function", "content"))
    return {**found, GAP: Estimate(*(one - other for one, other in zip(first, second, strict=True)))}


def class_tables(
    layers: Mapping[int, tuple[np.ndarray, np.ndarray]],
    members: Mapping[str, np.ndarray],
    sequences: np.ndarray,
    measure: str,
) -> tuple[pd.DataFrame, ...]:
    """Measure where the tokens of each class are in every layer, and how they move from layer to layer.

    Args:
        layers: by number, the cosine or distance (``measure``) of each token to its own input embedding and its rank,
            (n_tokens,) each.
        members, sequences: as for :func:`class_means`.

    Returns:
        Classes: layer, class, tokens (their number), ``measure`` (mean), rank_q25, rank (median), rank_q75, kept (share
        of rank 0).
        Changes: class, quantity, layer, value, and its 95 % interval low and high. Quantities are the means of
        ``measure`` and log_rank (log10 of 1 + rank), and their change from the layer before (``..._change``); nearer
        and nearer_by_0.01 (share of tokens that are nearer to their embedding than at the layer before, layer "any": at
        least once); and ranks_per_0.01 (all changes of rank, without sign, over those of ``measure``, times 0.01).
        Jumps: class, quantity (``measure`` or log_rank), layer (of the largest change), jump, and returned: the largest
        part of it that a later layer has taken back; with intervals.
        Points: class, token, layer, ``measure``, rank of up to :data:`POINTS` tokens of each class.
    """
    numbers = [*layers]
    values, ranks = (np.stack(parts).astype(float) for parts in zip(*layers.values(), strict=True))
    classes, points = [], []
    random = np.random.RandomState(0)
    for name, tokens in members.items():
        low, middle, high = np.quantile(ranks[:, tokens], [0.25, 0.5, 0.75], axis=1)
        levels = {measure: values[:, tokens].mean(1), "rank_q25": low, "rank": middle, "rank_q75": high}
        kept = (ranks[:, tokens] == 0).mean(1)
        classes.append(pd.DataFrame({"layer": numbers, "class": name, "tokens": len(tokens), **levels, "kept": kept}))
        some = random.permutation(tokens)[:POINTS]
        cells = {measure: values[:, some].ravel(), "rank": ranks[:, some].ravel()}
        places = {"layer": np.repeat(numbers, len(some)), "class": name, "token": np.tile(some, len(numbers))}
        points.append(pd.DataFrame({**places, **cells}))
    changes, jumps = [], []
    for quantity, of_tokens in {measure: values, "log_rank": np.log10(1 + ranks)}.items():
        for name, level in class_means(of_tokens, members, sequences).items():
            change = Estimate(*map(np.diff, level))
            largest = int(np.abs(change.values).argmax())
            jump = Estimate(*(part[..., [largest]] for part in change)).table(numbers[largest + 1 :][:1], "jump")
            returned = Estimate(*(_returned(part, largest) for part in level)).table([0], "returned")
            keys = {"class": name, "quantity": quantity}
            jumps.append(pd.concat([jump, returned.drop(columns="layer")], axis=1).assign(**keys))
            changes.append(level.table(numbers).assign(**keys))
            changes.append(change.table(numbers[1:]).assign(**{**keys, "quantity": f"{quantity}_change"}))
    steps, later = np.diff(values, axis=0), [*numbers[1:], ANY]
    for quantity, least in NEARER.items():
        is_nearer = (-steps if measure == "distance" else steps) > least
        for name, shares in class_means(np.vstack([is_nearer, is_nearer.any(0)]), members, sequences).items():
            changes.append(shares.table(later).assign(**{"class": name, "quantity": quantity}))
    moved = [np.vstack([part, part.sum(0)]) for part in (np.abs(np.diff(ranks, axis=0)), np.abs(steps))]
    of_ranks, of_values = (class_means(part, members, sequences) for part in moved)
    for name in members:
        parts = zip(of_ranks[name], of_values[name], strict=True)
        ratio = Estimate(*(0.01 * one / np.where(other > 0, other, np.nan) for one, other in parts))
        changes.append(ratio.table(later).assign(**{"class": name, "quantity": "ranks_per_0.01"}))
    tables = [pd.concat(parts, ignore_index=True) for parts in (classes, changes, jumps, points)]
    keys = ["layer", "class", "quantity"]
    return tuple(
        table.reindex(columns=[*table.columns.intersection(keys), *table.columns.difference(keys, sort=False)])
        for table in tables
    )


def _returned(levels: np.ndarray, jump: int) -> np.ndarray:
    """Return the share of a jump, (..., layers) from one layer to the next, that the layers after it take back."""
    size = levels[..., [jump + 1]] - levels[..., [jump]]
    back = (levels[..., [jump + 1]] - levels[..., jump + 1 :]) / np.where(size == 0, np.nan, size)
    return back.max(-1, keepdims=True) + 0.0  # not -0


def received_attention(weights: Sequence[tuple[Tensor, np.ndarray]], classes: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Measure how much attention the tokens of each class receive in one layer.

    A class receives the sum of all weights ``a_ij`` to its positions j, over what it would receive if each position i
    attended evenly to the n_i that it sees, ``sum_ij 1 / n_i``: 1 on average over all positions. What position alone
    explains is the same of the mean weights to the same place in the other sequences. Sequences of another length than
    most are left out.

    Args:
        weights: of each sequence, (heads, n, n), and the numbers of its tokens (n,).
        classes: (n_tokens of the probe,) bool by name.

    Returns:
        A row for each head, and one for their mean, whose head is missing, and class: head, class, received,
        by_position and beyond (their difference), each with its 95 % interval.
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
    tables: dict[str, list[pd.DataFrame]] = {}
    for quantity, of in {"received": received, "by_position": by_position, "beyond": received - by_position}.items():
        means = class_means(of.transpose(1, 0, 2).reshape(len(heads), -1), members, sequences)
        shares = {
            name: Estimate(*(one / other for one, other in zip(means[name], of_even[name], strict=True)))
            for name in members
        }
        for name, estimate in _with_gap(shares).items():
            tables.setdefault(name, []).append(estimate.table(range(len(heads)), quantity).drop(columns="layer"))
    return pd.concat(
        [pd.concat(parts, axis=1).assign(**{"head": heads, "class": name}) for name, parts in tables.items()]
    )
