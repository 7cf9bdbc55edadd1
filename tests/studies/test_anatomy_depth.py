"""Two sentences through the layers: closed forms, matching, the common fit_plane, and the states themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import AutoModel

from repdyn.studies.anatomy.trajectories import (
    TokenTrajectory,
    cross_sentence_cosine,
    fit_plane,
    match_tokens,
    norms,
    step_cosines,
    step_norms,
    trajectory_table,
)
from repdyn.studies.states import LayerKey, sentences_probe, token_states

RANDOM = np.random.default_rng(0)


def journey(states: np.ndarray, *tokens: str) -> TokenTrajectory:
    names = tokens or tuple(f"t{place}" for place in range(states.shape[1]))
    return TokenTrajectory(names, states, tuple(LayerKey(index, None) for index in range(len(states))))


# step_norms


def test_a_token_that_turns_and_grows():
    # one token: (1, 0), (0, 1), (0, 3)
    states = np.array([[[1.0, 0]], [[0, 1]], [[0, 3]]])
    np.testing.assert_allclose(norms(states), [[1], [1], [3]])
    np.testing.assert_allclose(step_norms(states), [[math.sqrt(2)], [2]])
    np.testing.assert_allclose(step_cosines(states), [[0], [1]], atol=1e-15)


def test_evolution_is_one_line_for_each_layer_and_token():
    states = RANDOM.normal(size=(4, 3, 5))
    table = trajectory_table(journey(states, "a", "b", "c"))
    assert len(table) == 12
    line = table.query("layer == 2 and place == 1").iloc[0]
    assert line["token"] == "b"
    assert line["norm"] == pytest.approx(np.linalg.norm(states[2, 1]))
    assert line["step"] == pytest.approx(np.linalg.norm(states[3, 1] - states[2, 1]))
    here, there = states[2, 1], states[3, 1]
    assert line["cosine"] == pytest.approx(here @ there / np.linalg.norm(here) / np.linalg.norm(there))
    assert table.query("layer == 3")[["step", "cosine"]].isna().all(axis=None)


# matching


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("the river bank", "the savings bank", [(0, 0, True), (1, 1, False), (2, 2, True)]),
        ("the old bank", "the bank", [(0, 0, True), (2, 1, True)]),
        ("a b", "c d", [(0, 0, False), (1, 1, False)]),
        ("a b c", "a x y c", [(0, 0, True), (2, 3, True)]),
        ("a", "b c", []),
    ],
    ids=["replaced", "missing", "nothing alike", "longer", "nothing matched"],
)
def test_which_tokens_stand_for_each_other(one, other, expected):
    assert match_tokens(one.split(), other.split()) == expected


def test_matched_tokens_layer_by_layer():
    one = journey(np.array([[[1.0, 0], [1, 0]], [[1, 0], [1, 0]]]), "a", "b")
    other = journey(np.array([[[2.0, 0], [0, 1]], [[0, 1], [1, 1]]]), "a", "c")
    np.testing.assert_allclose(cross_sentence_cosine(one, other), [[1, 0], [0, math.sqrt(0.5)]], atol=1e-15)


# the fit_plane


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


# states


def test_states_are_those_of_the_model_token_by_token(save_model):
    model = AutoModel.from_pretrained(save_model()).eval()
    sequences = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14]]
    found = list(token_states(model, sequences))
    assert [layer for layer, _ in found] == [LayerKey(0, None), LayerKey(1, None), LayerKey(2, None)]
    for number, sequence in enumerate(sequences):
        start = sum(map(len, sequences[:number]))
        with torch.no_grad():
            expected = model(torch.tensor([sequence]), output_hidden_states=True).hidden_states
        for (_, states), whole in zip(found, expected, strict=True):
            torch.testing.assert_close(states[start : start + len(sequence)], whole[0], rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("sequences", [[], [[]], [[5, 6], []]], ids=["none", "empty", "one empty"])
def test_sentences_that_make_no_probe(sequences):
    with pytest.raises(
        ValueError, match=r"^expected sentences of at least one token, got lengths \[.*\]; leave empty texts out$"
    ):
        sentences_probe(sequences)
