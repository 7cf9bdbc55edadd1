"""Learned vectors before the tokens: such a model is refused on tokens, and measured at them on a
probe of inputs.
"""

from __future__ import annotations

import pytest
import torch
from small import random_tokens
from transformers import LlamaConfig, LlamaForCausalLM

from repdyn import Probe, measure
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare


def test_a_tuned_prompt():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
    }
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
    adapted = peft.get_peft_model(
        LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)), prompt
    ).eval()
    ids = random_tokens(10, 9)
    with pytest.raises(
        RuntimeError, match=r"5 learned vectors before the 9 tokens.* positions=slice\(5, None\)"
    ):
        measure(adapted, Probe.from_tokens(ids))

    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    probe = Probe.from_inputs(
        [batch], positions=slice(5, None), max_vectors=90, vectors_per_input=9
    )
    with torch.no_grad():
        hidden = adapted(**batch, output_hidden_states=True).hidden_states
    states = capture(prepare(adapted, probe), probe, ["all"])
    rows = states.rows_of(torch.arange(90).numpy())
    for layer, reported in list(zip(states.layers, hidden, strict=True))[
        :-1
    ]:  # the last one is normed
        torch.testing.assert_close(
            layer.states[rows], reported[:, 5:].flatten(0, 1), atol=1e-5, rtol=1e-4
        )
