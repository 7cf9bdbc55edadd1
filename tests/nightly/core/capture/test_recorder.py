"""The recorder: layer 0 and each block's output are the states that run from one block to the
next.
"""

from __future__ import annotations

import copy

import pytest
import torch
from small import Block, HandWritten
from torch import nn

from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare

DIM = 16


class Streams(HandWritten):
    """Remembers what enters its first block and what each block puts out."""

    def embed(self, tokens):
        self.stream = [self.token(tokens) + self.position(torch.arange(tokens.shape[1]))]
        return self.stream[0]

    def seen(self, x):
        self.stream.append(x)
        return x


def with_blocks(model_class, block_class, **settings):
    torch.manual_seed(0)
    model = model_class(**settings)
    model.blocks = nn.ModuleList(block_class(DIM, True) for _ in model.blocks)
    return model


def assert_layers_are_the_stream(model, probe):
    states = capture(prepare(model, probe), probe, ["all"], tokens_per_forward=1000).layers
    rows = probe.sample("all").ravel()
    with torch.no_grad():
        model.eval()(next(probe.batches(1000)).input_ids)
    assert len(states) == len(model.stream)
    for layer, expected in zip(states, model.stream, strict=True):
        torch.testing.assert_close(
            layer.states, expected.flatten(0, 1)[rows].detach(), rtol=1e-5, atol=1e-5
        )
    in_batches = capture(prepare(model, probe), probe, ["all"], tokens_per_forward=36).layers
    for layer, whole in zip(in_batches, states, strict=True):
        torch.testing.assert_close(layer.states, whole.states, rtol=1e-5, atol=1e-5)


class BranchFirst(Block):
    """Returns what it adds beside the stream, as state-spaces/mamba, mamba_ssm/modules/block.py,
    returns both.
    """

    def forward(self, x):
        return self.feed_forward(x), super().forward(x)


class PairPassedOn(Streams):
    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = self.seen(block(x)[1])
        return x


class MemoryFirst(Block):
    def forward(self, memory, x):
        return super().forward(x + memory)


class Remembering(Streams):
    def forward(self, tokens):
        memory = self.token(tokens.flip(1))
        x = self.embed(tokens)
        for block in self.blocks:
            x = self.seen(block(memory, x))
        return x


class Named(Block):
    def forward(self, *, rope, residual):
        return {"rope": rope, "residual": super().forward(residual)}


class ByName(Streams):
    def forward(self, tokens):
        rope = self.token(tokens.flip(1))
        x = self.embed(tokens)
        for block in self.blocks:
            x = self.seen(block(rope=rope, residual=x)["residual"])
        return x


@pytest.mark.parametrize(
    ("model_class", "block_class"),
    [
        (PairPassedOn, BranchFirst),
        (Remembering, MemoryFirst),
        (ByName, Named),
    ],
    ids=["branch put out first", "memory taken in first", "all by name"],
)
def test_states_are_what_runs_from_block_to_block(model_class, block_class, small_probe):
    assert_layers_are_the_stream(with_blocks(model_class, block_class), small_probe)


class BranchesInPairs(HandWritten):
    """Attention and feed-forward parts in a list of pairs, added by the model
    (lucidrains/vit-pytorch, vit_pytorch/simple_vit.py).
    """

    def __init__(self):
        super().__init__()
        parts = nn.ModuleList(
            [self.blocks[0].feed_forward, copy.deepcopy(self.blocks[0].feed_forward)]
        )
        self.blocks = nn.ModuleList(copy.deepcopy(parts) for _ in range(3))

    def forward(self, tokens):
        x = self.token(tokens)
        for first, second in self.blocks:
            x = x + first(x)
            x = x + second(x)
        return x


class RunsTwice(HandWritten):
    def forward(self, tokens):
        return super().forward(tokens) + super().forward(tokens)


@pytest.mark.parametrize(
    ("make", "before", "after"),
    [
        (BranchesInPairs, "blocks.0.0", "blocks.0.1"),
        (RunsTwice, "blocks.2", "blocks.0"),
    ],
    ids=["branches", "run twice"],
)
def test_blocks_that_pass_no_stream_on_are_refused(make, before, after, small_probe):
    with pytest.raises(
        RuntimeError, match=f"'{after}' does not take the output of '{before}'.*layers="
    ):
        capture(prepare(make(), small_probe), small_probe, ["all"])
