"""Attention weights: what the library itself reports, layer by layer; and a model that does not
notice.
"""

from __future__ import annotations

import copy

import pytest
import torch
from small import Block, HandWritten, random_tokens
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaModel

from repdyn import Probe
from repdyn.capture import attention
from repdyn.capture.attention import attention_weights
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare
from repdyn.kernels import UndefinedError

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
N_LAYERS = 3


def built(family, auto=AutoModel, **settings):
    torch.manual_seed(0)
    return auto.from_config(
        AutoConfig.for_model(family, **SIZES, max_position_embeddings=64, **settings)
    )


@pytest.fixture
def probe() -> Probe:
    """Sequences of 12, 9 and 5 tokens."""
    mask = torch.arange(12) < torch.tensor([[12], [9], [5]])
    return Probe.from_tokens(random_tokens(3, 12), mask, max_vectors=12, batch_vectors=6)


def as_reported(model, probe, kind="attentions"):
    """By layer and sequence, what ``output_attentions=True`` gives when the model computes
    eagerly.
    """
    model = copy.deepcopy(model).eval()
    model.set_attn_implementation("eager")
    reported = []
    for tokens in probe.tokens.split(probe.lengths.tolist()):
        arguments = {
            "input_ids": tokens[None],
            "attention_mask": torch.ones(1, len(tokens)),
            "use_cache": False,
        }
        if model.config.is_encoder_decoder:
            arguments["decoder_input_ids"] = tokens[None]
        with torch.no_grad():
            reported.append(
                [weights[0] for weights in model(**arguments, output_attentions=True)[kind]]
            )
    return list(zip(*reported, strict=True))


def assert_same(measured, stack, reported, probe):
    assert len(reported) == N_LAYERS
    ends = probe.lengths.cumsum(0).tolist()
    for layer, by_sequence in enumerate(reported, start=1):
        pairs = measured.of(stack, layer)
        assert [tokens.tolist() for _, tokens in pairs] == [
            list(range(end - n, end)) for end, n in zip(ends, probe.lengths.tolist(), strict=True)
        ]
        for (weights, _), expected in zip(pairs, by_sequence, strict=True):
            torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "albert", "llama", "gpt2", "bloom"])
def test_they_are_what_the_library_reports(family, probe):
    model = built(family, **({"num_key_value_heads": 1} if family == "llama" else {}))
    assert_same(
        attention_weights(prepare(model, probe), probe), None, as_reported(model, probe), probe
    )


class Refusing(LlamaModel):
    """(huggingface/transformers, src/transformers/models/timm_wrapper/modeling_timm_wrapper.py)"""

    _can_record_outputs = None

    def forward(self, input_ids, attention_mask=None, use_cache=None):
        if self.config.output_attentions:
            raise ValueError("no attentions")
        return super().forward(input_ids, attention_mask)


def test_a_model_that_does_not_put_out_weights_has_a_reason(probe):
    """The error would end the whole measurement."""
    model = Refusing(AutoConfig.for_model("llama", **SIZES))
    with pytest.raises(UndefinedError, match="eager attention: ValueError: no attentions"):
        attention_weights(prepare(model, probe), probe).of(None, 1)


def test_both_stacks_of_an_encoder_decoder_attend_to_themselves(probe):
    model = built("t5", num_decoder_layers=N_LAYERS)
    weights = attention_weights(prepare(model, probe), probe)
    for stack in ("encoder", "decoder"):
        assert_same(weights, stack, as_reported(model, probe, f"{stack}_attentions"), probe)


# modules that are not Hugging Face's


class Folded(Block):
    """Has its heads in the dimension of the sequences
    (jadore801120/attention-is-all-you-need-pytorch, transformer/Modules.py).
    """

    def __init__(self):
        super().__init__(16, causal=False)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x):
        heads = torch.cat(x.chunk(2, dim=-1))
        heads = self.softmax(heads @ heads.mT) @ heads
        return self.feed_forward(x + torch.cat(heads.chunk(2), dim=-1))


