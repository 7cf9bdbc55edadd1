from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from repdyn.data.tokens import byte_tokenizer

# UTF-8 cannot write surrogates
UTF8_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SPECIAL_IDS = {"[PAD]": 256, "[CLS]": 257, "[SEP]": 258, "[MASK]": 259}


@pytest.fixture(scope="module", params=[False, True], ids=["decoder", "encoder"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return byte_tokenizer(for_encoder=request.param)


@given(text=UTF8_TEXT)
def test_ids_are_the_bytes_and_decode_to_the_text(tokenizer: PreTrainedTokenizerBase, text: str):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("spelling", SPECIAL_IDS)
def test_a_special_token_spelled_in_a_text_is_text(
    tokenizer: PreTrainedTokenizerBase, spelling: str
):
    assert tokenizer(f"a{spelling}b", add_special_tokens=False).input_ids == list(
        f"a{spelling}b".encode()
    )


def test_saving_and_loading_changes_nothing(tokenizer: PreTrainedTokenizerBase, tmp_path: Path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "naïve [MASK] 日本"
    assert loaded(text).input_ids == tokenizer(text).input_ids
    assert loaded.decode(loaded(text, add_special_tokens=False).input_ids) == text
    assert sorted(loaded.all_special_ids) == sorted(tokenizer.all_special_ids)
    assert loaded.mask_token_id == 259
