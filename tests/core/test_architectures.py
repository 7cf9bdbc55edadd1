"""Families of transformers, wrappers and LightningModules: the model is found in each, and its
layers are right.

All architectures of the installed transformers are in tests/nightly/core/architectures.
"""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import LightningModule
from small import HandWritten, random_tokens
from torch import nn
from torch.nn.parallel import DataParallel
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from repdyn import Probe, measure
from repdyn.capture.blocks import find_network
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "vocab_size": 50,
}
FAMILIES = {
    "gpt2": {"n_embd": 16, "n_layer": 3, "n_head": 2, "vocab_size": 50},
    "llama": SIZES,
    "qwen3": {**SIZES, "head_dim": 8, "num_key_value_heads": 2},
    "mixtral": {**SIZES, "num_local_experts": 2, "num_key_value_heads": 2},
    "gpt_neox": SIZES,
    "bloom": {"hidden_size": 16, "n_layer": 3, "n_head": 2, "vocab_size": 50},
    "mamba": {**SIZES, "state_size": 4},
    "rwkv": {**SIZES, "attention_hidden_size": 16},
    "bert": SIZES,
    "albert": {**SIZES, "embedding_size": 8},
    "modernbert": {**SIZES, "pad_token_id": 0},
    "xlm": {"emb_dim": 16, "n_layers": 3, "n_heads": 2, "n_words": 50, "vocab_size": 50},
    "squeezebert": {**SIZES, "embedding_size": 16, "q_groups": 2, "k_groups": 2, "v_groups": 2},
}
REPORTED = {"xlm", "squeezebert"}


@pytest.fixture(scope="module")
def probe():
    return Probe.from_tokens(random_tokens(8, 12), max_vectors=48)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_what_the_model_reports(family, probe):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **FAMILIES[family])
    model = AutoModel.from_config(config).train()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states = capture(prepare(model, probe), probe, ["all"])
    assert model.training
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    sampled = probe.sample("all").ravel()
    with torch.no_grad():
        output = model.eval()(probe.tokens.view(8, 12), output_hidden_states=True)
    reported = [h.flatten(0, 1)[sampled] for h in output.hidden_states]
    assert all(
        layer.module.startswith("hidden_states") == (family in REPORTED) for layer in states.layers
    )
    assert len(states.layers) == 4
    ours = [layer.states[states.rows[sampled]] for layer in states.layers]
    # of the last layer most report what the final norm makes of it, of the first some report
    # nothing
    for mine in ours[1:-1]:
        assert any(
            mine.shape == theirs.shape and torch.allclose(mine, theirs, atol=1e-5)
            for theirs in reported
        )


def test_states_that_are_halved_between_blocks_are_one_stream(probe):
    """RWKV halves them against overflow, and would be refused."""
    config = AutoConfig.for_model("rwkv", **FAMILIES["rwkv"], rescale_every=2)
    assert not prepare(AutoModel.from_config(config).eval(), probe).reports_states


def test_a_module_without_forward_stands_for_the_network_in_it(probe):
    class Training(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = HandWritten()
            self.loss = nn.CrossEntropyLoss()

        def training_step(self, batch, number):
            return self.loss(self.net(batch), batch)

    torch.manual_seed(0)
    module = Training()
    plain = [row.value for row in measure(module.net, probe).rows]
    for wrapped in (
        module,
        DataParallel(module.net),
        torch.compile(module.net),
        torch.compile(module),
    ):
        assert [row.value for row in measure(wrapped, probe).rows] == pytest.approx(
            plain, nan_ok=True, rel=0
        )
    module.teacher = HandWritten()
    with pytest.raises(ValueError, match='model="net" or model="teacher"'):
        measure(module, probe)
    assert find_network(module.net) is module.net
    module.net, module.teacher = nn.ModuleList(module.net.blocks), None
    with pytest.raises(
        ValueError, match=r"got neither: define forward\(self, input_ids\)"
    ):  # no block is the network
        measure(module, probe)


def test_an_adapter_acts_while_it_is_on(probe):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES))
    plain = [row.value for row in measure(model, probe, ["anisotropy"]).rows]
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(init_lora_weights=False, target_modules=["q_proj", "v_proj"])
    )
    on = [row.value for row in measure(adapted, probe, ["anisotropy"]).rows]
    with adapted.disable_adapter():
        assert [row.value for row in measure(adapted, probe, ["anisotropy"]).rows] == plain
    assert on != plain
    assert [row.value for row in measure(adapted, probe, ["anisotropy"]).rows] == on
