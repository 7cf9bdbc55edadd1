"""Lists of blocks that hold lists: parts of blocks are not taken for layers."""

import re

import numpy as np
import pytest
import torch
from small import Block
from torch import nn

from repdyn import measure
from repdyn.capture.blocks import find_blocks
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare


class Attention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(dim, 2, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


class Residual(nn.Module):
    def forward(self, x, stream):
        return x + stream


class OfParts(nn.Module):
    """A model whose list holds a list for each half of a block: a norm, what it is about, and the
    sum (lucidrains/x-transformers, x_transformers/x_transformers.py).
    """

    def __init__(self, depth: int = 3, dim: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, dim)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            feed_forward = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))
            for module in (Attention(dim), feed_forward):
                self.layers.append(
                    nn.ModuleList([nn.ModuleList([nn.LayerNorm(dim)]), module, Residual()])
                )

    def forward(self, tokens):
        stream = self.embedding(tokens)
        for (norm,), part, residual in self.layers:
            stream = residual(part(norm(stream)), stream)
        return stream


def test_parts_of_blocks_are_no_layers(small_probe):
    with pytest.raises(ValueError, match="parts of blocks") as caught:
        measure(OfParts(), small_probe)
    assert "(LayerNorm, Attention, Residual, Sequential)" in str(caught.value)
    layers = eval(re.search(r"layers=(\[.*?\])", str(caught.value))[1])
    found = measure(OfParts(), small_probe, layers=layers).rows
    assert {row.layer: row.module for row in found if row.layer} == {
        1: "layers.1.2",
        2: "layers.3.2",
        3: "layers.5.2",
    }


def test_a_pattern_of_the_sums_gives_the_stream(small_probe):
    """Layer 0 is the embedding, and each layer the sum after half a block."""
    model = OfParts().eval()
    streams = []
    states = capture(prepare(model, small_probe, "layers.*.2"), small_probe, ["all"])
    tokens = small_probe.tokens.view(24, 12)

    def note_stream(_module, inputs, output):
        if not streams:
            streams.extend(inputs[1:])
        streams.append(output)

    for _, _, residual in model.layers:
        residual.register_forward_hook(note_stream)
    with torch.no_grad():
        model(tokens)
    assert len(states.layers) == len(streams) == 7
    sampled = torch.from_numpy(np.flatnonzero(states.rows >= 0))
    for layer, stream in zip(states.layers, streams, strict=True):
        expected = stream.flatten(0, 1)[sampled]
        torch.testing.assert_close(
            layer.states[states.rows[sampled]], expected, rtol=1e-5, atol=1e-6
        )


def test_stages_of_whole_blocks_are_flattened():
    """(huggingface/transformers, src/transformers/models/pvt/modeling_pvt.py)"""
    model = nn.Module()
    model.stages = nn.ModuleList(nn.ModuleList(Block(16, True) for _ in range(2)) for _ in range(3))
    assert [block.name for block in find_blocks(model)] == [
        f"stages.{i}.{j}" for i in range(3) for j in range(2)
    ]


class Around(nn.Module):
    """The residual connection around a part of a block, of one class for all parts."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.part = module

    def forward(self, x):
        return x + self.part(self.norm(x))


def feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))


class Whole(nn.Module):
    """A block whose mixer is one of two kinds (google-deepmind/recurrentgemma,
    recurrentgemma/torch/modules.py).
    """

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = Around(mixer)
        self.feed_forward = Around(feed_forward())


def test_whole_blocks_whose_mixer_takes_turns_are_layers():
    model = nn.Module()
    mixers = [Attention(16), feed_forward()]
    model.layers = nn.ModuleList(Whole(mixers[number % 2]) for number in range(6))
    assert len(find_blocks(model)) == 6
