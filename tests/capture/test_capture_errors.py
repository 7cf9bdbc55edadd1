"""Capture: models whose states cannot be captured are refused, with the reason."""

import copy

import pytest
import torch
from small import HandWritten
from tiny_models import RAGGED_IDS, RAGGED_MASK
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
)

from repdyn import Probe
from repdyn.capture.blocks import find_blocks
from repdyn.capture.capture import capture
from repdyn.capture.prepared_model import prepare


def two_lists():
    model = HandWritten()
    model.spare = nn.ModuleList(copy.deepcopy(block) for block in model.blocks)
    return model


@pytest.mark.parametrize(
    ("make", "layers", "message"),
    [
        (
            lambda: nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4)),
            None,
            r"list of blocks \(nn.ModuleList\), found none in Sequential",
        ),
        (HandWritten, "blocks.x*", r"'blocks.x\*' matches none; lists of blocks in it: \"blocks.\*\" \(3 of Block\)"),
        (
            two_lists,
            None,
            r"found several of similar size in HandWritten; choose with layers= one of: \"blocks.\*\" \(3 of Block\), "
            r'"spare.\*" \(3 of Block\); or measure several, each as a stack of its own, with '
            r'layers={"blocks": "blocks.\*", "spare": "spare.\*"}',
        ),
    ],
    ids=["no blocks", "no match", "two stacks"],
)
def test_blocks_that_cannot_be_told(make, layers, message):
    with pytest.raises(ValueError, match=message):
        find_blocks(make(), layers)


def test_silent_hook_is_a_loud_error(hand_written, small_probe):
    hand_written.spare = nn.ModuleList(copy.deepcopy(block) for block in hand_written.blocks)
    with pytest.raises(
        RuntimeError,
        match=r"3 of 3 did not: spare.0, .* with layers=; the model has \"blocks.\*\" \(3 of Block\), \"spare",
    ):
        capture(prepare(hand_written, "spare.*"), small_probe, ["all"])


def test_output_that_is_no_state_is_refused(hand_written, small_probe):
    model = BertModel(
        BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    )
    with pytest.raises(RuntimeError, match=r"expected states of shape \(24, 12, 'dim'\) at 'pooler', got \(24, 16\)"):
        capture(prepare(model, "pooler"), small_probe, ["all"])
    with pytest.raises(
        ValueError, match="expected a probe without padding, because HandWritten.forward takes no attention_mask"
    ):
        capture(prepare(hand_written), Probe.from_tokens(RAGGED_IDS, RAGGED_MASK, max_vectors=56), ["all"])


def test_padding_with_a_forward_of_ones_own(hand_written):
    probe = Probe.from_tokens(RAGGED_IDS, RAGGED_MASK, max_vectors=56)
    states = capture(prepare(hand_written, forward=lambda model, batch: model(batch.input_ids)), probe, ["all"])
    assert states.layers[-1].states.isfinite().all()


def test_blocks_that_vary_from_batch_to_batch_are_refused(hand_written, small_probe):
    def forward_once_more(model, batch, calls=[]):  # noqa: B006
        calls.append(1)
        model(batch.input_ids)
        if len(calls) > 1:
            model.blocks[0](torch.zeros(*batch.input_ids.shape, 16))

    def forward_in_another_order(model, batch, calls=[]):  # noqa: B006
        calls.append(1)
        x = model.token(batch.input_ids)
        for number in (0, 1, 2) if len(calls) == 1 else (0, 2, 1):
            x = model.blocks[number](x)

    same = "expected the same blocks to run in the same order for every batch, got "
    settings = {"tokens_per_forward": 24}
    with pytest.raises(RuntimeError, match=f"{same}'blocks.0' as call 4 where the first batch had none; name"):
        capture(prepare(hand_written, forward=forward_once_more), small_probe, ["all"], **settings)
    with pytest.raises(RuntimeError, match=f"{same}'blocks.2' as call 2 where the first batch had 'blocks.1'; name"):
        capture(prepare(hand_written, forward=forward_in_another_order), small_probe, ["all"], **settings)


def test_padding_that_the_model_cannot_be_told_of_is_refused(hand_written):
    class Named(HandWritten):
        def forward(self, input_ids):
            return super().forward(input_ids)

    probe = Probe.from_tokens(RAGGED_IDS, RAGGED_MASK, max_vectors=56)
    for model in (hand_written, Named()):
        with pytest.raises(
            ValueError, match=f"without padding, because {type(model).__name__}.forward takes no attention_mask"
        ):
            capture(prepare(model), probe, ["all"])


def test_block_that_returns_nothing_is_refused(hand_written, small_probe):
    class Silent(nn.Module):
        def forward(self, x):
            return None

    hand_written.blocks[1] = Silent()
    with pytest.raises(RuntimeError, match="at 'blocks.1', got NoneType; name blocks"):
        capture(prepare(hand_written, "blocks.*"), small_probe, ["all"])
