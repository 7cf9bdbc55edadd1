"""Capture leaves the model as it was found."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    RwkvConfig,
    RwkvModel,
)

from repdyn.capture import forward
from repdyn.capture.capture import capture
from repdyn.capture.prepared_model import prepare
from repdyn.kernels import full_precision


def test_model_is_left_as_it_was_found(hand_written, small_probe):
    hand_written.train()
    hand_written.blocks[1].norm.eval()  # a frozen norm stays frozen
    flags = [m.training for m in hand_written.modules()]
    weights = copy.deepcopy(hand_written.state_dict())
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = torch.rand(3), np.random.rand(3), random.random()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    with torch.autocast("cpu", torch.bfloat16):
        states = capture(prepare(hand_written), small_probe, ["all"])
        assert torch.is_autocast_enabled("cpu")
    drawn = torch.rand(3), np.random.rand(3), random.random()
    assert states.layers[-1].states.dtype == torch.float32  # autocast is off inside
    assert torch.equal(drawn[0], expected[0])
    assert np.array_equal(drawn[1], expected[1])
    assert drawn[2] == expected[2]
    assert [m.training for m in hand_written.modules()] == flags
    assert all(torch.equal(w, weights[k]) for k, w in hand_written.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in hand_written.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in hand_written.modules())
    assert torch.backends.mha.get_fastpath_enabled()


def test_exact_on_the_device_that_the_model_computes_on(hand_written, small_probe, monkeypatch):
    """FSDP takes the parameters away from the model: what it is within tells the device."""
    asked, there = [], torch.device("cpu:0")
    monkeypatch.setattr("repdyn.capture.prepared_model.device_of", lambda model, root_module: there)
    monkeypatch.setattr(forward, "full_precision", lambda device: asked.append(device) or full_precision(device))
    capture(prepare(hand_written), small_probe, ["all"])
    assert asked == [there]


def test_model_is_left_as_it_was_found_after_an_error(hand_written, small_probe):
    hand_written.train()
    with pytest.raises(ZeroDivisionError):
        capture(prepare(hand_written, forward=lambda model, batch: 1 / 0), small_probe, ["all"])
    assert all(m.training for m in hand_written.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in hand_written.modules())
    assert torch.backends.mha.get_fastpath_enabled()


def test_dropout_is_off(hand_written, small_probe):
    hand_written.train()
    twice = [capture(prepare(hand_written), small_probe, ["all"]).layers[-1].states for _ in range(2)]
    assert torch.equal(*twice)


@pytest.mark.slow
def test_compiled_before_attaching(hand_written, small_probe):
    expected = capture(prepare(hand_written), small_probe, ["all"]).layers[-1].states
    compiled = torch.compile(hand_written, backend="eager")
    compiled(small_probe.tokens.view(24, 12))
    assert torch.equal(capture(prepare(compiled), small_probe, ["all"]).layers[-1].states, expected)
    hand_written.compile(backend="eager")
    hand_written(small_probe.tokens.view(24, 12))
    assert torch.equal(capture(prepare(hand_written), small_probe, ["all"]).layers[-1].states, expected)


def test_weights_that_evaluation_rescales_are_put_back(small_probe):
    """RWKV divides them in place when it is first evaluated, and says so in an attribute."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "attention_hidden_size": 16, "num_hidden_layers": 4, "intermediate_size": 32}
    model = RwkvModel(RwkvConfig(vocab_size=50, rescale_every=1, **sizes)).train()
    before = copy.deepcopy(model.state_dict())
    first = capture(prepare(model), small_probe, ["all"]).layers[-1].states
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert not model.layers_are_rescaled
    assert torch.equal(capture(prepare(model), small_probe, ["all"]).layers[-1].states, first)
    model.eval()(small_probe.tokens[None, :12])
    assert model.layers_are_rescaled
    rescaled = copy.deepcopy(model.state_dict())
    assert torch.equal(capture(prepare(model), small_probe, ["all"]).layers[-1].states, first)
    assert all(torch.equal(weight, rescaled[name]) for name, weight in model.state_dict().items())


def test_weights_that_are_overwritten_unseen_are_a_loud_error(hand_written, small_probe):
    def forward(model, batch):
        with torch._C.DisableTorchFunction():
            model.head.weight.mul_(2)
        return model(batch.input_ids)

    with pytest.raises(RuntimeError, match="it overwrote 'head.weight', which cannot be restored; measure a copy"):
        capture(prepare(hand_written, forward=forward), small_probe, ["all"])


def test_what_a_forward_pass_changes_is_undone(hand_written, small_probe):
    hand_written.register_buffer("n_seen", torch.zeros(1))
    hand_written.register_buffer("table", torch.zeros(1))
    hand_written.scale = 1.0

    def forward(model, batch):
        model.n_seen += batch.input_ids.numel()
        model.table = torch.ones(7)
        model.scale = 2.0
        model.norm = nn.Identity()
        model.head.weight.data[0] = 7.0
        return model(batch.input_ids)

    norm, head = hand_written.norm, hand_written.head.weight.detach().clone()
    capture(prepare(hand_written, forward=forward), small_probe, ["all"])
    assert (hand_written.n_seen.tolist(), hand_written.table.tolist(), hand_written.scale) == ([0.0], [0.0], 1.0)
    assert hand_written.norm is norm
    assert torch.equal(hand_written.head.weight, head)
