"""What the explorer works out: against a plain run in float64, and against the study of tokens."""

from __future__ import annotations

import re
import threading
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
from explored import SENTENCE
from saved_models import MARKUP

from repdyn import activations
from repdyn.lab.studies.token_measurements import (
    capture_sentence,
    compare_sentence,
    encode_sentence,
)


@pytest.mark.parametrize("settings", [{}, {"with_positions": True}, {"by_distance": True}], ids=str)
def test_each_token_has_the_numbers_of_the_study(session, settings):
    subject = session.models[0]
    study = compare_sentence(subject, capture_sentence(subject, SENTENCE), k=3, **settings)
    for place in range(len(encode_sentence(subject, SENTENCE))):
        [(_, seen), *_], _ = session.token(SENTENCE, place, **settings)
        for ours, theirs in ((seen.table, study.table), (seen.nearest, study.nearest)):
            expected = (
                theirs.query("position == @place").reset_index(drop=True).drop(columns="position")
            )
            pd.testing.assert_frame_equal(
                ours.reset_index(drop=True).drop(columns="position"), expected, rtol=1e-12
            )


def test_paths_are_pictures_of_the_study_of_anatomy(session):
    pictures, remarks = session.paths(SENTENCE, f"The £2 note {MARKUP[0]}")
    assert remarks == []
    assert [re.findall('alt="(.*):', picture)[0] for picture in pictures] == [
        loaded.name for loaded in session.models
    ]
    for picture in pictures:
        [data] = re.findall('src="data:image/svg.xml;base64,([^"<]*)"', picture)
        assert b"<svg" in b64decode(data)


def test_readers_take_turns(session, monkeypatch):
    at_once = [0]
    most = [0]
    whole = activations.layer_states
    counting = threading.Lock()

    def slowly(*arguments, **how):
        with counting:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        time.sleep(0.02)
        answer = whole(*arguments, **how)
        with counting:
            at_once[0] -= 1
        return answer

    monkeypatch.setattr(activations, "layer_states", slowly)
    with ThreadPoolExecutor(4) as pool:
        answer = list(pool.map(lambda number: session.token(f"{SENTENCE} {number}", 3), range(4)))
    assert most == [1]
    assert all(len(seen) == 2 for seen, _ in answer)
