"""States that several ranks captured, brought together: all rows of a layer to the rank that measures it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from repdyn.capture.states import Buffers, CaptureKind, LayerStates, States, assembled
from repdyn.probe import ProbeBatch
from repdyn.utils.distributed import Ranks


def rows_in(batches: Iterable[ProbeBatch], rows: np.ndarray) -> np.ndarray:
    """The rows of the states that come from the tokens of these batches, ascending."""
    found = rows[np.concatenate([np.array([], dtype=int), *(batch.tokens for batch in batches)])]
    return np.sort(found[found >= 0])


def exchanged(
    parts: States,
    rows: np.ndarray,
    places: Sequence[np.ndarray],
    captures: Collection[CaptureKind],
    buffers: Buffers,
    ranks: Ranks,
) -> States:
    """From every rank's rows of all layers to all rows of every size-th layer, and of those it is compared with."""
    whole, failure = States([], rows, embeddings=parts.embeddings), None

    def gathered(part: Tensor, owner: int) -> Tensor | None:
        nonlocal failure
        pieces = ranks.gather(part, max(map(len, places)), owner=owner)
        try:
            return None if pieces is None or failure else assembled(pieces, places, buffers, part)
        except Exception as error:  # too little memory or disk here: the others still wait for what this rank has
            failure = error

    for number in range(len(parts.layers)):
        part = parts.layers.pop(0)
        owner = number % ranks.size
        states = gathered(part.states, owner)
        between = part.after_attention
        between = gathered(between, owner) if isinstance(between, Tensor) else between
        if states is not None:
            whole.layers.append(replace(part, states=states, after_attention=between))
        for other in _also_wanted_by(part, owner, captures, ranks.size):
            states = gathered(part.states, other)
            if states is not None:
                whole.beside.append(replace(part, states=states, after_attention=None))
    with ranks.sync_errors():
        if failure:
            raise failure
    return whole


def _also_wanted_by(layer: LayerStates, owner: int, captures: Collection[CaptureKind], size: int) -> list[int]:
    """The ranks beside its owner that compare their own layers with this one: of the one before it, or of all."""
    wanted = set(range(size)) if "last" in captures and layer.is_last else set()
    if "following" in captures and layer.index > 0:
        wanted.add((owner - 1) % size)
    return sorted(wanted - {owner})
