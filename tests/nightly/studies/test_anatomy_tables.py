"""Which tables a model has, in which rows its positions begin, and which rows mean something."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AlbertConfig,
    AlbertModel,
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    BloomConfig,
    BloomModel,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    OPTConfig,
    OPTModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5Model,
)

from repdyn.studies.anatomy.measurements import UNUSED_TOKEN, embedding_tables
from repdyn.studies.lookups import find_lookups

IDS = np.random.default_rng(0).permutation(np.arange(5, 90))[:16].tolist()


BASE = {
    **{"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    "max_position_embeddings": 64,
}


DISTIL = {"vocab_size": 100, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 64}


GPT2 = {"vocab_size": 100, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "bos_token_id": 0}


OPT = {**BASE, "ffn_dim": 32, "word_embed_proj_dim": 16}


BART = {
    **{"vocab_size": 100, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
    **{"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64},
}


T5 = {"vocab_size": 100, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}


WORDS, PLACES, PARTS = (f"embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type"))


@pytest.mark.parametrize(
    ("model", "config", "expected"),
    [
        (BertModel, BertConfig(**BASE), [("input", WORDS, 0), ("position", PLACES, 0), ("segment", PARTS, 0)]),
        (
            RobertaModel,
            RobertaConfig(**BASE, type_vocab_size=1),
            [("input", WORDS, 0), ("position", PLACES, 2), ("segment", PARTS, 0)],
        ),
        (
            AlbertModel,
            AlbertConfig(**BASE, embedding_size=8),
            [("input", WORDS, 0), ("position", PLACES, 0), ("segment", PARTS, 0)],
        ),
        (DistilBertModel, DistilBertConfig(**DISTIL), [("input", WORDS, 0), ("position", PLACES, 0)]),
        (
            DistilBertModel,
            DistilBertConfig(**DISTIL, sinusoidal_pos_embds=True),
            [("input", WORDS, 0), ("position", PLACES, 0)],
        ),
        (GPT2Model, GPT2Config(**GPT2), [("input", "wte.weight", 0), ("position", "wpe.weight", 0)]),
        (
            OPTModel,
            OPTConfig(**OPT),
            [("input", "decoder.embed_tokens.weight", 0), ("position", "decoder.embed_positions.weight", 2)],
        ),
        (LlamaModel, LlamaConfig(**BASE), [("input", "embed_tokens.weight", 0)]),
        (
            BloomModel,
            BloomConfig(vocab_size=100, hidden_size=16, n_layer=1, n_head=2),
            [("input", "word_embeddings.weight", 0)],
        ),
        (
            BartModel,
            BartConfig(**BART),
            [
                ("input", "shared.weight", 0),
                ("position", "encoder.embed_positions.weight", 2),
                ("position", "decoder.embed_positions.weight", 2),
            ],
        ),
        (T5Model, T5Config(**T5, decoder_start_token_id=0), [("input", "shared.weight", 0)]),
    ],
    ids=["bert", "roberta", "albert", "distilbert", "sinusoids", "gpt2", "opt", "llama", "bloom", "bart", "t5"],
)
def test_the_tables_of_each_family(model, config, expected):
    torch.manual_seed(0)
    built = model(config)
    found = find_lookups(built, IDS)
    assert [(lookup.kind, lookup.parameter, lookup.first_row) for lookup in found] == expected
    for lookup in found:
        assert torch.equal(lookup.weight, built.get_parameter(lookup.parameter))


def test_looking_changes_nothing():
    torch.manual_seed(0)
    model = BertModel(BertConfig(**BASE)).train()
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    find_lookups(model, IDS)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_without_an_input_table(monkeypatch):
    model = LlamaModel(LlamaConfig(**BASE))
    weight = model.embed_tokens.weight
    monkeypatch.setattr(
        model.embed_tokens, "forward", lambda ids: torch.nn.functional.one_hot(ids, 100).float() @ weight
    )
    message = "expected a model that looks its tokens up in a table, but LlamaModel looks up none at their ids; "
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        find_lookups(model, IDS)


def tokenizer_of(*tokens: str) -> PreTrainedTokenizerFast:
    words = {token: number for number, token in enumerate(tokens)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[UNK]")), unk_token="[UNK]", cls_token="[CLS]"
    )


@pytest.mark.parametrize(
    "token",
    ["[unused17]", "<unused3>", "<unused_3>", "<|unused_3|>", "<|reserved_special_token_8|>", "madeupword0002"],
)
def test_names_of_unused_tokens(token):
    used = [f"word{n}" for n in range(20)]
    words, *_ = embedding_tables(
        LlamaModel(LlamaConfig(**BASE)), tokenizer_of("[UNK]", "[CLS]", token, "unused1", *used)
    )
    assert words.left_out[UNUSED_TOKEN] == 1
    assert token not in words.labels
    assert "unused1" in words.labels
