"""Which tables a model has, in which rows its positions begin, and which rows mean something."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_anatomy import BASE
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
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5Model,
)

from repdyn.reading import find_lookups

IDS = np.random.default_rng(0).permutation(np.arange(5, 90))[:16].tolist()


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
