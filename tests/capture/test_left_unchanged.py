"""A model left as it was found, whichever way its forward pass writes into it."""

from __future__ import annotations

import copy

import pytest
import torch
from small import HandWritten
from torch import nn
from torch.nn.functional import batch_norm

from repdyn.capture.capture import capture
from repdyn.capture.prepared_model import prepare


def by_a_list(model):
    torch._foreach_mul_([model.head.weight, model.head.bias], 2.0)


def by_keyword(model):
    torch.mul(input=model.head.weight, other=2.0, out=model.head.weight)


def by_an_initialisation(model):
    nn.init.normal_(model.head.weight)


def by_a_norm_in_training(model):
    model.running.train()
    model.running(torch.randn(4, 16))


def by_a_norm_as_a_function(model):
    batch_norm(torch.randn(4, 16), model.running.running_mean, model.running.running_var, training=True)


@pytest.mark.parametrize(
    "write", [by_a_list, by_keyword, by_an_initialisation, by_a_norm_in_training, by_a_norm_as_a_function]
)
def test_writes_are_undone(write, hand_written, small_probe):
    hand_written.running = nn.BatchNorm1d(16)
    before = copy.deepcopy(hand_written.state_dict())
    changed = []

    def forward(model, batch):
        write(model)
        changed.extend(name for name, now in model.state_dict().items() if not torch.equal(now, before[name]))
        return model(batch.input_ids)

    capture(prepare(hand_written, forward=forward), small_probe, ["all"])
    assert changed
    assert all(torch.equal(now, before[name]) for name, now in hand_written.state_dict().items())


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_that_renormalises_itself_is_measured(kind, small_probe):
    class Bag(nn.EmbeddingBag):
        def forward(self, tokens):
            return super().forward(tokens.reshape(-1, 1)).unflatten(0, tokens.shape)

    torch.manual_seed(0)
    model = HandWritten()
    model.token = (Bag if kind is nn.EmbeddingBag else kind)(50, 16, max_norm=1.0)
    before = copy.deepcopy(model.state_dict())
    states = capture(prepare(model), small_probe, ["all"]).layers[0].states
    assert all(torch.equal(now, before[name]) for name, now in model.state_dict().items())
    with torch.no_grad():
        expected = model.token(small_probe.tokens.view(24, 12)) + model.position(torch.arange(12))
    assert torch.equal(states, expected.flatten(0, 1)[small_probe.sample("all").ravel()])
    assert not torch.equal(model.token.weight, before["token.weight"])
