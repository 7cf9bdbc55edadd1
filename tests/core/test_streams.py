"""Blocks that do not return the one stream of states: their sum, the chosen one, or a refusal."""

from __future__ import annotations

import ast
import re

import pytest
import torch
from small import Block, HandWritten, random_tokens
from torch import nn

from repdyn import Probe, measure
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare

IDS = random_tokens(24, 12)


def probe_of(kind: str) -> Probe:
    if kind == "inputs":
        return Probe.from_inputs(
            list(IDS.split(6)),
            causal=True,
            vectors_per_input=8,
            max_vectors=192,
            batch_vectors=96,
        )
    return Probe.from_tokens(IDS, max_vectors=192, batch_vectors=96)


def run_model(model, batch):
    return model(batch.input_ids)


WAYS = {
    "tokens": ("tokens", {}),
    "inputs": ("inputs", {}),
    "forward": ("tokens", {"forward": run_model}),
    "named": ("tokens", {"layers": "blocks.*"}),
    "named, inputs": ("inputs", {"layers": "blocks.*"}),
    "some named": ("tokens", {"layers": ["blocks.1", "blocks.2"]}),
}


def are_rows_of(states, whole) -> bool:
    """Whether each vector is one of all, up to the rounding of another batch."""
    distances = torch.cdist(
        states, whole.flatten(0, 1), compute_mode="donot_use_mm_for_euclid_dist"
    )
    return float(distances.min(dim=1).values.max()) < 1e-4


class Branch(nn.Module):
    """A block without its residual connection, as those of lucidrains/vit-pytorch,
    vit_pytorch/simple_vit.py.
    """

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(16, causal=True)

    def forward(self, x):
        return self.block(x) - x


class AddedOutside(HandWritten):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Branch() for _ in range(3))

    def states(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = x + block(x)
        return x

    def forward(self, tokens):
        return self.head(self.norm(self.states(tokens)))


class Parallel(AddedOutside):
    def states(self, tokens):
        x = self.token(tokens)
        return x + sum(block(x) for block in self.blocks)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [AddedOutside, Parallel])
def test_blocks_whose_outputs_are_added_outside_are_refused_in_every_way(kind, way):
    """Their branches were stored as layers, on inputs and where the advice of an error that named
    layers= was followed."""
    of, options = WAYS[way]
    with pytest.raises(RuntimeError, match="does not take the output"):
        measure(kind(), probe_of(of), ["anisotropy"], **options)


def test_what_such_blocks_return_can_be_measured_on_purpose():
    rows = measure(AddedOutside(), probe_of("tokens"), ["anisotropy"], {"outputs": "blocks.*"}).rows
    assert {row.stack for row in rows} == {"outputs"}


class Residual(nn.Module):
    """Returns what it adds to the residual apart from that, and the next block adds both before its
    norm (state-spaces/mamba, mamba_ssm/modules/block.py).
    """

    def __init__(self) -> None:
        super().__init__()
        self.block = Branch()
        self.norm = nn.LayerNorm(16)

    def forward(self, x, residual):
        residual = x if residual is None else x + residual
        return self.block(self.norm(residual)), residual


class Deferred(HandWritten):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(3))

    def stream(self, tokens):
        x, residual = self.token(tokens), None
        states = [x]
        for block in self.blocks:
            x, residual = block(x, residual)
            states.append(x + residual)
        return states

    def forward(self, tokens):
        return self.head(self.norm(self.stream(tokens)[-1]))


@pytest.mark.parametrize("way", WAYS)
def test_a_residual_that_is_added_in_the_next_block_is_added_to_the_layer(way):
    """The branch alone was stored as the layer."""
    torch.manual_seed(0)
    model = Deferred()
    of, options = WAYS[way]
    layers = options.get("layers")
    probe = probe_of(of)
    states = capture(prepare(model, probe, layers, forward=options.get("forward")), probe, ["all"])
    with torch.no_grad():
        expected = model.eval().stream(IDS)
    if way == "some named":
        expected = expected[1:]
    for index, layer in enumerate(states):
        if index == 0 and way == "some named":  # the input of a block in the middle
            continue
        assert are_rows_of(layer.states, expected[index]), layer.module


