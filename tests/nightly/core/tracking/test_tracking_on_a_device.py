"""The tracker in a loop of one's own on a device other than the CPU: the same rows, and the
training is what it was.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import pytest
import torch
from pretend_cuda import PretendCuda
from small import HandWritten, random_tokens
from torch import Tensor
from torch.nn.functional import cross_entropy

from repdyn import Probe, Tracker

SCHEDULE, N_STEPS = 3, 3
NOT_COMPARED = ["seconds", "measured_at", "device"]


class Loop:
    """A training whose loss, learning rate and batches are on the device."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = HandWritten(n_layers=2).to(device, dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.tokens = random_tokens(4 * N_STEPS, 12).split(4)

    def step(self, number: int) -> Tensor:
        tokens = self.tokens[number].to(self.device)
        loss = cross_entropy(
            self.model(tokens)[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def weights(loop: Loop) -> list[Tensor]:
    return [parameter.detach().cpu() for parameter in loop.model.parameters()]


def tracked(
    device: str, dtype: torch.dtype, probe: Probe, store: Path
) -> tuple[pd.DataFrame, list[Tensor]]:
    loop = Loop(device, dtype)
    with Tracker(loop.model, probe, SCHEDULE, store=store, run="r", on_error="raise") as tracker:
        for number in range(N_STEPS):
            rate = torch.tensor(0.1, device=device)
            tracker.step(loss=loop.step(number), tokens=48, learning_rate=rate)
    return tracker.store.to_pandas().drop(columns=NOT_COMPARED), weights(loop)


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        *(("cuda", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)),
        ("mps", torch.float32),
    ],
    ids=str,
)
def test_rows_and_training_are_those_of_the_cpu(
    device, dtype, small_probe, tmp_path, without_figures
):
    expected, on_cpu = tracked("cpu", dtype, small_probe, tmp_path / "cpu")
    with PretendCuda(device):
        rows, on_device = tracked(device, dtype, small_probe, tmp_path / device)
    assert all(map(torch.equal, on_device, on_cpu))
    assert set(rows["step"]) == {0, 3}
    assert {"train/loss", "train/learning_rate", "anisotropy", "two_nn"} <= set(rows["metric"])
    rows, expected = (frame.drop(columns="run_id") for frame in (rows, expected))
    pd.testing.assert_frame_equal(rows, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(PretendCuda, id="pretended"),
        pytest.param(
            nullcontext,
            id="gpu",
            marks=[pytest.mark.gpu, pytest.mark.skipif("not torch.cuda.is_available()")],
        ),
    ],
)
def test_the_training_is_bit_identical(context, small_probe, tmp_path, without_figures):
    with context():
        _, trained = tracked("cuda", torch.float32, small_probe, tmp_path)
        untracked = Loop("cuda", torch.float32)
        for number in range(N_STEPS):
            untracked.step(number)
        assert all(map(torch.equal, trained, weights(untracked)))


def test_steps_between_measurements_do_not_wait_for_the_device(
    small_probe, tmp_path, without_figures
):
    with PretendCuda() as cuda:
        loop = Loop("cuda", torch.float32)
        with Tracker(loop.model, small_probe, 1000, store=tmp_path, on_error="raise") as tracker:
            tracker.step(loss=loop.step(0), tokens=48)
            before = cuda.syncs.copy()
            for number in range(1, N_STEPS):
                tracker.step(loss=loop.step(number), tokens=48)
            assert cuda.syncs == before
