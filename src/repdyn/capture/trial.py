"""A trial of a model on a few windows of a probe: whether it runs, how long that takes, and what comes out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from repdyn.capture.capture import record
from repdyn.capture.prepared_model import PreparedModel
from repdyn.capture.states import STATES_BYTES
from repdyn.capture.token_states import split_where_square
from repdyn.probe import Probe, ProbeBatch
from repdyn.probe.content import padded_batches
from repdyn.utils.caller_state import plain_state

_TIMED_SHARE = 8
"""A trial times at most one in so many of a probe's windows."""


@dataclass(frozen=True)
class Expected:
    """Expected time of running a model on a probe, and the vectors that it gives."""

    forward_seconds: float
    """About how long all forward passes take; windows that a causal model reads in part are counted in full."""
    vectors: list[Tensor]
    """(dim,) one vector of each layer."""


@plain_state()
def try_model(model: PreparedModel, probe: Probe) -> None:
    """Run a model on up to three windows of a probe that ask most of it; it is left as it was.

    Raises:
        ValueError, RuntimeError, OSError, MemoryError, torch.OutOfMemoryError: as :meth:`PreparedModel.on` and
            :func:`repdyn.capture.capture.capture` do.
    """
    batch = _windows(probe)
    record(model.on(probe), [batch], np.arange(len(batch.tokens)), STATES_BYTES)


@plain_state()
def expect(model: PreparedModel, probe: Probe, tokens_per_forward: int) -> Expected:
    """Run a model on one batch such as a measurement runs, and return what a whole probe takes."""
    model = model.on(probe)
    n_windows = len(probe.lengths)
    size = min(max(1, tokens_per_forward // int(probe.lengths.max())), -(-n_windows // _TIMED_SHARE))
    batch = split_where_square(next(probe.batches(size)), model.token_positions)[0]
    seconds, rows = 0.0, np.full(len(batch.tokens), -1)
    rows[0] = 0  # a single vector shows the size of all

    def timed() -> Iterator[ProbeBatch]:
        nonlocal seconds
        start = time.perf_counter()
        yield batch
        if model.device.type != "cpu" and torch.accelerator.is_available():
            torch.accelerator.synchronize(model.device)
        seconds = time.perf_counter() - start

    layers = record(model, timed(), rows, STATES_BYTES).layers
    return Expected(seconds * n_windows / len(batch.input_ids), [layer.states[0] for layer in layers])


def _windows(probe: Probe) -> ProbeBatch:
    """Return the windows of a probe that ask most of a model: the longest, that of the largest id, and the shortest.

    Of a probe of inputs it is the first batch.
    """
    if probe.inputs is not None:
        return next(probe.batches(1))
    windows = probe.tokens.split(probe.lengths.tolist())
    largest = int(probe.window_of(probe.tokens.argmax().numpy()))
    numbers = [int(probe.lengths.argmax()), largest, int(probe.lengths.argmin())]
    chosen = [windows[number] for number in dict.fromkeys(numbers)]
    lengths = torch.tensor([len(window) for window in chosen])
    return next(padded_batches(torch.cat(chosen), lengths, probe.pad_id, len(chosen)))
