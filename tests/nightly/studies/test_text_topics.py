"""Topics found in text, and the tokens that are given them."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from repdyn.probe.word_classes import Lexicon
from repdyn.studies.topics.text_topics import TextTopics, find_topics

THEMES = (
    "river water stream valley flood bridge mountain shore delta harbour",
    "music song album concert singer guitar piano opera violin melody",
    "match league goal season team player coach stadium trophy referee",
    "bread butter cheese pepper kitchen recipe oven flavour soup sugar",
    "planet orbit star telescope comet galaxy moon eclipse rocket meteor",
)


N = len(THEMES)


def made_up(n_documents=60, length=60, own_share=1.0, seed=0) -> list[str]:
    """Each document of one theme, perhaps with some of the next, function words, and a word that is in all of them."""
    random = np.random.RandomState(seed)
    documents = []
    for number in range(n_documents):
        own, other = (random.choice(THEMES[(number + shift) % N].split(), length) for shift in (0, 1))
        words = np.where(random.random_sample(length) < own_share, own, other)
        between = random.choice(["the", "of", "and", "everywhere"], length)
        documents.append(" ".join(f"{a} {b}" for a, b in zip(between, words, strict=True)))
    return documents


def tokenizer_of(words, split=()) -> PreTrainedTokenizerFast:
    """Whole words, but those to be split, of which each is two tokens."""
    pieces = [word for word in words if word not in split]
    pieces += [piece for word in split for piece in (word[:3], f"##{word[3:]}")]
    vocabulary = {token: number for number, token in enumerate(["[UNK]", *dict.fromkeys(pieces)])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


ALL_WORDS = [*" ".join(THEMES).split(), "the", "of", "and", "everywhere"]


@pytest.fixture(scope="module")
def found() -> TextTopics:
    # some seeds end with two topics for one theme
    return find_topics(made_up(), n_topics=N, seed=1)


def test_the_same_seed_finds_the_same(found):
    again = find_topics(made_up(), n_topics=N, seed=1)
    assert (again.word_shares == found.word_shares).all()
    assert (find_topics(made_up(), n_topics=N, seed=2).word_shares != found.word_shares).any()


def test_a_word_has_the_topic_that_most_likely_wrote_it_in_its_document():
    lexicon = Lexicon()
    lexicon.read("bank river money")
    topics = TextTopics(
        ["", ""],
        lexicon,
        np.array([0, 1, 2]),
        word_shares=np.array([[0.5, 0.5, 0.0], [0.4, 0.0, 0.6]]),
        document_shares=np.array([[0.9, 0.1], [0.45, 0.55]]),
    )
    words = ["bank", "river", "money", "other"]
    assert topics.of_words(0, words).tolist() == [0, 0, 1, -1]
    # 0.5 * 0.45 = 0.225 against 0.4 * 0.55 = 0.22
    assert topics.of_words(1, words).tolist() == [0, 0, 1, -1]
    assert topics.of_words(1, words, certainty=0.51).tolist() == [-1, 0, 1, -1]


@pytest.mark.parametrize("which", ["whole", "last"])
def test_words_of_several_tokens(found, which):
    split = ("mountain", "concert", "stadium")
    tokenizer = tokenizer_of(ALL_WORDS, split)
    probe = found.probe(tokenizer, sequence_length=24, n_sequences=30, tokens_of_words=which)
    tokens = tokenizer.convert_ids_to_tokens(probe.tokens.tolist())
    topics = probe.topics.tolist()
    first = [topic for token, topic in zip(tokens, topics, strict=True) if token in {word[:3] for word in split}]
    last = [topic for token, topic in zip(tokens, topics, strict=True) if token.startswith("##")]
    assert set(first) == {-1}
    if which == "whole":
        assert set(last) == {-1}
    else:
        assert len(set(last) - {-1}) >= 2


@pytest.mark.parametrize(
    ("documents", "n_topics", "message"),
    [
        (made_up(), 1, "expected at least 2 topics, got 1"),
        (
            made_up(6, 5),
            20,
            "expected at least 20 documents and as many words for 20 topics, got 6 documents and 0 words that are in 5 of them or more, and in at most 20%; give more text",
        ),
        (
            [],
            20,
            "expected at least 20 documents and as many words for 20 topics, got 0 documents and 0 words that are in 5 of them or more, and in at most 20%; give more text",
        ),
    ],
)
def test_too_little_to_find_topics_in(documents, n_topics, message):
    with pytest.raises(ValueError, match="expected") as raised:
        find_topics(documents, n_topics)
    assert str(raised.value) == message


def test_without_scikit_learn(monkeypatch):
    imported = builtins.__import__

    def without(name, *arguments, **more):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return imported(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match="expected") as raised:
        find_topics(made_up())
    assert str(raised.value) == (
        "expected scikit-learn, which finds the topics, but it is not installed; pip install 'repdyn[topics]'"
    )
