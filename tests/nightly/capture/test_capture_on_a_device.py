"""Capture on a device other than the CPU: the same states of every layer, and nothing mixes devices."""

from __future__ import annotations

import pytest
import torch
from pretend_cuda import PretendCuda
from small import HandWritten, random_tokens
from torch import Tensor, nn
from transformers import AutoModel, BertConfig, GPTNeoXConfig, T5Config

from repdyn import Probe
from repdyn.capture.attention import attention_weights
from repdyn.capture.capture import capture, causality
from repdyn.capture.prepared_model import prepare

SMALL = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
T5 = {"vocab_size": 50, "d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 2, "d_kv": 16}
MODELS = {
    "hand_written": HandWritten,
    "gpt_neox": lambda: AutoModel.from_config(GPTNeoXConfig(**SMALL)),
    "bert": lambda: AutoModel.from_config(BertConfig(**SMALL)),
    "t5": lambda: AutoModel.from_config(T5Config(**T5)),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CAPTURES = {"following", "last", "embeddings", "after_attention"}


def model_of(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().to(dtype).eval()


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe.from_tokens(random_tokens(8, 12), max_vectors=48, batch_vectors=24)


@pytest.mark.parametrize("states_bytes", [1 << 30, 0], ids=["in_memory", "in_files"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in MODELS), *(("gpt_neox", dtype) for dtype in DTYPES[1:])],
    ids=str,
)
def test_the_states_of_every_layer_are_those_of_the_cpu(name, dtype, states_bytes, probe):
    options = {"captures": CAPTURES, "tokens_per_forward": 40, "states_bytes": states_bytes}
    expected = capture(prepare(model_of(name, dtype)), probe, ["all", "no_sink"], **options)
    with PretendCuda():
        found = capture(prepare(model_of(name, dtype).to("cuda")), probe, ["all", "no_sink"], **options)
        assert {layer.device.type for layer in found.layers} == {"cuda"}
        assert {layer.states.device.type for layer in found.layers} == {"cuda" if states_bytes else "cpu"}
        assert found.embeddings.is_cuda
    assert len(found.layers) == len(expected.layers) > 2
    for on_cuda, on_cpu in zip(found.layers, expected.layers, strict=True):
        assert (on_cuda.module, on_cuda.stack, on_cuda.states.dtype) == (on_cpu.module, on_cpu.stack, dtype)
        assert torch.equal(on_cuda.states, on_cpu.states)
        if on_cuda.index > 0:
            assert isinstance(on_cuda.after_attention, Tensor)
            assert torch.equal(on_cuda.after_attention, on_cpu.after_attention)
    assert torch.equal(found.embeddings, expected.embeddings)


@pytest.mark.parametrize("name", MODELS)
def test_attention_weights_and_causality_are_those_of_the_cpu(name, probe):
    expected = attention_weights(prepare(model_of(name)), probe, n_tokens=36)
    causal = causality(prepare(model_of(name)), probe)
    with PretendCuda():
        prepared = prepare(model_of(name).to("cuda"))
        assert causality(prepared, probe) == causal
        found = attention_weights(prepared, probe, n_tokens=36)
        assert found.layers.keys() == expected.layers.keys()
        for place in found.layers:
            for (on_cuda, _), (on_cpu, _) in zip(found.of(*place), expected.of(*place), strict=True):
                assert on_cuda.is_cuda
                assert torch.equal(on_cuda.cpu(), on_cpu)
