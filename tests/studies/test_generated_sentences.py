"""Simple and complex sentences: the same words, with and without grammar."""

from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from repdyn import Probe
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.studies.convergence import generated_sentences as sentences
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


def test_the_first_sentences_never_change():
    assert complex_sentences(3) == [
        "these singers that many women admire think that every tall boy runs quietly.",
        "the clever baker that these lawyers like thinks that these young painters follow the young women because a sailor helps many clever boys who rest.",
        "every woman hopes that every soldier visits some sailors.",
    ]
    assert complex_sentences(2, seed=7) == [
        "these boys that think that the careful boys sleep believe that a tired king sleeps.",
        "a happy baker that the teacher sees claims that this boy admires some young women.",
    ]
    assert simple_sentences(2) == [
        "boy clever women sailor that like follow young that who a that singers.",
        "these lawyers these painters tall admire these that the the young helps because baker clever every rest many quietly many boys think women runs thinks.",
    ]


@pytest.mark.parametrize("generate", [simple_sentences, complex_sentences])
def test_a_seed_gives_the_same_sentences_and_another_gives_others(generate):
    assert generate(20, seed=3) == generate(20, seed=3)
    assert len(set(generate(20, seed=3)) | set(generate(20, seed=4))) == 40


def test_the_first_complex_sentences_are_the_same_for_any_number():
    assert complex_sentences(30)[:10] == complex_sentences(10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 5])
def test_both_kinds_have_the_same_words_and_lengths(seed):
    simple, ordered = simple_sentences(500, seed), complex_sentences(500, seed)
    assert Counter(" ".join(simple).replace(".", "").split()) == Counter(" ".join(ordered).replace(".", "").split())
    assert [len(words_of(sentence)) for sentence in simple] == [len(words_of(sentence)) for sentence in ordered]
    assert not set(simple) & set(ordered)


@pytest.mark.slow
def test_two_seeds_have_nearly_the_same_words():
    """Total variation between the word frequencies of 2000 sentences of each kind, of unlike seeds: below 5 %."""
    counts = [
        np.array([Counter(" ".join(some).replace(".", "").split())[word] for word in WORDS])
        for some in (simple_sentences(2000, seed=1), complex_sentences(2000, seed=2))
    ]
    first, second = (count / count.sum() for count in counts)
    assert np.abs(first - second).sum() / 2 < 0.05
    assert min(count.min() for count in counts) > 0


def test_sentences_are_of_the_vocabulary():
    for sentence in simple_sentences(200) + complex_sentences(200):
        assert sentence.endswith(".")
        assert set(words_of(sentence)) <= set(WORDS)
        assert 5 <= len(words_of(sentence)) <= 60


@pytest.mark.slow
def test_complex_sentences_are_grammatical_and_simple_ones_are_not():
    assert all(Reader(sentence).reads() for sentence in complex_sentences(1500))
    assert not any(Reader(sentence).reads() for sentence in simple_sentences(1500))


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


def test_every_construction_occurs():
    text = " ".join(complex_sentences(400))
    for word in ("who", "that", *VOCABULARY["subordinator"], *VOCABULARY["preposition"], *VOCABULARY["adverb"]):
        assert f" {word}" in text
    relative = sum(Reader(sentence).words[:4].count("that") > 0 for sentence in complex_sentences(400))
    assert 50 < relative < 350


def test_the_vocabulary_has_both_numbers_of_each_word():
    for category in ("noun", "intransitive verb", "transitive verb", "clausal verb"):
        singular, plural = (VOCABULARY[f"{category}, {number}"] for number in NUMBERS)
        assert len(singular) == len(plural)
        assert not set(singular) & set(plural)
    assert all(word.isalpha() and word.islower() for word in WORDS)
    # "a" stands before any of them
    assert not [word for name in ("adjective", "noun, singular") for word in VOCABULARY[name] if word[0] in "aeiou"]


# the probe


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


def test_the_probe_has_a_sequence_for_each_sentence(tokenizer):
    probe = sentence_probe(tokenizer, 50, seed=2)
    assert len(probe.lengths) == 100
    shown = [
        " ".join(tokenizer.convert_ids_to_tokens(ids[1:-1].tolist()))
        for ids in probe.tokens.split(probe.lengths.tolist())
    ]
    assert [sentence.replace(" .", ".") for sentence in shown] == simple_sentences(50, 2) + complex_sentences(50, 2)
    assert probe.subsets == ("all", "no_sink", "complex", "simple")
    assert probe.hash == sentence_probe(tokenizer, 50, seed=2).hash != sentence_probe(tokenizer, 50).hash


def test_the_classes_have_the_same_tokens_and_no_sinks(tokenizer):
    probe = sentence_probe(tokenizer, 200)
    assert text_of(probe, tokenizer, "simple") == text_of(probe, tokenizer, "complex")
    assert torch.equal(probe.classes["simple"] | probe.classes["complex"], ~probe.is_sink)
    assert int((probe.classes["simple"] & probe.classes["complex"]).sum()) == 0
    half = int(probe.classes["simple"].sum())
    assert probe.sample("simple").shape == probe.sample("complex").shape == (4, half // 4)


def test_batches_are_no_larger_than_any_others(tokenizer):
    probe = sentence_probe(tokenizer, 600, n_batches=2)
    assert probe.sample("simple").shape == probe.sample("no_sink").shape == (2, 4096)


def test_batches_are_of_equal_size_where_kinds_have_unequal_numbers_of_tokens():
    probe = sentence_probe(byte_tokenizer(), 40)
    sizes = {int(members.sum()) for members in probe.classes.values()}
    assert probe.sample("simple").shape == probe.sample("complex").shape == (4, min(sizes) // 4)


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


@pytest.mark.parametrize("generate", [simple_sentences, complex_sentences])
def test_no_sentence_is_none(generate):
    with pytest.raises(ValueError, match="expected at least 1 sentence, got n=-1"):
        generate(-1)


def test_examples_in_docstrings_hold():
    results = doctest.testmod(sentences)
    assert results.attempted > 0
    assert results.failed == 0
