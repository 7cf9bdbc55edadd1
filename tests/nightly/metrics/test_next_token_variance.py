"""Next-token classes through measure: what follows in the window, and nothing after its last token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import HandWritten

from repdyn import Probe, measure
from repdyn.capture.capture import capture
from repdyn.capture.prepared_model import prepare
from repdyn.kernels import class_variance


def test_classes_are_the_tokens_that_follow_in_the_window():
    ids = torch.randint(0, 20, (24, 12), generator=torch.Generator().manual_seed(1))
    probe = Probe.from_tokens(ids, max_vectors=192, batch_vectors=96)
    torch.manual_seed(0)
    model = HandWritten()
    found = measure(model, probe, ["next_token_variance", "next_token_variance@no_sink"]).to_pandas()
    states = capture(prepare(model), probe, ["all", "no_sink"])
    assert set(found["layer"]) == {1, 2, 3}  # not at the embedding output
    for row in found.to_dict("records"):
        values = []
        for tokens in probe.sample(row["subset"]):
            points = states.layers[row["layer"]].states[states.rows_of(tokens)]
            windows, positions = np.divmod(tokens, 12)
            following = [ids[w, p + 1].item() if p < 11 else -1 for w, p in zip(windows, positions, strict=True)]
            assert -1 in following
            values.append(class_variance(points, torch.tensor(following)).item())
        assert row["value"] == pytest.approx(np.mean(values), rel=1e-10)
