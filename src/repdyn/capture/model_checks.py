"""Trials: a few sequences run twice with something changed, to see which states change with it.

Both batches of a trial have one shape, so that equal inputs go through the same arithmetic. Where they are rounded
differently all the same, the unchanged sequences show by how much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from repdyn.probe import Probe, ProbeBatch

Trial: TypeAlias = list[ProbeBatch]

# Longer ones cost more and show no more; models that need a certain length get the probe's.
SHORT = 64


def causality_trials(probe: Probe) -> Iterator[Trial]:
    """Yield a sequence four times; then unchanged, with its second part changed, with its first changed, and unchanged.

    Yields:
        Two batches of a short length, then of the probe's own where that is longer; nothing where the probe has no
        second token to try.
    """
    longest = int(probe.lengths.argmax())
    tokens = probe.tokens.split(probe.lengths.tolist())[longest]
    vocabulary = probe.tokens.unique()
    if len(vocabulary) == 1 or len(tokens) < 2:
        return
    others = vocabulary[(torch.searchsorted(vocabulary, tokens) + 1) % len(vocabulary)]
    for length in _lengths(len(tokens)):
        now, then, split = tokens[:length], others[:length], _split(length)
        later, earlier = torch.cat([now[:split], then[split:]]), torch.cat([then[:split], now[split:]])
        controls = [now] * (2 if length == 4 else 1)  # no batch is square
        yield _batches([[now, *tried, *controls] for tried in ((now, now), (later, earlier))], torch.ones_like(now))


def padding_trials(probe: Probe) -> Iterator[Trial]:
    """Yield the shortest sequence, padded, three times; then unchanged, with other padding, and unchanged.

    Yields:
        Two batches of a short length, then of the probe's own where that is longer; nothing where it has no padding.
    """
    shortest = int(probe.lengths.argmin())
    tokens = probe.tokens.split(probe.lengths.tolist())[shortest]
    n_padded = int(probe.lengths.max()) - len(tokens)
    others = probe.tokens.unique()
    others = others[others != probe.pad_id]
    if n_padded == 0 or len(others) == 0:
        return
    for length in _lengths(n_padded):
        now = torch.cat([tokens, torch.full((length,), probe.pad_id)])
        then = torch.cat([tokens, others[torch.arange(length) % len(others)]])
        controls = [now] * (2 if len(now) == 3 else 1)
        mask = (torch.arange(len(now)) < len(tokens)).long()
        yield _batches([[now, tried, *controls] for tried in (now, then)], mask)


def is_causal(states: Tensor) -> bool | None:
    """Return whether no position sees a later one; None if undecidable.

    Args:
        states: (2, n_sequences, length, dim), the last layer's for the two batches of :func:`causality_trials`.
    """
    if not bool(states.isfinite().all()):
        return None
    split = _split(states.shape[2])
    moved, rounding = _movement(states)
    by_later, by_earlier = moved[1, :split], moved[2, split:]
    if rounding > 0:  # those next to the change see it if any do
        by_later, by_earlier = by_later[-8:], by_earlier[:8]
    if _has_moved(by_later, states, rounding):
        return False
    # Blocks that are initialised as the identity let no position see any other.
    return True if _has_moved(by_earlier, states, rounding) else None


def depends_on_padding(states: Tensor) -> bool:
    """Return whether states change with the padding.

    Args:
        states: (2, n_sequences, n_tokens, dim), the last layer's for the two batches of :func:`padding_trials`.
    """
    moved, rounding = _movement(states)
    return _has_moved(moved[1], states, rounding)


def _movement(states: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far each vector moved, (n_sequences, length), and how far it may by rounding alone.

    Tokens that are sorted into batches of their own, as experts do, are rounded differently when others change, and a
    few go to another expert.
    """
    moved = (states[1] - states[0]).abs().amax(dim=-1)
    return moved, 4 * moved[[0, -1]].mean(dim=1).max()


def _has_moved(moved: Tensor, states: Tensor, rounding: Tensor) -> bool:
    """Return whether vectors moved: any one of them, or half of them where one alone may be an accident."""
    least = torch.maximum(rounding, 1e-7 * states[0].square().mean().sqrt())
    return bool((moved.median() if rounding > 0 else moved.max()) > least)


def _lengths(whole: int) -> list[int]:
    return sorted({min(whole, SHORT), whole})


def _split(length: int) -> int:
    """Return a position near the middle, odd: windows, chunks and blocks of attention do not end there."""
    return (length // 2 - 1) | 1


def _batches(sequences: Sequence[Sequence[Tensor]], mask: Tensor) -> Trial:
    """Return batches of sequences that share one mask, tokens numbered through both."""
    stacked = [torch.stack(list(batch)) for batch in sequences]
    masks = mask.expand_as(stacked[0]).contiguous()
    positions = np.flatnonzero(masks.numpy())
    numbers = np.arange(len(positions))
    return [ProbeBatch(ids, masks, positions, i * len(positions) + numbers) for i, ids in enumerate(stacked)]
