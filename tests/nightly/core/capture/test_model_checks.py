"""Trials: what is causal, and what depends on the padding."""

from __future__ import annotations

import pytest
import torch
from small import HandWritten, random_tokens
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from repdyn import Probe, measure
from repdyn.capture.capture import capture, causality
from repdyn.capture.trial import prepare

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
}
RAGGED_MASK = torch.arange(9)[None] < torch.tensor([9, 4, 7, 9, 3, 8, 9, 5, 6, 9])[:, None]


@pytest.fixture
def ragged() -> Probe:
    return Probe.from_tokens(random_tokens(10, 9), RAGGED_MASK, max_vectors=56)


class FixedLength(HandWritten):
    """Takes no other length; one divisible by its buckets in lucidrains/reformer-pytorch,
    reformer_pytorch/reformer_pytorch.py.
    """

    def __init__(self, length):
        super().__init__()
        self.table = nn.Parameter(torch.randn(length, 16))

    def forward(self, tokens):
        x = self.token(tokens) + self.table
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("length", [64, 80])
def test_a_model_of_one_length_is_tried_at_that_length(length):
    probe = Probe.from_tokens(random_tokens(4, length), max_vectors=96)
    assert {row.causal for row in measure(FixedLength(length), probe, ["anisotropy"]).rows} == {
        True
    }


class Masked(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        return x + scaled_dot_product_attention(
            q, k, v, attn_mask=self.mask(torch.arange(x.shape[1]))
        )


def masked(mask):
    torch.manual_seed(0)
    model = HandWritten()
    model.position = nn.Embedding(128, 16)
    model.blocks = nn.ModuleList(Masked(mask) for _ in range(3))
    return model


@pytest.mark.parametrize("length", [16, 128])
@pytest.mark.parametrize("size", [4, 16])
def test_attention_in_blocks_is_not_causal(size, length):
    model = masked(lambda i: i[:, None] // size >= i[None] // size)
    probe = Probe.from_tokens(random_tokens(4, length), max_vectors=48)
    assert causality(prepare(model, probe), probe) == {None: False}


@pytest.mark.parametrize(("prefix", "causal"), [(16, True), (40, False)])
def test_a_prefix_is_seen_where_it_is_long(prefix, causal):
    model = masked(lambda i: (i[:, None] >= i[None]) | (i[None] < prefix))
    probe = Probe.from_tokens(random_tokens(4, 64), max_vectors=48)
    assert causality(prepare(model, probe), probe) == {None: causal}


@pytest.mark.parametrize("length", [16, 64])
def test_a_quantised_encoder_is_not_called_a_decoder(length):
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6}
    model = BertModel(BertConfig(vocab_size=50, initializer_range=0.05, **sizes))
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    probe = Probe.from_tokens(random_tokens(10, length), max_vectors=56)
    assert causality(prepare(quantised, probe), probe)[None] is not True


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(50, 16)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2
        )


class Unheeding(Encoder):
    """(huggingface/transformers, src/transformers/models/fnet/modeling_fnet.py)"""

    def forward(self, tokens, **rest):
        return self.encoder(self.token(tokens))


class Heeding(Encoder):
    def forward(self, tokens, attention_mask):
        return self.encoder(self.token(tokens), src_key_padding_mask=attention_mask == 0)


def test_states_that_depend_on_the_padding_are_refused(ragged):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="do not depend on the tokens in the padding.*forward="):
        capture(prepare(Unheeding(), ragged), ragged, ["all"])


def test_padding_that_is_heeded_or_left_to_the_user_is_not_refused(ragged):
    torch.manual_seed(0)
    assert capture(prepare(Heeding(), ragged), ragged, ["all"]).layers
    assert capture(
        prepare(Unheeding(), ragged, forward=lambda model, batch: model(batch.input_ids)),
        ragged,
        ["all"],
    ).layers
    assert capture(
        prepare(LlamaForCausalLM(LlamaConfig(vocab_size=50, **SIZES)), ragged), ragged, ["all"]
    ).layers
