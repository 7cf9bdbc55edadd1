from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from repdyn.data import tokens
from repdyn.data.tokens import byte_tokenizer, encode

TEXT = "\n".join(f"Line {number} of naïve text, 日本." for number in range(4000)).encode()


def word_tokenizer(*words: str) -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(("[UNK]", *words))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def test_pieces_lose_and_add_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokens, "_CHUNK_CHARACTERS", 1000)
    ids = encode(TEXT, byte_tokenizer(for_encoder=True), tmp_path)
    np.testing.assert_array_equal(ids, np.frombuffer(TEXT, np.uint8))
    assert ids.dtype == np.uint16


def test_the_second_time_nothing_is_tokenized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tokenizer = word_tokenizer("fox", "dog")
    first = encode(b"fox dog", tokenizer, tmp_path)
    monkeypatch.setattr(tokens, "_encode", None)
    np.testing.assert_array_equal(encode(b"fox dog", tokenizer, tmp_path), first)
    assert first.tolist() == [1, 2]


def test_another_text_or_tokenizer_is_another_entry(tmp_path: Path):
    assert encode(b"fox dog", word_tokenizer("fox", "dog"), tmp_path).tolist() == [1, 2]
    assert encode(b"fox dog", word_tokenizer("dog", "fox"), tmp_path).tolist() == [2, 1]
    assert encode(b"dog dog", word_tokenizer("fox", "dog"), tmp_path).tolist() == [2, 2]


def test_a_write_that_breaks_off_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tokens.np, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        encode(b"fox", word_tokenizer("fox"), tmp_path)
    assert list(tmp_path.iterdir()) == []
