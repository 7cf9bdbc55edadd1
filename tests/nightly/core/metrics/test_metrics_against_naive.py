"""Lens, shared neighbours, next-token classes and attention sinks through measure, against naive
computations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small import HandWritten, random_tokens
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model

from repdyn import Probe, measure
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare
from repdyn.kernels import class_variance
from repdyn.models import build_model
from repdyn.store.schema import Checkpoint
from repdyn.store.state_cache import StateCache

LENS_METRICS = ("lens_kl", "lens_agreement")
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "n_layers": 3,
    "n_heads": 2,
    "context_length": 32,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module")
def lens_model() -> Any:
    torch.manual_seed(0)
    lens_model = build_model("gpt2", **SIZES)
    # a random model predicts nearly the same everywhere
    for parameter in lens_model.parameters():
        parameter.data.mul_(4.0)
    return lens_model.double()


@pytest.fixture(scope="module")
def lens_probe():
    ids = torch.randint(1, 50, (12, 20), generator=torch.Generator().manual_seed(1))
    return Probe.from_tokens(ids, design="dense", max_vectors=200, batch_vectors=100)


def values(profile, metric, subset="all"):
    rows = [row for row in profile.rows if (row.metric, row.subset) == (metric, subset)]
    return {row.layer: row.value for row in rows}


def test_against_the_model_s_own_norm_and_unembedding(lens_model, lens_probe):
    profile = measure(lens_model, lens_probe, LENS_METRICS)
    with torch.no_grad():
        hidden = lens_model(
            lens_probe.tokens.reshape(-1, 20), output_hidden_states=True
        ).hidden_states
        final = lens_model.lm_head(hidden[-1]).flatten(0, 1).log_softmax(1)
        for layer in range(3):
            here = (
                lens_model.lm_head(lens_model.transformer.ln_f(hidden[layer]))
                .flatten(0, 1)
                .log_softmax(1)
            )
            kl = [
                (final[t].exp() * (final[t] - here[t])).sum(1).mean()
                for t in lens_probe.sample("all")
            ]
            same = [
                (final[t].argmax(1) == here[t].argmax(1)).double().mean()
                for t in lens_probe.sample("all")
            ]
            assert values(profile, "lens_kl")[layer] == pytest.approx(float(sum(kl)) / 2, rel=1e-9)
            assert values(profile, "lens_agreement")[layer] == pytest.approx(
                float(sum(same)) / 2, rel=1e-12
            )


K = 10


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)


def small_model(seed: int) -> HandWritten:
    torch.manual_seed(seed)
    return HandWritten()


def states_of(small_model, probe) -> list[list[np.ndarray]]:
    """By layer and batch."""
    states = capture(prepare(small_model, probe), probe, ["all"])
    return [
        [layer.states[states.rows_of(tokens)].double().numpy() for tokens in probe.sample("all")]
        for layer in states.layers
    ]


def naive_overlap(a: np.ndarray, b: np.ndarray, windows: np.ndarray) -> float:
    """Shared neighbours above chance, outside of each token's window, among vectors that are new in
    both clouds.
    """
    first = [set(np.unique(x, axis=0, return_index=True)[1]) for x in (a, b)]
    shared = sorted(first[0] & first[1])
    a = a[shared]
    b = b[shared]
    windows = windows[shared]
    allowed = windows[:, None] != windows
    neighbours = []
    for x in (a, b):
        distances = np.linalg.norm(x[:, None] - x, axis=-1)
        neighbours.append(np.where(allowed, distances, np.inf).argsort(1)[:, :K])
    overlap = (
        np.mean([len(set(own) & set(other)) for own, other in zip(*neighbours, strict=True)]) / K
    )
    chance = np.mean(K / allowed.sum(1))
    return (overlap - chance) / (1 - chance)


def test_a_layer_shares_neighbours_with_the_last(probe):
    layers = states_of(small_model(0), probe)
    windows = [probe.window_of_token[tokens] for tokens in probe.sample("all")]
    expected = [
        np.mean([naive_overlap(*batch) for batch in zip(of, layers[-1], windows, strict=True)])
        for of in layers
    ]
    rows = measure(small_model(0), probe, ["mutual_knn"]).to_pandas()
    assert rows["value"].to_numpy() == pytest.approx(expected, abs=1e-12)
    assert rows["value"].iloc[-1] == 1
    assert rows["own_window_excluded"].tolist() == [True for _ in layers]


def test_a_layer_shares_neighbours_with_itself_before(tmp_path, probe):
    state_cache = StateCache(tmp_path, run="r", probe=probe.hash)
    first = measure(
        small_model(0), probe, ["mutual_knn_previous"], state_cache=state_cache
    ).to_pandas()
    assert (first["value"].isna() & (first["n_batches"] == 1)).all()  # of the first batch alone
    later = Checkpoint(step=5)
    rows = measure(
        small_model(1), probe, ["mutual_knn_previous"], state_cache=state_cache, checkpoint=later
    ).to_pandas()
    windows = probe.window_of_token[probe.sample("all")[0]]
    before = states_of(small_model(0), probe)
    after = states_of(small_model(1), probe)
    expected = [
        naive_overlap(own[0], other[0], windows) for own, other in zip(after, before, strict=True)
    ]
    assert rows["value"].to_numpy() == pytest.approx(expected, abs=1e-12)
    assert set(rows["compared_to"]) == {0}


def test_classes_are_the_tokens_that_follow_in_the_window():
    ids = torch.randint(0, 20, (24, 12), generator=torch.Generator().manual_seed(1))
    probe = Probe.from_tokens(ids, max_vectors=192, batch_vectors=96)
    torch.manual_seed(0)
    model = HandWritten()
    rows = measure(model, probe, ["next_token_variance", "next_token_variance@no_sink"]).to_pandas()
    states = capture(prepare(model, probe), probe, ["all", "no_sink"])
    assert set(rows["layer"]) == {1, 2, 3}  # not at the embedding output
    for row in rows.to_dict("records"):
        values = []
        for tokens in probe.sample(row["subset"]):
            points = states.layers[row["layer"]].states[states.rows_of(tokens)]
            windows, positions = np.divmod(tokens, 12)
            following = [
                ids[w, p + 1].item() if p < 11 else -1
                for w, p in zip(windows, positions, strict=True)
            ]
            assert -1 in following
            values.append(class_variance(points, torch.tensor(following)).item())
        assert row["value"] == pytest.approx(np.mean(values), rel=1e-10)


LENGTH = 16


@pytest.fixture(scope="module")
def sink_probe() -> Probe:
    return Probe.from_tokens(random_tokens(20, LENGTH), max_vectors=192, batch_vectors=96)


class Attention(nn.Module):
    """Three heads: all attention to the first position, to each position alike, to the position
    itself.
    """

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n = x.shape[1]
        first = torch.zeros(n, n)
        first[:, 0] = 1
        alike = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
        weights = torch.stack([first, alike, torch.eye(n)]).expand(len(x), -1, -1, -1)
        return x, weights


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x)[0]


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(50, 8)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        return x


def test_heads_made_by_hand_are_told_apart(sink_probe):
    torch.manual_seed(0)
    # to attend to all positions alike is to attend to the first of 16 by the mean of 1/2 ... 1/16
    alike = np.mean([1 / i for i in range(2, LENGTH + 1)])
    assert 0.1 < alike < 0.3
    frame = measure(
        ByHand(), sink_probe, ["sink_rate", "sink_rate[threshold=0.1]"], "blocks.*"
    ).to_pandas()
    of_heads = frame[frame["head"].notna()].pivot_table("value", ["metric", "layer"], "head")
    assert of_heads.loc["sink_rate"].to_numpy().tolist() == [[1, 0, 0]] * 2
    assert of_heads.loc["sink_rate[threshold=0.1]"].to_numpy().tolist() == [[1, 1, 0]] * 2
    of_layers = frame[frame["head"].isna()].pivot_table("value", "layer", "metric")
    assert of_layers.index.tolist() == [1, 2]
    assert of_layers["sink_rate"].tolist() == pytest.approx([1 / 3] * 2)
    assert of_layers["sink_rate[threshold=0.1]"].tolist() == pytest.approx([2 / 3] * 2)
    assert set(frame["n_vectors"]) == {LENGTH}
    assert set(frame["n_batches"]) == {20}


def test_the_rate_of_gpt2_is_that_of_its_eager_attention(sink_probe):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=50, n_embd=32, n_layer=3, n_head=4, n_positions=32, initializer_range=0.6
    )
    model = GPT2Model(config).eval()
    frame = measure(model, sink_probe, ["sink_rate"]).to_pandas()
    heads = frame[frame["head"].notna()].pivot_table("value", "layer", "head")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(sink_probe.tokens.view(20, LENGTH), output_attentions=True).attentions
    for layer, of_layer in enumerate(weights, start=1):
        to_first = of_layer.double()[:, :, 1:, 0].mean(-1)
        assert heads.loc[layer].to_numpy() == pytest.approx(
            (to_first > 0.3).double().mean(0).numpy(), abs=1e-12
        )
    assert 0 < heads.to_numpy().mean() < 1
