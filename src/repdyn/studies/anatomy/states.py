"""The states of every token of a few sentences, at every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.capture.capture import capture
from repdyn.probe import Probe

_FIRSTS = "first_positions"
_LONG = 4


@dataclass(frozen=True)
class Layer:
    """Which layer, as :mod:`repdyn.capture.capture` counts them: 0 is what enters the first block."""

    index: int
    stack: str | None
    """Name of the stack it belongs to, in a model that has several."""


def probe_of(sequences: Sequence[Sequence[int]]) -> Probe:
    """A probe of whole sequences, each token of which is sampled by "no_sink" or by the class of first positions.

    Copies of the longest sequence, of four tokens at least, follow where these are too few or too short for a probe.

    Raises:
        ValueError: no sequence, or an empty one.
    """
    lengths = [len(sequence) for sequence in sequences]
    if not lengths or min(lengths) < 1:
        raise ValueError(f"expected sentences of at least one token, got lengths {lengths[:5]}; leave empty texts out")
    longest = list(max(sequences, key=len))
    more = longest * (-(-_LONG // len(longest)))
    whole = [list(sequence) for sequence in sequences]
    while len(whole) < 3 or sum(map(len, whole)) < 2 * len(whole):
        whole.append(more)
    ids = torch.zeros(len(whole), max(map(len, whole)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(whole):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    n_tokens = int(mask.sum())
    firsts = torch.zeros(n_tokens, dtype=torch.bool)
    firsts[mask.sum(1).cumsum(0) - mask.sum(1)] = True
    n_others = n_tokens - len(whole)
    return Probe.from_tokens(ids, mask, max_vectors=n_others, batch_vectors=n_others).with_classes({_FIRSTS: firsts})


def token_states(model: nn.Module, sequences: Sequence[Sequence[int]]) -> Iterator[tuple[Layer, Tensor]]:
    """Layer after layer the states of all tokens, (n_tokens, dim) in the model's dtype, sequence after sequence.

    Args:
        model: any model that :func:`repdyn.capture.capture.capture` takes; left as it was found.
        sequences: token ids as the model takes them, special tokens included.

    Raises:
        ValueError: as :func:`probe_of`, or a model that cannot be captured.
    """
    states = capture(model, probe_of(sequences), ("no_sink", _FIRSTS))
    rows = states.rows_of(np.arange(sum(map(len, sequences))))
    while states.layers:
        layer = states.take()
        yield Layer(layer.index, layer.stack), layer.states[rows]
