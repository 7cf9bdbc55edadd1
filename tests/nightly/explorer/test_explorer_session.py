"""What the explorer works out: against a plain run in float64, and against the study of tokens."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from test_explorer import SENTENCE

from repdyn.explorer import session as session_module
from repdyn.studies.paths import fit_plane, sentence_trajectories
from repdyn.studies.token_measurements import capture_sentence, compare_sentence, encode_sentence, token_names

OTHER = "The £2 note"


@pytest.mark.parametrize("settings", [{}, {"with_positions": True}, {"by_distance": True}], ids=str)
def test_each_token_has_the_numbers_of_the_study(session, settings):
    subject = session.models[0]
    study = compare_sentence(subject, capture_sentence(subject, SENTENCE), k=3, **settings)
    for place in range(len(encode_sentence(subject, SENTENCE))):
        seen = session.token(SENTENCE, place, **settings)[0][0]
        for ours, theirs in ((seen.table, study.table), (seen.nearest, study.nearest)):
            expected = theirs[theirs["position"] == place].reset_index(drop=True).drop(columns="position")
            pd.testing.assert_frame_equal(ours.reset_index(drop=True).drop(columns="position"), expected, rtol=1e-12)


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
