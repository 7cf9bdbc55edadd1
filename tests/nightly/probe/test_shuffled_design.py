"""The design ``shuffled``: the same windows with their text tokens in random order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from distinct_tokens import make_probe
from small import random_tokens

from repdyn import Probe
from repdyn.data.byte_tokenizer import byte_tokenizer


def in_windows(probe: Probe) -> list[list[int]]:
    return [window.tolist() for window in probe.tokens.split(probe.lengths.tolist())]


def test_each_window_keeps_its_tokens():
    sane, shuffled = make_probe(), make_probe(design="shuffled")
    assert sane.lengths.equal(shuffled.lengths)
    assert [sorted(window) for window in in_windows(shuffled)] == in_windows(sane)
    # of 30 distinct tokens, one place in thirty is the same by chance
    assert (sane.tokens == shuffled.tokens).float().mean() < 0.1
    assert all((np.diff(window) != 1).any() for window in in_windows(shuffled))


def test_the_same_vectors_are_sampled_and_the_hash_differs():
    sane, shuffled = make_probe(), make_probe(design="shuffled")
    assert np.array_equal(sane.sample("all"), shuffled.sample("all"))
    assert sane.hash != shuffled.hash
    assert shuffled.hash == make_probe(design="shuffled").hash
    assert shuffled.tokens.ne(make_probe(design="shuffled", seed=1).tokens).any()


@pytest.mark.parametrize("special", [[0], [0, 9], []])
def test_special_tokens_and_padding_stay_where_they_are(special):
    tokens = random_tokens(50, 30).clamp(min=10)
    tokens[:, 0], tokens[:, 7] = 0, 9
    mask = torch.arange(30) < torch.arange(12, 62)[:, None]
    given = {"special_ids": special, "max_vectors": 600, "batch_vectors": 200}
    sane, shuffled = (Probe.from_tokens(tokens, mask, design=name, **given) for name in ("independent", "shuffled"))
    is_special = torch.isin(sane.tokens, torch.tensor(special, dtype=torch.long))
    assert shuffled.tokens[is_special].equal(sane.tokens[is_special])
    assert [sorted(window) for window in in_windows(shuffled)] == [sorted(window) for window in in_windows(sane)]
    assert shuffled.is_sink.equal(sane.is_sink) or not special


def test_words_stay_with_their_tokens():
    texts = ["the dog sees it and 3 birds do not. a cat of the house saw them too; " * 80]
    given = {"sequence_length": 40, "max_vectors": 300, "batch_vectors": 100, "classes": ["function", "content"]}
    sane, shuffled = (
        Probe.from_texts(texts, byte_tokenizer(for_encoder=True), design=name, **given)
        for name in ("independent", "shuffled")
    )
    assert sane.classes.keys() == shuffled.classes.keys()
    for name, members in shuffled.classes.items():
        own = zip(
            sane.tokens[sane.classes[name]].tolist(),
            sane.window_of_token[sane.classes[name].numpy()].tolist(),
            strict=True,
        )
        found = zip(shuffled.tokens[members].tolist(), shuffled.window_of_token[members.numpy()].tolist(), strict=True)
        assert sorted(own) == sorted(found)
