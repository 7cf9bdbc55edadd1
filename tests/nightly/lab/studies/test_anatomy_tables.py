"""Which tables a model has, in which rows its positions begin, and which rows mean something."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from repdyn.activations import find_lookups

IDS = np.random.default_rng(0).permutation(np.arange(5, 90))[:16].tolist()
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
WORDS, PLACES, PARTS = (
    f"embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")
)
BART = {"decoder_layers": 1, "decoder_attention_heads": 2}


@pytest.mark.parametrize(
    ("family", "settings", "expected"),
    [
        ("bert", {}, [("input", WORDS, 0), ("position", PLACES, 0), ("segment", PARTS, 0)]),
        (
            "roberta",
            {"type_vocab_size": 1},
            [("input", WORDS, 0), ("position", PLACES, 2), ("segment", PARTS, 0)],
        ),
        (
            "albert",
            {"embedding_size": 8},
            [("input", WORDS, 0), ("position", PLACES, 0), ("segment", PARTS, 0)],
        ),
        ("distilbert", {}, [("input", WORDS, 0), ("position", PLACES, 0)]),
        (
            "distilbert",
            {"sinusoidal_pos_embds": True},
            [("input", WORDS, 0), ("position", PLACES, 0)],
        ),
        (
            "gpt2",
            {"bos_token_id": 0, "eos_token_id": 0},
            [("input", "wte.weight", 0), ("position", "wpe.weight", 0)],
        ),
        (
            "opt",
            {},
            [
                ("input", "decoder.embed_tokens.weight", 0),
                ("position", "decoder.embed_positions.weight", 2),
            ],
        ),
        ("llama", {}, [("input", "embed_tokens.weight", 0)]),
        ("bloom", {}, [("input", "word_embeddings.weight", 0)]),
        (
            "bart",
            BART,
            [
                ("input", "shared.weight", 0),
                ("position", "encoder.embed_positions.weight", 2),
                ("position", "decoder.embed_positions.weight", 2),
            ],
        ),
        ("t5", {"decoder_start_token_id": 0}, [("input", "shared.weight", 0)]),
    ],
)
def test_the_tables_of_each_family(family, settings, expected):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, vocab_size=100, max_position_embeddings=64, **SIZES, **settings
    )
    built = AutoModel.from_config(config)
    lookups = find_lookups(built, IDS)
    assert [(lookup.kind, lookup.parameter, lookup.first_row) for lookup in lookups] == expected
    for lookup in lookups:
        assert torch.equal(lookup.weight, built.get_parameter(lookup.parameter))