def test_weights_of_heads_that_are_folded_into_the_sequences(probe):
    torch.manual_seed(0)
    model = HandWritten()
    model.blocks = nn.ModuleList(Folded() for _ in range(3))
    assert attention_weights(prepare(model, probe), probe).of(None, 1)[0][0].shape == (2, 12, 12)


@pytest.mark.parametrize("causal", [False, True])
def test_multihead_attention_is_asked_for_what_its_block_does_not_want(causal):
    """(pytorch/pytorch, torch/nn/modules/transformer.py)"""
    torch.manual_seed(0)
    model = HandWritten(causal=causal)
    probe = Probe.from_tokens(random_tokens(3, 12), max_vectors=12, batch_vectors=6)
    entered = []

    def note(*call):
        entered.append(call)

    hooks = [
        block.attention.register_forward_pre_hook(note, with_kwargs=True) for block in model.blocks
    ]
    model.eval()(probe.tokens[None, :12])
    for hook in hooks:
        hook.remove()
    weights = attention_weights(prepare(model, probe), probe)
    for layer, (module, args, kwargs) in enumerate(entered, start=1):
        expected = module(*args, **{**kwargs, "need_weights": True}, average_attn_weights=False)[1]
        torch.testing.assert_close(weights.of(None, layer)[0][0], expected[0])


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Sequential(nn.Linear(16, 16), nn.Softmax(dim=-1))
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        return x + scaled_dot_product_attention(self.project(x), x, self.norm(x))


def test_a_block_that_shows_no_weights_says_so():
    model = nn.Sequential(nn.Embedding(50, 16), nn.Sequential(Fused(), Fused()))
    # as many tokens as coordinates: states are no weights, even where they look like shares
    probe = Probe.from_tokens(random_tokens(2, 16), max_vectors=6, batch_vectors=6)
    with pytest.raises(UndefinedError, match="nothing in '1.0' puts out attention weights"):
        attention_weights(prepare(model, probe), probe).of(None, 1)


def test_blocks_without_attention(probe):
    mamba = built("mamba", state_size=4)
    with pytest.raises(UndefinedError, match="puts out attention weights"):
        attention_weights(prepare(mamba, probe), probe).of(None, 1)


def test_layers_are_numbered_as_the_states_are(probe):
    model = built("gpt2", AutoModelForCausalLM)
    chosen = ["transformer.h.0", "transformer.h.2", "transformer.ln_f"]
    weights = attention_weights(prepare(model, probe, chosen), probe)
    all_layers = attention_weights(prepare(model, probe), probe)
    states = capture(prepare(model, probe, chosen), probe, ["all"])
    assert [(layer.index, layer.module) for layer in states.layers[1:]] == list(
        enumerate(chosen, start=1)
    )
    for layer, block in ((1, 1), (2, 3)):
        assert torch.equal(weights.of(None, layer)[0][0], all_layers.of(None, block)[0][0])
    with pytest.raises(
        UndefinedError, match="nothing in 'transformer.ln_f' puts out attention weights"
    ):
        weights.of(None, 3)


# how much is looked at and kept


def test_the_first_sequences_are_looked_at_each_cut_short_but_none_for_want_of_room(
    monkeypatch, probe
):
    monkeypatch.setattr(attention, "LENGTH", 8)
    measured = attention_weights(
        prepare(built("gpt2", AutoModelForCausalLM), probe), probe, n_tokens=20
    )
    assert [tokens.tolist() for tokens in measured.tokens] == [list(range(8)), list(range(12, 20))]
    assert [weights.shape for weights, _ in measured.of(None, 2)] == [(2, 8, 8), (2, 8, 8)]


@pytest.mark.parametrize("compiled", [False, True])
def test_training_goes_on_bit_for_bit(compiled, probe):
    def trained(looked_at):
        model = built("gpt2", AutoModelForCausalLM)
        run = torch.compile(model, backend="eager") if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        batch = random_tokens(4, 12)
        losses = []
        for _ in range(4):
            if looked_at:
                attention_weights(prepare(run, probe), probe)
            loss = cross_entropy(run(batch).logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, model.state_dict()

    losses, weights = trained(True)
    others, other_weights = trained(False)
    assert losses == others
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
