"""Every text architecture of the installed transformers, small and at random: measured, and right.

The last test prints how many build and are measured (``pytest -rP`` or ``-s`` shows it) and holds a
floor under it.
"""

from __future__ import annotations

import contextlib
import copy
import math
import random
import warnings

import numpy as np
import pytest
import torch
import transformers
from shrunk import VOCABULARY, NotBuiltError, build
from torch import nn
from transformers import MixtralConfig, MixtralModel, PreTrainedModel
from transformers.models.auto import modeling_auto

from repdyn import Probe, measure
from repdyn.capture.calls import call_with_tokens
from repdyn.capture.capture import capture, causality
from repdyn.capture.trial import prepare

LISTS = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM")
ARCHITECTURES = sorted(
    {
        pair
        for name in LISTS
        for pair in getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES").items()
    }
)
NOT_TEXT = {
    "gemma4_assistant": "continues another model's states",
    "musicgen": "reads codes of sounds",
    "musicgen_melody": "reads codes of sounds",
    "voxtral_realtime": "does not run without sound",
}
# 256 latent vectors for whatever number of tokens: no vector of a layer is a token's.
REFUSED = {"perceiver": r"positions=slice\(240, None\)"}
# Their layers are the hidden states that they report: no list of blocks passes states on.
REPORTED = {
    "blt",
    "cpmant",
    "flaubert",
    "funnel",
    "gemma4_unified_assistant",
    "hrm_text",
    "mllama",
    "squeezebert",
    "xlm",
}
CAUSAL_LM = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
SEQ_TO_SEQ = dict(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
# Attention runs on CUDA alone, or begins at zero: no position sees any other here. XLNet's sees all
# without a mask.
CAUSAL = {"mra": None, "neomme": None, "xlnet": False}
# A layer's blocks are two attentions and two feed-forward parts there, and num_hidden_layers counts
# all.
TWICE = {"longcat_flash"}
# The last states are drawn from all blocks', or from several streams, before the final norm.
COMBINED_AT_THE_END = {"deepseek_v4", "hy_v4", "inkling2_text", "qwen4_exp", "qwen4_exp_text"}
# The decoder's output has the last of its states alone.
REPORTED_LAST_ALONE = {("t5gemma", "decoder")}
# Convolutions, a Fourier transform, neighbours' embeddings and landmarks run over the padding too.
PADDING = "expected states that do not depend on the tokens in the padding"
PADDING_SEEN = {"convbert", "fnet", "mobilebert", "nystromformer", "yoso"}
LENGTH = 16


@pytest.fixture(scope="module")
def probe() -> Probe:
    """6 sequences of 16 tokens, two batches of 32 vectors."""
    ids = torch.randint(3, VOCABULARY, (6, LENGTH), generator=torch.Generator().manual_seed(0))
    return Probe.from_tokens(ids, max_vectors=64, batch_vectors=32)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids="-".join)
# an architecture ends in one of many ways, each with a list of its own
def test_every_architecture(architecture, probe):
    model_type, class_name = architecture
    if model_type in NOT_TEXT:
        pytest.skip(NOT_TEXT[model_type])
    try:
        model = build(model_type, class_name)
    except NotBuiltError as reason:
        pytest.skip(str(reason))
    if model_type in REFUSED:
        with pytest.raises(RuntimeError, match=REFUSED[model_type]):
            measure(model, probe, ["anisotropy"])
        return
    model.train()
    next(model.children()).eval()
    before = snapshot(model)
    rows = measure(model, probe, ["anisotropy"]).rows
    assert_equal(snapshot(model), before)

    assert all(math.isfinite(row.value) or row.reason for row in rows)
    assert {row.way for row in rows} == {"shadow"}
    if model_type in REPORTED:
        assert all(row.module.startswith("hidden_states.") for row in rows)
        return
    stacks = {row.stack: row.causal for row in rows}
    assert set(stacks) == ({"encoder", "decoder"} if model.config.is_encoder_decoder else {None})
    for stack, causal in stacks.items():
        of_stack = [row for row in rows if row.stack == stack and row.subset == "all"]
        assert [row.layer for row in of_stack] == list(range(n_layers(model.config, stack) + 1))
        assert of_stack[0].depth == 0
        assert of_stack[-1].depth == 1
        expected = CAUSAL.get(
            model_type, class_name in {CAUSAL_LM.get(model_type), SEQ_TO_SEQ.get(model_type)}
        )
        assert causal == (expected if stack is None else stack == "decoder")
    assert_states_are_those_the_model_reports(model.eval(), probe)
    with (
        pytest.raises(ValueError, match=PADDING)
        if model_type in PADDING_SEEN
        else contextlib.nullcontext()
    ):
        capture(prepare(model, padded(probe)), padded(probe), ["all"])


def padded(probe):
    lengths = torch.tensor([LENGTH, 9, 12, 5, LENGTH, 14])
    mask = torch.arange(LENGTH)[None] < lengths[:, None]
    return Probe.from_tokens(probe.tokens.view(-1, LENGTH), mask, max_vectors=48, pad_id=1)


