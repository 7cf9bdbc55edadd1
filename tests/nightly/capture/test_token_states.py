"""Positions that are no tokens: learned vectors among the tokens are left out of every layer, or the model is refused."""

from __future__ import annotations

import pytest
import torch
from small import Block, HandWritten, random_tokens
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from repdyn import Probe, measure
from repdyn.capture.attention import attention_weights
from repdyn.capture.capture import capture, causality
from repdyn.capture.prepared_model import prepare

DIM = 16


class WithMeta(HandWritten):
    """Puts two learned vectors before the tokens, and runs each of its two blocks twice."""

    n_meta = 2

    def __init__(self, causal=True):
        super().__init__(n_layers=0, dim=DIM)
        first, second = Block(DIM, causal), Block(DIM, causal)
        self.blocks = nn.ModuleList([first, second, first, second])
        self.meta = nn.Parameter(torch.randn(self.n_meta, DIM))

    def embed(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return torch.cat([self.meta.expand(len(tokens), -1, -1), x], dim=1)

    def forward(self, tokens):
        x = self.embed(tokens)
        self.stream = [x]
        for block in self.blocks:
            x = block(x)
            self.stream.append(x)
        return self.head(self.norm(x))[:, self.n_meta :]


class LengthFirst(WithMeta):
    """Passes states of shape (length, batch, dim)."""

    def __init__(self):
        super().__init__()
        first, second = Transposing(DIM, True), Transposing(DIM, True)
        self.blocks = nn.ModuleList([first, second, first, second])

    def embed(self, tokens):
        return super().embed(tokens).transpose(0, 1)


class Transposing(Block):
    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


def last_tokens(states, batch):
    return states[:, -batch.input_ids.shape[1] :]


def seeded(model_class, **settings):
    torch.manual_seed(0)
    return model_class(**settings).eval()


@pytest.fixture
def probe():
    return Probe.from_tokens(random_tokens(10, 9), max_vectors=60, batch_vectors=30, design="dense")


def by_hand(model, probe, n_meta):
    """The states of the tokens in each layer, in the order of the probe's sample."""
    with torch.no_grad():
        model(probe.tokens.view(10, 9))
    layers = [states.transpose(0, 1) if states.shape[0] == 9 + n_meta else states for states in model.stream]
    return [states[:, n_meta:].reshape(-1, DIM)[probe.sample("all").ravel()] for states in layers]


@pytest.mark.parametrize("choice", [slice(2, None), last_tokens], ids=["slice", "function"])
@pytest.mark.parametrize("model_class", [WithMeta, LengthFirst])
def test_states_of_the_tokens_in_every_layer(model_class, choice, probe):
    model = seeded(model_class)
    expected = by_hand(model, probe, 2)
    for n_tokens in (1000, 36, 9):
        found = capture(prepare(model, token_positions=choice), probe, ["all"], tokens_per_forward=n_tokens).layers
        assert [layer.module for layer in found] == ["blocks.0", "blocks.0", "blocks.1", "blocks.0", "blocks.1"]
        for layer, states in zip(found, expected, strict=True):
            torch.testing.assert_close(layer.states, states, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_causality_is_that_of_the_tokens(causal, probe):
    assert causality(prepare(seeded(WithMeta, causal=causal), token_positions=slice(2, None)), probe) == {None: causal}


@pytest.mark.parametrize("choice", [slice(2, None), last_tokens], ids=["slice", "function"])
def test_attention_weights_between_tokens(choice, probe):
    model = seeded(WithMeta)
    weights, tokens = attention_weights(prepare(model, token_positions=choice), probe).of(None, 1)[3]
    with torch.no_grad():
        model(probe.tokens.view(10, 9)[3:4])
        normed = model.blocks[0].norm(model.stream[0])
        mask = torch.ones(11, 11, dtype=torch.bool).triu(1)
        _, expected = model.blocks[0].attention(normed, normed, normed, attn_mask=mask, average_attn_weights=False)
    assert tokens.tolist() == list(range(27, 36))
    torch.testing.assert_close(weights, expected[0, :, 2:, 2:])
    with pytest.raises(RuntimeError, match="token_positions"):
        attention_weights(prepare(model), probe)


def tiny_llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes))


def test_prompt_tuning_is_measured_at_its_tokens():
    peft = pytest.importorskip("peft")
    lengths = torch.tensor([9, 4, 7, 9, 3, 8, 9, 5, 6, 9])
    mask = (torch.arange(9)[None, :] < lengths[:, None]).long()
    padded = Probe.from_tokens(random_tokens(10, 9), mask, max_vectors=56, batch_vectors=28, design="dense")
    adapted = peft.get_peft_model(
        tiny_llama(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
    ).eval()
    batch = next(padded.batches(10))
    with torch.no_grad():
        hidden = adapted(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_hidden_states=True
        ).hidden_states
    found = capture(prepare(adapted, token_positions=slice(5, None)), padded, ["all"]).layers
    chosen = batch.positions[padded.sample("all").ravel()]
    for layer, reported in list(zip(found, hidden, strict=True))[:-1]:  # the last one is normed
        expected = reported[:, 5:].flatten(0, 1)[chosen]
        torch.testing.assert_close(layer.states, expected, atol=1e-5, rtol=1e-4)
    profile = measure(adapted, padded, ["anisotropy"], token_positions=slice(5, None))
    assert {row.causal for row in profile.rows} == {True}
    with pytest.raises(ValueError, match=r"get_base_model\(\), or leave .* out with token_positions=slice\(5, None\)"):
        measure(adapted, padded)
