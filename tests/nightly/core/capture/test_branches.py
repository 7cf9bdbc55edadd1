"""The states between attention and feed-forward, against what passes by in a plain run of each
family.
"""

from __future__ import annotations

import re

import pytest
import torch
from peft import LoraConfig, get_peft_model
from small import Block, HandWritten, random_tokens
from torch import nn
from transformers import AutoConfig, AutoModel

from repdyn import Probe
from repdyn.capture.branches import NO_ATTENTION, NOT_ADDED
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare

N_LAYERS, DIM, VOCABULARY = 3, 32, 50
SIZES = {
    "hidden_size": DIM,
    "intermediate_size": 64,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
}
GROUPED = {"num_key_value_heads": 2, "pad_token_id": 0}


def of(family, **settings):
    """Return what makes a model of a family of transformers."""
    return lambda: AutoModel.from_config(
        AutoConfig.for_model(
            family, **SIZES, vocab_size=VOCABULARY, max_position_embeddings=64, **settings
        )
    )


# Families of huggingface/transformers. Who takes in the sum, the last part of its module's name
# first; "+" for who puts out what is added where nobody does.
FAMILIES = {
    "gpt2": (of("gpt2"), r"h\.\d+\.ln_2"),
    "llama": (of("llama", **GROUPED), r"layers\.\d+\.post_attention_layernorm"),
    "opt": (of("opt", word_embed_proj_dim=DIM), r"decoder\.layers\.\d+\.final_layer_norm"),
    "bloom": (of("bloom"), r"h\.\d+\.post_attention_layernorm"),
    "bert": (of("bert"), r"encoder\.layer\.\d+\.attention\.output\.LayerNorm"),
    "albert": (
        of("albert", embedding_size=16),
        r"encoder\.albert_layer_groups\.0\.albert_layers\.0\.attention\.LayerNorm",
    ),
    "modernbert": (of("modernbert", pad_token_id=0, local_attention=8), r"layers\.\d+\.mlp_norm"),
    "t5": (
        of("t5", num_decoder_layers=N_LAYERS),
        r"(en|de)coder\.block\.\d+\.layer\.1\.layer_norm",
    ),
    "gemma2": (of("gemma2", **GROUPED, head_dim=8), r"layers\.\d+\.pre_feedforward_layernorm"),
    "olmo2": (of("olmo2", **GROUPED), r"layers\.\d+\.mlp"),
    "granite": (
        of("granite", **GROUPED, residual_multiplier=0.22),
        r"layers\.\d+\.post_attention_layernorm",
    ),
    "gpt_neox in turn": (
        of("gpt_neox", use_parallel_residual=False),
        r"layers\.\d+\.post_attention_layernorm",
    ),
    "gpt_neox": (of("gpt_neox"), r"\+layers\.\d+\.attention\.dense"),
    "cohere": (of("cohere", **GROUPED), r"\+layers\.\d+\.self_attn\.o_proj"),
    "llama with an adapter": (
        lambda: with_adapter(of("llama", **GROUPED)()),
        r".*layers\.\d+\.post_attention_layernorm",
    ),
    "nn.TransformerEncoder": (lambda: Torch(norm_first=False), r"encoder\.layers\.\d+\.norm1"),
    "nn.TransformerEncoder, norm first": (
        lambda: Torch(norm_first=True),
        r"encoder\.layers\.\d+\.norm2",
    ),
    "nn.TransformerEncoder, sequences second": (
        lambda: Torch(batch_first=False),
        r"encoder\.layers\.\d+\.norm1",
    ),
    "by hand": (HandWritten, r"blocks\.\d+\.feed_forward"),
}


class Torch(nn.Module):
    def __init__(self, norm_first: bool = False, batch_first: bool = True) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, DIM)
        layer = nn.TransformerEncoderLayer(
            DIM, 4, 64, norm_first=norm_first, batch_first=batch_first
        )
        self.encoder = nn.TransformerEncoder(layer, N_LAYERS, enable_nested_tensor=False)
        self.batch_first = batch_first

    def forward(self, tokens):
        x = self.token(tokens)
        return (
            self.encoder(x) if self.batch_first else self.encoder(x.transpose(0, 1)).transpose(0, 1)
        )


def with_adapter(model):
    config = LoraConfig(r=4, target_modules=["q_proj", "o_proj"], init_lora_weights=False)
    return get_peft_model(model, config)


@pytest.fixture
def probe() -> Probe:
    return Probe.from_tokens(random_tokens(10, 13), max_vectors=100, batch_vectors=50)


def built(make, dtype=torch.float32):
    torch.manual_seed(0)
    model = make().to(dtype).eval()
    for parameter in model.parameters():  # no branch so small that rounding hides it
        parameter.data = parameter.data + 0.1 * torch.randn_like(parameter)
    return model


