"""How far a measurement is, and that it can be broken off between the batches of its metrics."""

from __future__ import annotations

import pytest
import torch

from repdyn import measure
from repdyn.metrics import Metric


class Stop(Exception):
    """What a progress function raises to break a measurement off."""


@pytest.mark.parametrize("on_error", ["raise", "record"])
def test_a_measurement_is_broken_off_between_batches(hand_written, small_probe, on_error):
    batches = []

    def kernel(cloud) -> torch.Tensor:
        batches.append(cloud)
        return torch.tensor(1.0)

    def progress(what: str, share: float) -> None:
        if batches:
            raise Stop

    metric = Metric(name="counting", kernel=kernel)
    with pytest.raises(Stop):
        measure(hand_written, small_probe, (metric,), progress=progress, on_error=on_error)
    assert len(batches) == 1
    assert small_probe.n_batches == 2
