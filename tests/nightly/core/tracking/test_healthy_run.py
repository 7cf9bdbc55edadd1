"""A sound training gives no alert, however often it is measured."""

import logging

import pytest
import torch
from small import HandWritten, random_tokens
from torch.nn.functional import cross_entropy

from repdyn import Tracker, open_store

N_STEPS, EVERY = 400, 4
pytestmark = [pytest.mark.timeout(900)]


def test_a_healthy_run_prints_no_alert(tmp_path, small_probe, without_figures, caplog):
    torch.manual_seed(0)
    model = HandWritten()
    tokens = random_tokens(64, 12)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    with (
        caplog.at_level(logging.WARNING, "repdyn"),
        Tracker(model, small_probe, schedule=EVERY, store=tmp_path, run="toy") as tracker,
    ):
        for _ in range(N_STEPS):
            batch = tokens[torch.randint(0, len(tokens), (8,))]
            predicted = model(batch)[:, :-1]
            loss = cross_entropy(predicted.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            tracker.step(loss=loss)
    assert losses[-1] < 0.9 * losses[0]  # it learns
    assert open_store(tmp_path).steps("toy") == list(range(0, N_STEPS + 1, EVERY))
    assert [line for line in caplog.messages if line.startswith("repdyn: alert at")] == []
