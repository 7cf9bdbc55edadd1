"""Simple and complex sentences: the same words, with and without grammar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from repdyn import Probe
from repdyn.studies.convergence.generated_sentences import (
    VOCABULARY,
    complex_sentences,
    sentence_probe,
    simple_sentences,
)

NUMBERS = ("singular", "plural")


WORDS = sorted({word for words in VOCABULARY.values() for word in words})


def words_of(sentence: str) -> list[str]:
    return sentence.removesuffix(".").split()


class Reader:
    """Reads the grammar as it is written down, symbol by symbol: from a place to all places where a symbol may end."""

    def __init__(self, sentence: str) -> None:
        self.words = words_of(sentence)

    def reads(self) -> bool:
        return any(
            end == len(self.words)
            for number in NUMBERS
            for end in (*self.with_relative(number), *self.with_complement(number), *self.with_subordinate())
        )

    def with_relative(self, number: str) -> Iterator[int]:
        for noun in self.nominal(0, number):
            for relative in self.relative(noun, number, 0):
                yield from self.verb_phrase(relative, number, 0)

    def with_complement(self, number: str) -> Iterator[int]:
        for subject in self.noun_phrase(0, number, 0):
            for verb in self.word(subject, f"clausal verb, {number}"):
                for that in self.word(verb, "complementizer"):
                    yield from self.clause(that, 0)

    def with_subordinate(self) -> Iterator[int]:
        for main in self.clause(0, 0):
            for subordinator in self.word(main, "subordinator"):
                yield from self.clause(subordinator, 0)

    def word(self, at: int, category: str) -> Iterator[int]:
        if at < len(self.words) and self.words[at] in VOCABULARY[category]:
            yield at + 1

    def perhaps(self, at: int, category: str) -> Iterator[int]:
        yield at
        yield from self.word(at, category)

    def clause(self, at: int, depth: int) -> Iterator[int]:
        if depth > 3:
            return
        for number in NUMBERS:
            for subject in self.noun_phrase(at, number, depth):
                yield from self.verb_phrase(subject, number, depth)

    def nominal(self, at: int, number: str) -> Iterator[int]:
        for determiner in self.word(at, f"determiner, {number}"):
            for adjective in self.perhaps(determiner, "adjective"):
                yield from self.word(adjective, f"noun, {number}")

    def noun_phrase(self, at: int, number: str, depth: int) -> Iterator[int]:
        for noun in self.nominal(at, number):
            yield noun
            yield from self.relative(noun, number, depth + 1)
            for preposition in self.word(noun, "preposition"):
                if self.words[preposition : preposition + 1] == ["the"]:
                    yield from self.word(preposition + 1, "place")

    def relative(self, at: int, number: str, depth: int) -> Iterator[int]:
        if depth > 3:
            return
        for pronoun in self.word(at, "relative pronoun"):
            yield from self.verb_phrase(pronoun, number, depth)
            if self.words[at] == "that":
                for other in NUMBERS:
                    for subject in self.nominal(pronoun, other):
                        yield from self.word(subject, f"transitive verb, {other}")

    def verb_phrase(self, at: int, number: str, depth: int) -> Iterator[int]:
        for verb in self.word(at, f"intransitive verb, {number}"):
            yield from self.perhaps(verb, "adverb")
        for verb in self.word(at, f"transitive verb, {number}"):
            for other in NUMBERS:
                yield from self.noun_phrase(verb, other, depth)
        for verb in self.word(at, f"clausal verb, {number}"):
            for that in self.word(verb, "complementizer"):
                yield from self.clause(that, depth + 1)


def test_two_seeds_have_nearly_the_same_words():
    """Total variation between the word frequencies of 2000 sentences of each kind, of unlike seeds: below 5 %."""
    counts = [
        np.array([Counter(" ".join(some).replace(".", "").split())[word] for word in WORDS])
        for some in (simple_sentences(2000, seed=1), complex_sentences(2000, seed=2))
    ]
    first, second = (count / count.sum() for count in counts)
    assert np.abs(first - second).sum() / 2 < 0.05
    assert min(count.min() for count in counts) > 0


@pytest.mark.parametrize("category", ["noun", "intransitive verb", "transitive verb", "clausal verb"])
def test_a_word_of_the_other_number_breaks_agreement(category):
    singular, plural = (VOCABULARY[f"{category}, {number}"] for number in NUMBERS)
    other = dict(zip(singular + plural, plural + singular, strict=True))
    tried = 0
    for sentence in complex_sentences(300):
        words = words_of(sentence)
        for place in [place for place, word in enumerate(words) if word in other]:
            tried += 1
            changed = [*words[:place], other[words[place]], *words[place + 1 :]]
            # "the" goes with both numbers, so that an object has nothing to agree with
            if category != "noun" or words[place - 1] in {"a", "every", "this", "some", "many", "these"}:
                assert not Reader(" ".join(changed)).reads(), " ".join(changed)
    assert tried > 50


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each word, with a prefix and a suffix as BERT has."""
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[CLS]", "[SEP]", ".", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[PAD]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")


def text_of(probe: Probe, tokenizer: PreTrainedTokenizerFast, name: str) -> list[int]:
    return sorted(probe.tokens[probe.classes[name]].tolist())


def test_the_classes_have_the_same_tokens_and_no_sinks(tokenizer):
    probe = sentence_probe(tokenizer, 200)
    assert text_of(probe, tokenizer, "simple") == text_of(probe, tokenizer, "complex")
    assert torch.equal(probe.classes["simple"] | probe.classes["complex"], ~probe.is_sink)
    assert int((probe.classes["simple"] & probe.classes["complex"]).sum()) == 0
    half = int(probe.classes["simple"].sum())
    assert probe.sample("simple").shape == probe.sample("complex").shape == (4, half // 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "expected at least 1 sentence, got n=0"),
        ({"n": 1, "n_batches": 9}, "expected 3 tokens of each kind of sentence for each of 9 batches, got 14 from 1 sentences; raise n, or lower n_batches"),
        ({"n": 20, "n_batches": 0}, "expected n_batches >= 1, got 0"),
        ({"n": 20, "sequence_length": 12}, r"expected sequences that hold a sentence each, got sequence_length=12, which cuts \d+ times; raise sequence_length"),
    ],
)  # fmt: skip
def test_refusals(tokenizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        sentence_probe(tokenizer, **arguments)
