"""Estimates of a dimension below 1 are stated among the insights."""

import pytest
import torch
from small import HandWritten

from repdyn import Probe, Tracker, insights


def place_in_pairs(model: HandWritten, distance: float) -> None:
    """Let the vectors of tokens n and n + 144 be close together, and far from all others."""
    with torch.no_grad():
        model.position.weight.zero_()
        centres = torch.randn(144, 16, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
        model.token.weight.copy_(centres + distance * torch.randn(288, 16, generator=torch.Generator().manual_seed(1)))


@pytest.fixture
def probe():
    return Probe.from_tokens(torch.arange(288).view(24, 12), max_vectors=256, batch_vectors=256)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return HandWritten(vocabulary=288)


def test_a_dimension_below_one_is_an_insight(tmp_path, model, probe, without_figures):
    place_in_pairs(model, 0.05)
    with Tracker(model, probe, 1, store=tmp_path / "mine", on_error="raise") as tracker:
        tracker.step()
        place_in_pairs(model, 1.0)
        tracker.step()
    rows = tracker.store.to_pandas().query("metric == 'two_nn' and layer.notna()")
    below = rows[rows["value"] < 1]
    assert set(below["step"]) == {0, 1}
    (described,) = insights(tracker.store)
    (statement,) = [each for each in described.statements if each.kind == "below 1"]
    assert statement.severity == "note"  # the last step is above 1
    assert statement.layers == tuple(sorted(set(below["layer"])))
    assert "is below 1 in layers" in statement.sentence
    assert "at 2 steps, the last of them 1" in statement.sentence
    assert statement.evidence["lowest"] == below["value"].min()
