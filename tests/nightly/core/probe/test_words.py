"""Words: found in texts, counted, and assigned to the tokens of any tokenizer."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_cases import CURLY, SAMPLE, WORDS, any_tokenizer  # noqa: F401  (a fixture)
from transformers import PreTrainedTokenizerBase

from repdyn.data.tokens import byte_tokenizer
from repdyn.probe import Design
from repdyn.probe.windows import tokenize_windows
from repdyn.probe.word_classes import Lexicon, words_of_bytes, words_of_tokens


def tokens_with_words(
    tokenizer: PreTrainedTokenizerBase, text: str
) -> list[tuple[str, str | None]]:
    """Return each token of a text and its word."""
    lexicon = Lexicon()
    ids, numbers = words_of_tokens(text, tokenizer, lexicon)
    named = [None if number < 0 else lexicon.words[number] for number in numbers]
    return list(zip(tokenizer.convert_ids_to_tokens(ids), named, strict=True))


def words_in(text: str) -> list[str]:
    lexicon = Lexicon()
    return [lexicon.words[number] for number in lexicon.read(text)[2]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("12 3.4 -- _", []),
        ("abc1 1abc a1b abc_ _abc", []),
        ("m² ½ x₁", []),
        ("'tis rock 'n' roll'", ["tis", "rock", "n", "roll"]),
        ("o'clock rock'n'roll it''s", ["o'clock", "rock'n'roll", "it", "s"]),
        ("THE The the", ["the"] * 3),
        ("Straße ÉLAN İstanbul 東京 привет", ["straße", "élan", "i̇stanbul", "東京", "привет"]),
        ("well-known and/or e.g.", ["well", "known", "and", "or", "e", "g"]),
        ("\ud800a\udfff", ["a"]),
    ],
    ids=repr,
)
def test_word_boundaries(text, expected):
    assert words_in(text) == expected


def test_every_token_belongs_to_the_first_word_it_overlaps(tokenizer):
    encoded = tokenizer(SAMPLE, add_special_tokens=False, return_offsets_mapping=True)
    words_found = [
        (match.start(), match.end())
        for match in re.finditer(rf"[A-Za-zïéë]+(['{CURLY}][a-z]+)?", SAMPLE)
        if match[0] not in {"th", "m", "x", "y"}
    ]
    assert len(words_found) == len(WORDS)
    expected = [
        next(
            (WORDS[i] for i, (a, b) in enumerate(words_found) if max(a, start) < min(b, end)), None
        )
        for start, end in encoded["offset_mapping"]
    ]
    words = [word for _, word in tokens_with_words(tokenizer, SAMPLE)]
    assert words == expected
    assert {word for word in words if word} == set(WORDS)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    st.text(
        st.one_of(st.sampled_from(f"aé'{CURLY} 1_.東½"), st.characters(exclude_categories=["Cs"])),
        max_size=40,
    )
)
def test_words_of_bytes_match_those_of_the_byte_tokenizer(text):
    ids, numbers = words_of_tokens(text, byte_tokenizer(), Lexicon())
    assert np.array_equal(words_of_bytes(text.encode(), Lexicon()), numbers)
    assert len(ids) == len(numbers)


def test_windows_do_not_depend_on_words(tokenizer):
    texts = [SAMPLE, "", "12", "The end of the dog. " * 30, "stop"]
    characters = {"n_tokens": 0, "n_windows": 9, "window_characters": 20}
    for sizes in (
        *({"n_tokens": n_tokens, "n_windows": 0} for n_tokens in (10**6, 200, 50)),
        characters,
    ):
        design = Design(
            "test", window_tokens=12, window_characters=sizes.pop("window_characters", None)
        )
        tokens, lengths, words, n_bytes = tokenize_windows(texts, tokenizer, design, True, **sizes)
        plain, same_lengths, none, same_bytes = tokenize_windows(
            texts, tokenizer, design, False, **sizes
        )
        assert none is None
        assert words is not None
        assert n_bytes == same_bytes
        assert torch.equal(tokens, plain)
        assert torch.equal(lengths, same_lengths)
        assert words.numbers.shape == (len(tokens),)
        # words are counted over all texts; window_characters may split words
        if design.window_characters is None:
            assert words.lexicon.counts.sum() == len(WORDS) + 5 * 30 + 1


def test_each_token_of_a_window_has_its_own_word():
    tokens, _, words, bytes_per_token = tokenize_windows(
        [SAMPLE] * 3,
        byte_tokenizer(for_encoder=True),
        Design("test", window_tokens=10),
        True,
        n_tokens=80,
        n_windows=0,
    )
    assert words is not None
    assert bytes_per_token == 1.0
    letters = re.compile(r"[a-z']")
    for token, number in zip(tokens.tolist(), words.numbers, strict=True):
        if token > 255:
            assert number == -1
        elif number >= 0 and token < 128:
            assert letters.fullmatch(chr(token).lower())
            assert chr(token).lower() in words.lexicon.words[number]
