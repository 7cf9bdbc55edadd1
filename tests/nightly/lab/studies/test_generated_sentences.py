"""Simple and complex sentences: the same words, with and without grammar."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from converging import tokenizer as tokenizer
from transformers import PreTrainedTokenizerFast

from repdyn import Probe
from repdyn.lab.studies.generated_sentences import VOCABULARY, sentence_probe, short_sentences

WORDS = sorted({word for words in VOCABULARY.values() for word in words})


def test_two_seeds_have_nearly_the_same_words():
    """Total variation between the word frequencies of 2000 sentences of each kind, of unlike seeds:
    below 5%.
    """
    counts = [
        np.array([Counter(" ".join(some).replace(".", "").split())[word] for word in WORDS])
        for some in (
            short_sentences(2000, seed=1)["simple"],
            short_sentences(2000, seed=2)["complex"],
        )
    ]
    first, second = (count / count.sum() for count in counts)
    assert np.abs(first - second).sum() / 2 < 0.05
    assert min(count.min() for count in counts) > 0


def text_of(probe: Probe, tokenizer: PreTrainedTokenizerFast, name: str) -> list[int]:
    return sorted(probe.tokens[probe.classes[name]].tolist())


def test_the_classes_have_the_same_tokens_and_no_sinks(tokenizer):
    probe = sentence_probe(tokenizer, 200)
    assert text_of(probe, tokenizer, "simple") == text_of(probe, tokenizer, "complex")
    assert torch.equal(probe.classes["simple"] | probe.classes["complex"], ~probe.is_sink)
    assert int((probe.classes["simple"] & probe.classes["complex"]).sum()) == 0
    half = int(probe.classes["simple"].sum())
    assert probe.sample("simple").shape == probe.sample("complex").shape == (4, half // 4)