def reported(model, probe, pattern):
    """The sums, layer after layer in the order of time, (n_tokens, dim), from hooks on the named
    modules.
    """
    added = pattern.startswith("\\+")
    entered = []
    sums = []
    handles = []
    names = [
        name for name, _ in model.named_modules() if re.fullmatch(pattern.removeprefix("\\+"), name)
    ]
    assert names

    def note_entering(_module, args, kwargs):
        entered.append(first(args, kwargs))

    def add_output(_module, _args, output):
        sums.append(entered[-1] + output)

    def note_sum(_module, args):
        sums.append(args[0])

    for name in names:
        module = model.get_submodule(name)
        if added:
            block = model.get_submodule(re.match(r"\w+\.\d+", name)[0])
            handles.append(block.register_forward_pre_hook(note_entering, with_kwargs=True))
            handles.append(module.register_forward_hook(add_output))
        else:
            handles.append(module.register_forward_pre_hook(note_sum))
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    ids = probe.tokens.view(10, 13)
    decoder = (
        {"decoder_input_ids": ids}
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        else {}
    )
    with torch.no_grad():
        model(ids, **decoder)
    torch.backends.mha.set_fastpath_enabled(fast_path)
    for handle in handles:
        handle.remove()
    return [
        (s.transpose(0, 1) if s.ndim == 3 and s.shape[0] == 13 else s).reshape(130, -1)
        for s in sums
    ]


def first(args, kwargs):
    return args[0] if args else kwargs["hidden_states"]


def after_attention(model, probe):
    captures = {"after_attention"}
    prepared = prepare(model, probe)
    return capture(prepared, probe, ["all"], captures=captures, tokens_per_forward=10_000).layers


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_what_the_rest_of_the_block_takes_in(family, probe):
    make, pattern = FAMILIES[family]
    model = built(make)
    rows = probe.sample("all").ravel()
    layers = after_attention(model, probe)
    expected = reported(model, probe, pattern)
    assert [layer.after_attention is None for layer in layers] == [
        layer.index == 0 for layer in layers
    ]
    assert len(expected) == len([layer for layer in layers if layer.index > 0])
    for ours, theirs in zip([layer for layer in layers if layer.index > 0], expected, strict=True):
        assert torch.equal(ours.after_attention, theirs[rows])


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "granite"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_in_half_precision(family, dtype, probe):
    make, pattern = FAMILIES[family]
    model = built(make, dtype)
    rows = probe.sample("all").ravel()
    layers = [layer for layer in after_attention(model, probe) if layer.index > 0]
    for ours, theirs in zip(layers, reported(model, probe, pattern), strict=True):
        assert ours.after_attention.dtype == dtype
        torch.testing.assert_close(
            ours.after_attention, theirs[rows], rtol=0, atol=0 if family != "granite" else 1e-2
        )


def test_a_module_that_runs_twice_in_a_block(probe):
    """The second call of the projection gives the tokens, the first those that all attend to."""
    model = built(
        of(
            "pegasus_x",
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            num_global_tokens=3,
            block_size=16,
        )
    )
    sums = []

    def note_sum(_module, args):
        if args[0].shape[1] > 3:
            sums.append(args[0][:, :13].flatten(0, 1))

    captured = after_attention(model, probe)
    model.encoder.layers[0].final_layer_norm.register_forward_pre_hook(note_sum)
    ids = probe.tokens.view(10, 13)
    with torch.no_grad():
        model(ids, decoder_input_ids=ids)
    assert torch.equal(captured[1].after_attention, sums[0][probe.sample("all").ravel()])


class Reason(HandWritten):
    def __init__(self, block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block(16, True) for _ in range(3))


class Gated(Block):
    """Multiplies its attention by a vector that no module shows (facebookresearch/deit,
    cait_models.py).
    """

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.gate = nn.Parameter(torch.rand(16))

    def forward(self, x):
        normed = self.norm(x)
        x = x + self.gate * self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.feed_forward(x)


class NormedResidual(Block):
    """Adds to what its norm returns (huggingface/transformers,
    src/transformers/models/bloom/modeling_bloom.py).
    """

    def forward(self, x):
        normed = self.norm(x)
        x = normed + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.feed_forward(x)


class Mixing(Block):
    """Names its attention otherwise (state-spaces/mamba, mamba_ssm/modules/block.py)."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.mixer = self.attention
        del self.attention

    def forward(self, x):
        return x + self.feed_forward(x + self.mixer(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize(
    ("block", "reason"),
    [(Gated, NOT_ADDED), (NormedResidual, NOT_ADDED), (Mixing, NO_ATTENTION)],
)
def test_what_nothing_confirms_is_refused(block, reason, probe):
    captured = after_attention(built(lambda: Reason(block)), probe)
    assert {layer.after_attention for layer in captured if layer.index > 0} == {reason}
    assert captured[0].after_attention is None