class Beside(nn.Module):
    """Returns what it attends to beside the states, as it came (naver/croco, models/blocks.py)."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(16, causal=True)

    def forward(self, x, memory):
        return self.block(x + memory), memory


class WithMemory(HandWritten):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Beside() for _ in range(3))

    def forward(self, tokens):
        x = self.token(tokens)
        memory = self.position(tokens % 7)
        for block in self.blocks:
            x, memory = block(x, memory)
        return self.head(self.norm(x))


@pytest.mark.parametrize("of", ["tokens", "inputs"])
def test_what_passes_through_unchanged_is_no_second_stream(of):
    """Such blocks would be refused until one of two streams is chosen."""
    assert prepare(WithMemory(), probe_of(of)).slots == {None: (0, 0)}


class Joint(nn.Module):
    """Two streams, each of which changes by the other, as text and image do
    (black-forest-labs/flux, src/flux/modules/layers.py).
    """

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(16, 16)
        self.other = nn.Linear(16, 16)

    def forward(self, hidden, context):
        return context + self.other(hidden.tanh()), hidden + self.one(context.tanh())


class TwoStreams(HandWritten):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Joint() for _ in range(3))

    def streams(self, tokens):
        hidden = self.token(tokens)
        context = self.position(tokens % 7)
        both = [(context, hidden)]
        for block in self.blocks:
            context, hidden = block(hidden, context)
            both.append((context, hidden))
        return both

    def forward(self, tokens):
        return self.head(self.norm(self.streams(tokens)[-1][1]))


@pytest.mark.parametrize("of", ["tokens", "inputs"])
def test_blocks_that_carry_two_streams_are_refused_until_one_is_chosen(of):
    """The first was stored, whichever it was."""
    torch.manual_seed(0)
    model = TwoStreams()
    with pytest.raises(RuntimeError, match="one stream") as refused:
        measure(model, probe_of(of), ["anisotropy"])
    named = re.search(r"layers=(\[.*\])", str(refused.value))
    assert named is not None
    layers = ast.literal_eval(named[1])
    with torch.no_grad():
        expected = model.eval().streams(IDS)
    for stream, chosen in ((1, layers), (0, "blocks.*:0")):
        states = capture(prepare(model, probe_of(of), chosen), probe_of(of), ["all"])
        for index, layer in enumerate(states):
            assert are_rows_of(layer.states, expected[index][stream])
    with pytest.raises(ValueError, match="part 5"):
        measure(model, probe_of(of), ["anisotropy"], "blocks.*:5")


def test_of_two_streams_that_do_not_move_yet_the_head_takes_the_states():
    """The first was stored, whichever it was, where branches begin at zero."""
    torch.manual_seed(0)
    model = TwoStreams()
    for block in model.blocks:
        for weight in block.parameters():
            nn.init.zeros_(weight)
    probe = probe_of("tokens")
    states = capture(prepare(model, probe), probe, ["all"])
    with torch.no_grad():
        expected = model.eval().streams(IDS)
    for index, layer in enumerate(states):
        assert are_rows_of(layer.states, expected[index][1]), layer.module


class ValueResidual(nn.Module):
    """Hands on the values that the first block computes beside the states, as those of RWKV-7
    (BlinkDL/RWKV-LM, RWKV-v7/rwkv_v7_demo.py) and of value residuals.
    """

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(16, 16)
        self.out = nn.Linear(16, 16)

    def forward(self, x, first, is_first):
        value = self.value(x)
        first = value if is_first else first
        return x + self.out((value + first).cumsum(1)), first


class ValueResiduals(HandWritten):
    def __init__(self, *, begins_with: str, adds_nothing: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ValueResidual() for _ in range(3))
        self.begins_with = begins_with
        for block in self.blocks if adds_nothing else ():
            nn.init.zeros_(block.out.weight)
            nn.init.zeros_(block.out.bias)

    def states(self, tokens):
        x = self.token(tokens)
        first = torch.zeros_like(x) if self.begins_with == "zeros" else None
        states = [x]
        for number, block in enumerate(self.blocks):
            x, first = block(x, first, number == 0)
            states.append(x)
        return states

    def forward(self, tokens):
        return self.head(self.norm(self.states(tokens)[-1]))


@pytest.mark.parametrize("adds_nothing", [False, True])
@pytest.mark.parametrize("begins_with", ["nothing", "zeros"])
def test_what_the_first_block_makes_for_all_others_is_no_second_stream(begins_with, adds_nothing):
    """These values were stored as the states where branches begin at zero, and else they were what
    the refusal of two streams proposed.
    """
    torch.manual_seed(0)
    model = ValueResiduals(begins_with=begins_with, adds_nothing=adds_nothing)
    probe = probe_of("tokens")
    states = capture(prepare(model, probe), probe, ["all"])
    with torch.no_grad():
        expected = model.eval().states(IDS)
    for index, layer in enumerate(states):
        assert are_rows_of(layer.states, expected[index]), layer.module
