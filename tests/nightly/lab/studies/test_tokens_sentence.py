"""Tokens of a sentence against the vocabulary: functions against naive ones, and a causal mask
taken off.
"""

from __future__ import annotations

import pytest
import torch
from studied_sentences import subject as subject
from torch.nn.functional import cosine_similarity
from transformers import MambaConfig, MambaModel

from repdyn.activations import LoadedModel
from repdyn.data.tokens import byte_tokenizer
from repdyn.lab.studies.token_measurements import (
    capture_sentence,
    compare_sentence,
    encode_sentence,
    without_causal_mask,
)

SENTENCE = "The £1 coin"


def test_a_position_is_added_to_every_row(subject):
    compared = compare_sentence(
        subject, capture_sentence(subject, SENTENCE), k=3, with_positions=True
    )
    embeddings, ids = subject.model.embeddings, encode_sentence(subject, SENTENCE)
    added = embeddings.position_embeddings.weight[: len(ids)]
    with torch.no_grad():
        entering = embeddings(torch.tensor([ids]))[0].double()
        rows = embeddings.word_embeddings.weight.double()[None] + added.double()[:, None]
    cosines = cosine_similarity(entering[:, None], rows, dim=2)
    to_token = cosines[torch.arange(len(ids)), ids]
    lines = compared.table.query("layer == 0")
    assert lines["cosine"].tolist() == pytest.approx(to_token.tolist(), rel=1e-4)
    assert lines["rank"].tolist() == (cosines > to_token[:, None]).sum(1).tolist()


def test_a_decoder_that_keeps_its_mask_is_refused():
    model = MambaModel(
        MambaConfig(hidden_size=16, num_hidden_layers=2, state_size=4, vocab_size=260)
    ).eval()
    with (
        pytest.raises(
            ValueError,
            match=(
                "expected a decoder whose causal mask transformers can take off, but mamba keeps "
                "it; leave no_causal_mask= out"
            ),
        ),
        without_causal_mask(LoadedModel("mamba", model, byte_tokenizer()), SENTENCE),
    ):
        pass
    assert "is_causal" not in vars(model.config)
