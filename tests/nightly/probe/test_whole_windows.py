"""Which windows are measured as a whole."""

from itertools import chain

import numpy as np
import pytest
import torch
from small import random_tokens

from repdyn import Probe


def windows_of(probe):
    """The window of each sequence, by batch; every sequence is the beginning of one window."""
    starts = np.cumsum(probe.lengths.numpy()) - probe.lengths.numpy()
    for tokens in (tokens for batch in probe.whole_windows for tokens in batch):
        window = probe.window_of_token[tokens[0]]
        assert np.array_equal(tokens, starts[window] + np.arange(min(256, int(probe.lengths[window]))))
    return [[int(probe.window_of_token[tokens[0]]) for tokens in batch] for batch in probe.whole_windows]


@pytest.mark.parametrize("design", ["independent", "dense", "paper"])
def test_sixteen_windows_of_each_batch_evenly_spaced(design):
    ids = random_tokens(200, 12)
    probe = Probe.from_tokens(ids, max_vectors=600, batch_vectors=200, design=design)
    batches = windows_of(probe)
    assert [len(batch) for batch in batches] == [16] * 3
    chosen = sorted(chain.from_iterable(batches))
    assert len(set(chosen)) == 48
    assert set(np.diff([*chosen, 200]).tolist()) == {4, 5}
    assert windows_of(Probe.from_tokens(ids, max_vectors=600, batch_vectors=200, design=design)) == batches


def test_fewer_windows_are_shared_out_equally():
    probe = Probe.from_tokens(random_tokens(23, 12), max_vectors=192, batch_vectors=48)
    assert [len(batch) for batch in windows_of(probe)] == [5] * 4
    assert len(set(chain.from_iterable(windows_of(probe)))) == 20


def test_long_windows_are_cut_and_those_of_one_token_left_out():
    lengths = torch.tensor([300, 1, 40, 2, 1, 257, 256, 1, 9])
    mask = torch.arange(300) < lengths[:, None]
    probe = Probe.from_tokens(torch.ones(mask.shape, dtype=torch.long), mask, max_vectors=200, batch_vectors=100)
    assert windows_of(probe) == [[0, 3, 6], [2, 5, 8]]
    assert [len(tokens) for batch in probe.whole_windows for tokens in batch] == [256, 2, 256, 40, 256, 9]
