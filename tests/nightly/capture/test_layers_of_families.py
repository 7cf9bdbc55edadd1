"""Capture: the right vectors of the right layers, and a model left as it was found."""

import copy

import numpy as np
import pytest
import torch
from small import HandWritten
from tiny_models import RAGGED_IDS, RAGGED_MASK, tiny
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    T5Config,
    T5Model,
)

from repdyn import Probe
from repdyn.capture.blocks import find_blocks
from repdyn.capture.capture import capture, causality
from repdyn.capture.prepared_model import prepare


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_batch_size_and_padding_side_do_not_matter(family):
    model = tiny(family)
    left = torch.stack([ids.roll(int(9 - n)) for ids, n in zip(RAGGED_IDS, RAGGED_MASK.sum(1), strict=True)])
    left_mask = torch.stack([m.roll(int(9 - n)) for m, n in zip(RAGGED_MASK, RAGGED_MASK.sum(1), strict=True)])
    probes = [
        Probe.from_tokens(ids, mask, max_vectors=56, pad_id=1)
        for ids, mask in [(RAGGED_IDS, RAGGED_MASK), (left, left_mask)]
    ]
    reference = capture(prepare(model), probes[0], ["all"], tokens_per_forward=1000)
    for probe in probes:
        for tokens_per_forward in (1, 20, 81, 1000):
            states = capture(prepare(model), probe, ["all"], tokens_per_forward=tokens_per_forward)
            assert np.array_equal(states.rows, reference.rows)
            for ours, expected in zip(states.layers, reference.layers, strict=True):
                torch.testing.assert_close(ours.states, expected.states, rtol=1e-5, atol=1e-5)


def test_causality_that_cannot_be_told(hand_written, small_probe):
    nn.init.constant_(hand_written.token.weight, float("nan"))
    assert causality(prepare(hand_written), small_probe) == {None: None}
    identity = HandWritten()
    for block in identity.blocks:
        nn.init.zeros_(next(p for n, p in block.named_parameters() if "out" in n and p.ndim == 2))
    assert causality(prepare(identity), small_probe) == {
        None: None
    }  # as some are initialised: no position sees any other
    assert causality(prepare(HandWritten()), Probe.from_tokens([[5] * 9] * 3, max_vectors=9)) == {
        None: None
    }  # no other token to try


def test_head_is_not_run_unless_it_is_asked_for(small_probe):
    model = tiny("gpt2")
    model.lm_head.register_forward_pre_hook(lambda *_: pytest.fail("the head's logits are not needed"))
    capture(prepare(model), small_probe, ["all"])
    capture(
        prepare(AutoModelForCausalLM.from_config(model.config), ["transformer.h.*", "lm_head"]), small_probe, ["all"]
    )


def tiny_t5():
    torch.manual_seed(0)
    return T5Model(
        T5Config(vocab_size=50, d_model=16, d_ff=32, d_kv=8, num_layers=2, num_decoder_layers=3, num_heads=2)
    )


def test_stacks_named_are_the_stacks_found(small_probe):
    model = tiny_t5()
    found, named = (
        capture(prepare(model, layers), small_probe, ["all"])
        for layers in (None, {"encoder": "encoder.block.*", "decoder": ["decoder.block.*"]})
    )
    for ours, theirs in zip(named.layers, found.layers, strict=True):
        assert (ours.stack, ours.index, ours.depth, ours.module) == (
            theirs.stack,
            theirs.index,
            theirs.depth,
            theirs.module,
        )
        assert torch.equal(ours.states, theirs.states)
    assert causality(prepare(model), small_probe) == {"encoder": False, "decoder": True}


@pytest.mark.parametrize("pattern", ["layers.*", "gpt_neox.layers.*"])
@pytest.mark.parametrize("with_head", [True, False])
def test_a_pattern_matches_a_model_with_and_without_its_head(pattern, with_head):
    model = tiny("gpt_neox")
    found = find_blocks(model if with_head else model.base_model, pattern)
    assert [block.module for block in found] == list(model.base_model.layers)


def test_several_streams_of_a_token_are_one_vector(hand_written, small_probe):
    class Streams(nn.Module):
        def __init__(self, block, first):
            super().__init__()
            self.block, self.first = block, first

        def forward(self, streams):
            x = self.block(streams.sum(0 if self.first else 2))
            return torch.stack([x, 2 * x, -x], 0 if self.first else 2)

    expected = capture(prepare(hand_written), small_probe, ["all"]).layers[1].states
    for first in (True, False):
        model = copy.deepcopy(hand_written)
        model.blocks = nn.ModuleList(Streams(block, first) for block in model.blocks)
        model.norm, model.head = nn.Identity(), nn.Identity()

        def forward(model, batch, dim=0 if first else 2):
            x = model.token(batch.input_ids) + model.position(torch.arange(batch.input_ids.shape[1]))
            x = torch.stack([x, 0 * x, 0 * x], dim)
            for block in model.blocks:
                x = block(x)

        states = capture(prepare(model, forward=forward), small_probe, ["all"]).layers
        assert [layer.states.shape[1] for layer in states] == [48] * 4
        torch.testing.assert_close(states[1].states, torch.cat([expected, 2 * expected, -expected], 1))
