"""Capture: the right vectors of the right layers, and a model left as it was found."""

import numpy as np
import pytest
import torch
from small import HandWritten, random_tokens
from torch import nn
from transformers import AutoModelForCausalLM, T5Config, T5Model

from repdyn import Probe
from repdyn.capture.blocks import find_blocks
from repdyn.capture.capture import capture, causality
from repdyn.capture.trial import prepare
from repdyn.models import build_model

RAGGED_IDS = random_tokens(10, 9)
RAGGED_MASK = (
    torch.arange(9)[None, :] < torch.tensor([9, 4, 7, 9, 3, 8, 9, 5, 6, 9])[:, None]
).long()


def tiny(family: str, **changes):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 50,
        "hidden_size": 16,
        "n_layers": 3,
        "n_heads": 2,
        "context_length": 16,
        "dropout": 0.1,
    }
    return build_model(family, **sizes | changes, pad_token_id=1)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_batch_size_and_padding_side_do_not_matter(family):
    model = tiny(family)
    left = torch.stack(
        [ids.roll(int(9 - n)) for ids, n in zip(RAGGED_IDS, RAGGED_MASK.sum(1), strict=True)]
    )
    left_mask = torch.stack(
        [m.roll(int(9 - n)) for m, n in zip(RAGGED_MASK, RAGGED_MASK.sum(1), strict=True)]
    )
    probes = [
        Probe.from_tokens(ids, mask, max_vectors=56, pad_id=1)
        for ids, mask in [(RAGGED_IDS, RAGGED_MASK), (left, left_mask)]
    ]
    reference = capture(prepare(model, probes[0]), probes[0], ["all"], tokens_per_forward=1000)
    for probe in probes:
        for tokens_per_forward in (1, 20, 81, 1000):
            states = capture(
                prepare(model, probe), probe, ["all"], tokens_per_forward=tokens_per_forward
            )
            assert np.array_equal(states.rows, reference.rows)
            for ours, expected in zip(states.layers, reference.layers, strict=True):
                torch.testing.assert_close(ours.states, expected.states, rtol=1e-5, atol=1e-5)


def test_causality_that_cannot_be_told(hand_written, small_probe):
    """Projections begin at zero in KellerJordan/modded-nanogpt, train_gpt.py."""
    nn.init.constant_(hand_written.token.weight, float("nan"))
    assert causality(prepare(hand_written, small_probe), small_probe) == {None: None}
    identity = HandWritten()
    for block in identity.blocks:
        nn.init.zeros_(next(p for n, p in block.named_parameters() if "out" in n and p.ndim == 2))
    assert causality(prepare(identity, small_probe), small_probe) == {None: None}
    # no other token to try
    probe = Probe.from_tokens([[5] * 9] * 3, max_vectors=9)
    assert causality(prepare(HandWritten(), probe), probe) == {None: None}


def test_head_is_not_run_unless_it_is_asked_for(small_probe):
    model = tiny("gpt2")
    model.lm_head.register_forward_pre_hook(
        lambda *_: pytest.fail("the head's logits are not needed")
    )
    capture(prepare(model, small_probe), small_probe, ["all"])
    capture(
        prepare(
            AutoModelForCausalLM.from_config(model.config),
            small_probe,
            ["transformer.h.*", "lm_head"],
        ),
        small_probe,
        ["all"],
    )


def tiny_t5():
    torch.manual_seed(0)
    return T5Model(
        T5Config(
            vocab_size=50,
            d_model=16,
            d_ff=32,
            d_kv=8,
            num_layers=2,
            num_decoder_layers=3,
            num_heads=2,
        )
    )


def test_stacks_named_are_the_stacks_found(small_probe):
    model = tiny_t5()
    by_default, named = (
        capture(prepare(model, small_probe, layers), small_probe, ["all"])
        for layers in (None, {"encoder": "encoder.block.*", "decoder": ["decoder.block.*"]})
    )
    for ours, theirs in zip(named.layers, by_default.layers, strict=True):
        assert ours.stack == theirs.stack
        assert ours.index == theirs.index
        assert ours.depth == theirs.depth
        assert ours.module == theirs.module
        assert torch.equal(ours.states, theirs.states)
    assert causality(prepare(model, small_probe), small_probe) == {
        "encoder": False,
        "decoder": True,
    }


@pytest.mark.parametrize("pattern", ["layers.*", "gpt_neox.layers.*"])
@pytest.mark.parametrize("with_head", [True, False])
def test_a_pattern_matches_a_model_with_and_without_its_head(pattern, with_head):
    model = tiny("gpt_neox")
    found = find_blocks(model if with_head else model.base_model, pattern)
    assert [block.module for block in found] == list(model.base_model.layers)
