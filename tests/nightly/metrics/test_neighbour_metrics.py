"""Shared neighbours through measure: the same tokens, and none of a token's own window, at every layer and checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import HandWritten, random_tokens

from repdyn import Probe, measure
from repdyn.capture.capture import capture
from repdyn.capture.prepared_model import prepare
from repdyn.store.schema import Checkpoint
from repdyn.store.state_cache import StateCache

K = 10


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)


def model(seed: int) -> HandWritten:
    torch.manual_seed(seed)
    return HandWritten()


def states_of(model, probe) -> list[list[np.ndarray]]:
    """By layer and batch."""
    states = capture(prepare(model), probe, ["all"])
    return [
        [layer.states[states.rows_of(tokens)].double().numpy() for tokens in probe.sample("all")]
        for layer in states.layers
    ]


def naive(a: np.ndarray, b: np.ndarray, windows: np.ndarray) -> float:
    """Shared neighbours above chance, outside of each token's window, among vectors that are new in both clouds."""
    first = [set(np.unique(x, axis=0, return_index=True)[1]) for x in (a, b)]
    kept = sorted(first[0] & first[1])
    a, b, windows = a[kept], b[kept], windows[kept]
    allowed = windows[:, None] != windows
    found = []
    for x in (a, b):
        distances = np.linalg.norm(x[:, None] - x, axis=-1)
        found.append(np.where(allowed, distances, np.inf).argsort(1)[:, :K])
    overlap = np.mean([len(set(own) & set(other)) for own, other in zip(*found, strict=True)]) / K
    chance = np.mean(K / allowed.sum(1))
    return (overlap - chance) / (1 - chance)


def test_a_layer_shares_neighbours_with_the_last(probe):
    layers = states_of(model(0), probe)
    windows = [probe.window_of_token[tokens] for tokens in probe.sample("all")]
    expected = [np.mean([naive(*batch) for batch in zip(of, layers[-1], windows, strict=True)]) for of in layers]
    found = measure(model(0), probe, ["mutual_knn"]).to_pandas()
    assert found["value"].to_numpy() == pytest.approx(expected, abs=1e-12)
    assert found["value"].iloc[-1] == 1
    assert found["own_window_excluded"].tolist() == [True] * len(layers)


def test_a_layer_shares_neighbours_with_itself_before(tmp_path, probe):
    state_cache = StateCache(tmp_path, run="r", probe=probe.hash)
    measure(model(0), probe, ["mutual_knn_previous"], state_cache=state_cache)
    later = Checkpoint(step=5)
    found = measure(model(1), probe, ["mutual_knn_previous"], state_cache=state_cache, checkpoint=later).to_pandas()
    windows = probe.window_of_token[probe.sample("all")[0]]
    before, after = states_of(model(0), probe), states_of(model(1), probe)
    expected = [naive(own[0], other[0], windows) for own, other in zip(after, before, strict=True)]
    assert found["value"].to_numpy() == pytest.approx(expected, abs=1e-12)
    assert set(found["compared_to"]) == {0}
