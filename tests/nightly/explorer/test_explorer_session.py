"""What the explorer works out: against a plain run in float64, and against the study of tokens."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import T5Config, T5Model

from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.explorer import session as session_module
from repdyn.explorer.session import Session
from repdyn.studies.anatomy.trajectories import fit_plane, sentence_trajectories
from repdyn.studies.models import LoadedModel
from repdyn.studies.tokens.sentences import capture_sentence, compare_sentence, encode_sentence
from repdyn.studies.tokens.vocabulary_comparison import token_names

SENTENCE = "The £1 coin"


OTHER = "The £2 note"


def looked_at(session, place=3, **settings):
    return session.token(SENTENCE, place, **settings)[0]


def of_family(model, name="other"):
    return Session([LoadedModel(name, model.eval(), byte_tokenizer())], nearest=3, max_tokens=40)


@pytest.mark.parametrize("with_positions", [False, True], ids=["", "positions"])
def test_each_token_has_the_numbers_of_the_study(session, with_positions):
    subject = session.models[0]
    study = compare_sentence(subject, capture_sentence(subject, SENTENCE), k=3, with_positions=with_positions)
    for place in range(len(encode_sentence(subject, SENTENCE))):
        seen = looked_at(session, place, with_positions=with_positions)[0]
        for ours, theirs in ((seen.table, study.table), (seen.nearest, study.nearest)):
            expected = theirs[theirs["position"] == place].reset_index(drop=True).drop(columns="position")
            pd.testing.assert_frame_equal(ours.reset_index(drop=True).drop(columns="position"), expected, rtol=1e-12)


def test_positions_that_a_model_does_not_look_up_are_a_remark_and_the_other_model_is_shown(session):
    found, remarks = session.token(SENTENCE, 3, with_positions=True)
    assert [one.name for one in found] == ["an encoder"]
    assert remarks == [
        "expected one table of positions with 16 dimensions, got none in a decoder; take the position embeddings off"
    ]


def test_each_stack_of_an_encoder_decoder_is_one_of_its_own():
    torch.manual_seed(0)
    sizes = {"vocab_size": 260, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2}
    config = T5Config(**sizes, num_layers=2, num_decoder_layers=1, decoder_start_token_id=0)
    session = of_family(T5Model(config), "t5")
    found, _ = session.token(SENTENCE, 3)
    assert [one.name for one in found] == ["t5 (encoder)", "t5 (decoder)"]
    assert [one.table["layer"].max() for one in found] == [2, 1]
    assert [one.name for one in session.paths(SENTENCE, OTHER, 3)[0]] == ["t5 (encoder)", "t5 (decoder)"]
    assert session.n_layers == 2


def test_paths_are_those_of_the_study_of_anatomy(session):
    found, remarks = session.paths(SENTENCE, OTHER, 3)
    assert remarks == []
    assert [one.place for one in found] == [3, 3]
    for subject, seen in zip(session.models, found, strict=True):
        [(one, other)] = sentence_trajectories(subject, (SENTENCE, OTHER)).values()
        assert seen.one.tokens == tuple(token_names(subject.tokenizer, encode_sentence(subject, SENTENCE)))
        assert np.allclose(seen.one.states, one.states, atol=1e-6)
        assert np.allclose(seen.other.states, other.states, atol=1e-6)
        expected = fit_plane(one.states, other.states)
        # an axis has no sign of its own
        for ours, theirs in zip(seen.plane.paths, expected.paths, strict=True):
            assert np.allclose(np.abs(ours), np.abs(theirs), atol=1e-4)


def test_tokens_with_massive_states_are_left_out_of_the_plane_and_named(session):
    first = session.models[1].model.get_input_embeddings().weight
    with torch.no_grad():
        first[encode_sentence(session.models[1], SENTENCE)[0]] *= 1000
    encoder, decoder = session.paths(SENTENCE, OTHER, 3)[0]
    assert encoder.left_out == []
    assert decoder.left_out == ["T"]


def test_a_sentence_is_read_once_and_forgotten_after_four_others(session, monkeypatch):
    read, whole = [], session_module.capture_sentence
    monkeypatch.setattr(session_module, "capture_sentence", lambda *given: read.append(given[1]) or whole(*given))
    for place in range(3):
        session.token(SENTENCE, place)
    assert read == [SENTENCE] * 2  # by either model
    for number in range(4):
        session.token(f"{SENTENCE} {number}", 0)
    session.token(SENTENCE, 4)
    assert read.count(SENTENCE) == 4


def test_readers_take_turns(session, monkeypatch):
    at_once, most, whole = [0], [0], session_module.capture_sentence
    counting = threading.Lock()

    def slowly(*given):
        with counting:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        time.sleep(0.02)
        found = whole(*given)
        with counting:
            at_once[0] -= 1
        return found

    monkeypatch.setattr(session_module, "capture_sentence", slowly)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: session.token(f"{SENTENCE} {number}", 3), range(4)))
    assert most == [1]
    assert all(len(seen) == 2 for seen, _ in found)
