"""Models with adapters or quantised weights."""

from __future__ import annotations

import pytest
import torch
from shrunk import VOCABULARY, build
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from wrapped_models import last_states

from repdyn import measure
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare


def test_lora_without_a_task_on_an_encoder_decoder(probe):
    peft = pytest.importorskip("peft")
    model = build("t5", "T5ForConditionalGeneration")
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q"]))
    rows = measure(adapted, probe, ["anisotropy"]).rows
    assert {(row.stack, row.causal) for row in rows} == {("encoder", False), ("decoder", True)}
    assert rows[0].module == "base_model.model.encoder.block.0"


def test_prompt_that_stands_before_the_tokens_is_refused(llama, probe):
    peft = pytest.importorskip("peft")
    config = peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
    adapted = peft.get_peft_model(llama, config)
    with pytest.raises(
        RuntimeError, match=r"5 learned vectors before the 9 tokens, measure it without them"
    ):
        measure(adapted, probe)
    assert measure(adapted.get_base_model(), probe, ["anisotropy"]).rows


def test_prefix_tuning_is_measured_with_its_prefix(llama, probe):
    peft = pytest.importorskip("peft")
    plain = last_states(llama, probe)
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
    adapted = peft.get_peft_model(llama, config)
    batch = next(probe.batches(100))
    with torch.no_grad():
        hidden = adapted.eval()(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            output_hidden_states=True,
        ).hidden_states
    states = capture(prepare(adapted, probe), probe, ["all"], tokens_per_forward=1000)
    chosen = batch.positions[probe.sample("all").ravel()]
    assert not torch.allclose(states.layers[-2].states, plain, atol=1e-3)
    for layer, reported in list(zip(states.layers, hidden, strict=True))[:-1]:
        torch.testing.assert_close(
            layer.states, reported.flatten(0, 1)[chosen], atol=1e-5, rtol=1e-4
        )


def test_dynamically_quantised(llama, probe):
    exact = last_states(llama, probe)
    quantised = torch.ao.quantization.quantize_dynamic(llama, {nn.Linear}, dtype=torch.qint8)
    rows = measure(quantised, probe, ["anisotropy"]).rows
    assert {row.causal for row in rows} == {True}
    ours = last_states(quantised, probe)
    assert not torch.equal(ours, exact)
    torch.testing.assert_close(ours, exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("bits", [8, 4])
def test_bitsandbytes(probe, bits):
    layers = pytest.importorskip("bitsandbytes").nn
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
    }
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes))
    exact = last_states(llama, probe)
    for block in llama.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            eight = layers.Linear8bitLt(64, 64, bias=False, has_fp16_weights=False)
            quantised = eight if bits == 8 else layers.Linear4bit(64, 64, bias=False)
            quantised.load_state_dict(getattr(block.mlp, name).state_dict())
            setattr(block.mlp, name, quantised.to("cpu"))  # which quantises
    assert measure(llama, probe, ["anisotropy"]).rows
    ours = last_states(llama, probe)
    assert not torch.equal(ours, exact)
    torch.testing.assert_close(ours, exact, atol=0.2, rtol=0.2)


def test_torchao(llama, probe):
    quantization = pytest.importorskip("torchao.quantization")
    quantization.quantize_(llama, quantization.Int8WeightOnlyConfig())
    assert measure(llama, probe, ["anisotropy"]).rows
