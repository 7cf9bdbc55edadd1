"""The memory of a measurement is bounded; a measurement can be broken off between batches."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from live_bytes import LiveBytes
from small import HandWritten, random_tokens

from repdyn import Probe, measure
from repdyn.metrics import Metric
from repdyn.utils import caller_state


@pytest.fixture(autouse=True)
def visible(monkeypatch) -> None:
    """A measurement leaves the caller's modes out, and so the one that counts bytes."""
    monkeypatch.setattr(caller_state, "without_dispatch_modes", nullcontext)


def peak(model: HandWritten, probe: Probe, metrics: list[str]) -> int:
    with LiveBytes() as live:
        measure(model, probe, metrics, tokens_per_forward=64)
    return live.peak


def test_a_measurement_never_holds_the_states_of_all_tokens_that_are_read() -> None:
    torch.manual_seed(0)
    model = HandWritten(n_layers=16, dim=32)
    probe = Probe.from_tokens(random_tokens(64, 60), max_vectors=256, batch_vectors=128)
    of_all_tokens = 17 * len(probe.tokens) * 32 * 4
    assert peak(model, probe, ["norm"]) < of_all_tokens / 2


class StopError(Exception):
    """What a progress function raises to break a measurement off."""


@pytest.mark.parametrize("on_error", ["raise", "record"])
def test_a_measurement_is_broken_off_between_batches(hand_written, small_probe, on_error):
    batches = []

    def kernel(cloud) -> torch.Tensor:
        batches.append(cloud)
        return torch.tensor(1.0)

    def progress(what: str, share: float) -> None:
        if batches:
            raise StopError

    metric = Metric(name="counting", kernel=kernel)
    with pytest.raises(StopError):
        measure(hand_written, small_probe, (metric,), progress=progress, on_error=on_error)
    assert len(batches) == 1
    assert small_probe.n_batches == 2