def test_counts(record_property, capsys):
    reasons = {}
    for model_type, class_name in ARCHITECTURES:
        try:
            build(model_type, class_name)
        except NotBuiltError as reason:
            reasons[model_type, class_name] = " ".join(str(reason).split())[:160]
    built = [pair for pair in ARCHITECTURES if pair not in reasons]
    text = [pair for pair in built if pair[0] not in NOT_TEXT]
    measured = [pair for pair in text if pair[0] not in REFUSED]
    summary = (
        f"architectures: {len(built)} of {len(ARCHITECTURES)} build from a tiny config; of the "
        f"{len(text)} that read text "
        f"alone {len(measured)} are measured and {len(text) - len(measured)} refused with an "
        f"error that says why"
    )
    record_property("architectures", summary)
    with capsys.disabled():
        print(f"\n{summary}")
        for (model_type, class_name), reason in reasons.items():
            print(f"  {class_name} ({model_type}) does not build: {reason}")
    assert len(measured) >= 0.93 * len(ARCHITECTURES), summary
    if transformers.__version__ >= "5.23":
        assert len(measured) >= 250, summary


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("length", [16, 61])
def test_experts_do_not_blur_what_is_causal(dtype, causal, length, monkeypatch):
    """They sort tokens into batches of their own, where rounding depends on what the other tokens
    are.
    """
    if not causal:
        module = "transformers.models.mixtral.modeling_mixtral"
        for name in ("create_causal_mask", "create_sliding_window_causal_mask"):
            monkeypatch.setattr(f"{module}.{name}", lambda *_, **__: None)
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=500,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_local_experts=16,
        num_experts_per_tok=4,
        initializer_range=0.1,
    )
    model = MixtralModel(config).to(dtype)
    for layer in model.layers:
        layer.self_attn.is_causal = causal
    tokens = torch.randint(3, 500, (6, length), generator=torch.Generator().manual_seed(0))
    probe = Probe.from_tokens(tokens, max_vectors=64)
    assert causality(prepare(model, probe), probe) == {None: causal}


def n_layers(config, stack):
    """Layers of a stack, as the configuration says."""
    if stack is None:
        text = config.get_text_config(decoder=getattr(config, "is_decoder", None) or None)
        return text.num_hidden_layers // (2 if text.model_type in TWICE else 1)
    subconfig = getattr(config, stack, None) or getattr(config, "text_config", None)
    named = {
        "encoder": ("encoder_layers", "num_encoder_layers", "num_layers"),
        "decoder": ("decoder_layers", "num_decoder_layers"),
    }
    numbers = (getattr(config, name, None) for name in named[stack])
    return (
        n_layers(subconfig, None)
        if subconfig is not None
        else next(n for n in numbers if n is not None)
    )


def snapshot(model):
    state = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    return {
        "weights": {name: p.detach().clone() for name, p in model.named_parameters()},
        "buffers": {name: b.clone() for name, b in model.named_buffers()},
        "modules": [id(module) for module in model.modules()],
        "flags": [
            (module.training, [p.requires_grad for p in module.parameters(recurse=False)])
            for module in model.modules()
        ],
        "hooks": [
            (len(module._forward_hooks), len(module._forward_pre_hooks))
            for module in model.modules()
        ],
        "attributes": [
            {
                k: v
                for k, v in vars(module).items()
                if isinstance(v, bool | int | float | str | None)
            }
            for module in model.modules()
        ],
        "config": copy.deepcopy(model.config.to_dict()),
        "random": state,
    }


def assert_equal(after, before):
    for kind in ("weights", "buffers"):
        assert after[kind].keys() == before[kind].keys()
        changed = [
            n
            for n, tensor in after[kind].items()
            if not torch.equal(tensor.nan_to_num(), before[kind][n].nan_to_num())
        ]
        assert not changed
    for kind in ("modules", "flags", "hooks", "attributes", "config"):
        assert after[kind] == before[kind], kind
    assert torch.equal(after["random"][0], before["random"][0])
    assert np.array_equal(after["random"][1], before["random"][1])
    assert after["random"][2] == before["random"][2]


# models report their states in many ways
def assert_states_are_those_the_model_reports(model, probe):
    """Layers 0 to n - 1 as ``output_hidden_states`` has them; layer n, or its final norm, as the
    last of them.
    """
    states = capture(prepare(model, probe), probe, ["all"], tokens_per_forward=1000)
    batch = next(probe.batches(100))
    rows = batch.positions[probe.sample("all").ravel()]
    model_type = model.config.model_type
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.config.output_hidden_states = True
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output = call_with_tokens(model.base_model, batch)
    for stack in {layer.stack for layer in states.layers}:
        reported = output["hidden_states" if stack is None else f"{stack}_hidden_states"]
        ours = [layer.states for layer in states.layers if layer.stack == stack]
        theirs = [as_rows(h[0] if isinstance(h, tuple) else h)[rows].detach() for h in reported]
        assert len(theirs) == (1 if (model_type, stack) in REPORTED_LAST_ALONE else len(ours))
        # Mamba and RWKV report no embeddings, but the last state twice, without and with the norm.
        shifted = theirs[0].shape == ours[1].shape and torch.allclose(theirs[0], ours[1], atol=1e-5)
        for mine, expected in zip(ours[shifted:-1], theirs[:-1], strict=False):
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
        if model_type not in COMBINED_AT_THE_END:
            assert any(
                torch.allclose(found, theirs[-1], atol=1e-4)
                for found in with_norms(model, ours[-1])
            )


def as_rows(states):
    """(n_sequences * LENGTH, dim), streams end to end: first, (streams, n_sequences, length, dim),
    or third.
    """
    if states.ndim == 4:
        states = (states if states.shape[1] == LENGTH else states.permute(1, 2, 0, 3)).flatten(2)
    return states[:, :LENGTH].flatten(0, 1)


def with_norms(model, states):
    yield states
    for name, module in model.named_modules():
        if "norm" in name.lower() or isinstance(module, nn.LayerNorm):
            try:
                yield module(states[None])[0].detach()
            except (RuntimeError, TypeError, AttributeError, ValueError, IndexError):
                continue
