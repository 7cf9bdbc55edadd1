"""What the explorer works out: against a plain run in float64, and against the study of tokens."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AlbertConfig, AlbertModel, MambaConfig, MambaModel, T5Config, T5Model

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


# one token


def test_a_token_against_a_naive_run_in_float64(session):
    for subject, seen in zip(session.models, looked_at(session, 5), strict=True):
        ids = torch.tensor([encode_sentence(subject, SENTENCE)])
        with torch.no_grad():
            states = subject.model(ids, output_hidden_states=True).hidden_states
        rows = subject.model.get_input_embeddings().weight.detach().double()
        blocks = seen.table[seen.table["state"] == "block"]
        assert blocks["layer"].tolist() == [0, 1, 2]
        # the last of the decoder's own list is after its final norm
        for line in blocks.to_dict("records")[:2]:
            cosines = torch.cosine_similarity(states[line["layer"]][0, 5].double(), rows, dim=1)
            own = cosines[ids[0, 5]]
            assert line["cosine"] == pytest.approx(float(own), abs=1e-6)
            assert line["rank"] == int((cosines > own + 1e-12).sum())
            near = seen.nearest[(seen.nearest["state"] == "block") & (seen.nearest["layer"] == line["layer"])]
            assert near["nearest_id"].tolist() == cosines.topk(3).indices.tolist()
            assert near["cosine"].tolist() == pytest.approx(cosines.topk(3).values.tolist(), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("with_positions", [False, True], ids=["", "positions"])
def test_each_token_has_the_numbers_of_the_study(session, with_positions):
    subject = session.models[0]
    study = compare_sentence(subject, capture_sentence(subject, SENTENCE), k=3, with_positions=with_positions)
    for place in range(len(encode_sentence(subject, SENTENCE))):
        seen = looked_at(session, place, with_positions=with_positions)[0]
        for ours, theirs in ((seen.table, study.table), (seen.nearest, study.nearest)):
            expected = theirs[theirs["position"] == place].reset_index(drop=True).drop(columns="position")
            pd.testing.assert_frame_equal(ours.reset_index(drop=True).drop(columns="position"), expected, rtol=1e-12)


@pytest.mark.slow
def test_positions_that_a_model_does_not_look_up_are_a_remark_and_the_other_model_is_shown(session):
    found, remarks = session.token(SENTENCE, 3, with_positions=True)
    assert [one.name for one in found] == ["an encoder"]
    assert remarks == [
        "expected one table of positions with 16 dimensions, got none in a decoder; take the position embeddings off"
    ]


def test_rows_of_another_dimension_are_a_remark_and_paths_are_shown():
    torch.manual_seed(0)
    sizes = {"vocab_size": 260, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    session = of_family(AlbertModel(AlbertConfig(**sizes, embedding_size=8, num_hidden_layers=2)), "albert")
    found, remarks = session.token(SENTENCE, 3)
    assert found == []
    assert remarks == [
        "expected vectors that can be compared with the input embeddings of albert, but the input embeddings have 8 dimensions, the vectors 16"
    ]
    assert len(session.paths(SENTENCE, OTHER, 3)[0]) == 1


def test_blocks_without_attention_are_a_remark():
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=260, hidden_size=16, num_hidden_layers=2, state_size=4)
    found, remarks = of_family(MambaModel(config), "mamba").token(SENTENCE, 3)
    assert set(found[0].table["state"]) == {"block"}
    assert len(remarks) == 1
    assert remarks[0].startswith("mamba: no state after attention at layer 1: ")
    assert remarks[0].endswith(" (and 1 more)")


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


@pytest.mark.parametrize(
    ("first", "other", "place", "expected"),
    [
        (["▁The", "▁coin"], ["[CLS]", "the", "coin", "[SEP]"], 1, 2),
        (["co", "in"], ["coin"], 0, None),
        (["a", "b", "a"], ["a", "b", "a"], 2, 2),
    ],
    ids=["other marks", "split differently", "the same"],
)
def test_a_token_of_one_model_is_found_among_another_s(first, other, place, expected):
    assert session_module._same_place(first, other, place) == expected


# two sentences


@pytest.mark.slow
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


@pytest.mark.slow
def test_tokens_with_massive_states_are_left_out_of_the_plane_and_named(session):
    first = session.models[1].model.get_input_embeddings().weight
    with torch.no_grad():
        first[encode_sentence(session.models[1], SENTENCE)[0]] *= 1000
    encoder, decoder = session.paths(SENTENCE, OTHER, 3)[0]
    assert encoder.left_out == []
    assert decoder.left_out == ["T"]


# what is refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("  ", "expected a sentence, got nothing; type one"),
        ("a", "expected a sentence of 2 or more tokens for an encoder, got 1"),
        (
            "a" * 41,
            "expected a sentence of at most 40 tokens for an encoder, got 41; shorten it, or start with a larger --max-tokens",
        ),
        ("a" * 65, "expected a sentence of 2 to 64 tokens for an encoder, got 65"),
        ("a" * 9999, "expected a sentence of at most 1,280 characters, got 9,999; shorten it"),
    ],
    ids=["blank", "one token", "too long", "longer than the model takes", "endless"],
)
def test_a_sentence_that_is_too_short_or_too_long_is_refused(session, sentence, message):
    for ask in (
        lambda: session.tokens(sentence),
        lambda: session.token(sentence, 0),
        lambda: session.paths(SENTENCE, sentence, 0),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            ask()


@pytest.mark.slow
@pytest.mark.parametrize("place", [-1, 12])
def test_a_place_beyond_the_sentence_is_refused(session, place):
    message = f"expected a token from 0 to 11, got {place}; choose one of the sentence"
    with pytest.raises(ValueError, match=message):
        session.token(SENTENCE, place)
    with pytest.raises(ValueError, match=message):
        session.paths(SENTENCE, OTHER, place)


def test_half_a_character_is_read_as_a_question_mark(session):
    assert session.tokens("a\ud800b") == ("a", "?", "b")


# what is remembered


@pytest.mark.slow
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


@pytest.mark.slow
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
