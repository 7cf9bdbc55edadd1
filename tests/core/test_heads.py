"""Queries and keys of attention heads: that they are those the attention compares."""

import math

import pytest
import torch
from golden.models import model_of, probe_of
from small import HandWritten, random_tokens
from torch import nn

import repdyn
from repdyn import measure
from repdyn.capture.capture import capture
from repdyn.capture.heads import NESTED, NO_CALL
from repdyn.capture.trial import prepare

METRICS = ["query_anisotropy", "key_anisotropy", "query_cosine", "key_cosine"]


def small(name):
    torch.manual_seed(0)
    return HandWritten() if name == "hand_written" else model_of(name)


# rotary positions and a key that two heads share; a fused weight; an encoder; torch's own module
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "hand_written"])
def test_their_products_are_the_attention_weights(name):
    """Another order of heads or tokens, or vectors before the rotation of positions, would give
    other weights."""
    model = small(name).eval()
    sequences = random_tokens(2, 12).tolist()
    weights = repdyn.attention_weights(model, sequences)
    states = repdyn.layer_states(model, sequences, captures={"queries_and_keys"})
    assert states.layers[0].queries_and_keys is None
    for layer in states.layers[1:]:
        compared = layer.queries_and_keys
        for number, (expected, _) in enumerate(weights.of(layer.stack, layer.index)):
            rows = slice(12 * number, 12 * (number + 1))
            queries = compared.by_head(compared.queries[rows])
            keys = compared.by_head(compared.keys[rows])
            scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
            if name != "bert":
                scores.masked_fill_(torch.ones(12, 12, dtype=torch.bool).triu(1), -math.inf)
            torch.testing.assert_close(scores.softmax(-1), expected, rtol=1e-4, atol=1e-6)


def test_they_are_of_the_sampled_tokens():
    """The mean over windows and heads of a probe with padding, from its own windows one by one."""
    model = small("llama")
    probe = probe_of("dense", 20, 2)
    profile = measure(model, probe, ["query_cosine@no_sink"], tokens_per_forward=64)
    row = next(row for row in profile.rows if row.layer == 2 and row.head == 1)
    windows = probe.tokens.split(probe.lengths.tolist())
    states = repdyn.layer_states(
        model, [window.tolist() for window in windows], captures={"queries_and_keys"}
    )
    queries = states.layers[2].queries_and_keys.queries[:, 12:].double()
    units = queries / queries.norm(dim=1, keepdim=True)
    expected = []
    for tokens in probe.sample("no_sink"):
        cosines = units[tokens] @ units[tokens].T
        n = len(tokens)
        expected.append((cosines.sum() - n) / (n * (n - 1)))
    assert row.value == pytest.approx(torch.stack(expected).mean().item(), rel=1e-5)
    assert row.n_vectors == min(map(len, probe.sample("no_sink")))


def test_they_leave_the_other_values_to_the_last_bit():
    model = small("plain")
    probe = probe_of("dense", 20, 2, padded=False)
    alone = measure(model, probe, ["anisotropy"]).rows
    beside = measure(model, probe, ["anisotropy", *METRICS]).rows
    assert [row.value for row in alone] == [
        row.value for row in beside if row.metric == "anisotropy"
    ]
    assert all(math.isfinite(row.value) for row in beside if row.metric in METRICS)


def test_without_them_there_is_a_reason():
    """An attention that is computed step by step shows no queries that are surely its own."""
    model = small("llama")
    model.set_attn_implementation("eager")
    rows = measure(model, probe_of("dense", 20, 2), ["query_anisotropy", "key_cosine"]).rows
    assert {row.layer for row in rows} == {1, 2}
    for row in rows:
        assert math.isnan(row.value)
        assert NO_CALL in row.reason


class Twice(nn.Module):
    """A block in a block."""

    def __init__(self, block):
        super().__init__()
        self.inner = block

    def forward(self, x):
        return self.inner(x)


def test_of_a_block_in_a_block_it_is_not_known_whose_they_are():
    model = small("plain")
    model.blocks = nn.ModuleList(map(Twice, model.blocks))
    probe = probe_of("dense", 20, 2, padded=False)
    prepared = prepare(model, probe, ["blocks.*", "blocks.*.inner"])
    layers = capture(prepared, probe, ["all"], captures={"queries_and_keys"}).layers
    assert {layer.queries_and_keys for layer in layers[1:]} == {NESTED}


def test_after_a_final_norm_they_are_refused():
    with pytest.raises(ValueError, match="final norm"):
        measure(small("plain"), probe_of("dense", 20, 2), ["query_cosine@all.normed"])
