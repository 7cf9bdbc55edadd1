"""Two sentences through the layers: closed forms, matching, the common fit_plane, and the states themselves."""

from __future__ import annotations

import numpy as np
import pytest

from repdyn.studies.anatomy.trajectories import (
    fit_plane,
)
from repdyn.studies.states import sentences_probe

RANDOM = np.random.default_rng(0)


def test_paths_in_a_plane_keep_their_distances():
    flat = RANDOM.normal(size=(2, 5, 4, 2)) * [3, 1]
    frame = np.linalg.qr(RANDOM.normal(size=(10, 2)))[0]
    one, other = flat @ frame.T + RANDOM.normal(size=10)
    found = fit_plane(one, other)
    assert sum(found.shares) == pytest.approx(1)
    assert found.shares[0] > found.shares[1]
    points = np.concatenate([path.reshape(-1, 2) for path in found.paths])
    before = flat.reshape(-1, 2)
    gaps = [np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (points, before)]
    np.testing.assert_allclose(*gaps, atol=1e-9)
    np.testing.assert_allclose(points.mean(0), 0, atol=1e-9)


def test_a_massive_token_is_left_out_of_the_plane():
    one, other = RANDOM.normal(size=(2, 5, 4, 6))
    alone = fit_plane(one[:, 1:], other)
    one[3, 0] = 500
    found = fit_plane(one, other)
    assert found.left_out == ((0,), ())
    assert np.isnan(found.paths[0][:, 0]).all()
    np.testing.assert_allclose(np.abs(found.paths[0][:, 1:]), np.abs(alone.paths[0]), atol=1e-9)
    assert found.shares == pytest.approx(alone.shares)


@pytest.mark.parametrize(
    "sequences",
    [[[5, 6]], [[5]], [[5], [6, 7]], [[5, 6], [7, 8]], [[5]] * 9 + [[6, 7]], [[5, 6, 7, 8]] * 40],
    ids=["one", "one token", "a single token", "two", "many single tokens", "many"],
)
def test_every_token_is_sampled_however_few_there_are(sequences):
    probe = sentences_probe(sequences)
    n_tokens = sum(map(len, sequences))
    assert probe.tokens[:n_tokens].tolist() == [token for sequence in sequences for token in sequence]
    sampled = {int(token) for subset in ("no_sink", "first_positions") for token in probe.sample(subset).ravel()}
    assert set(range(n_tokens)) <= sampled
