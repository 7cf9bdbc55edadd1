"""Attention sinks through measure: on attention made by hand, on a small GPT-2, and beside massive vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import random_tokens
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model

from repdyn import Probe, measure

LENGTH = 16


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe.from_tokens(random_tokens(20, LENGTH), max_vectors=192, batch_vectors=96)


class Attention(nn.Module):
    """Three heads: all attention to the first position, to each position alike, to the position itself."""

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


def test_heads_made_by_hand_are_told_apart(probe):
    torch.manual_seed(0)
    # to attend to all positions alike is to attend to the first of 16 by the mean of 1/2 ... 1/16
    alike = np.mean([1 / i for i in range(2, LENGTH + 1)])
    assert 0.1 < alike < 0.3
    frame = measure(ByHand(), probe, ["sink_rate", "sink_rate[threshold=0.1]"], "blocks.*").to_pandas()
    of_heads = frame[frame["head"].notna()].pivot_table("value", ["metric", "layer"], "head")
    assert of_heads.loc["sink_rate"].to_numpy().tolist() == [[1, 0, 0]] * 2
    assert of_heads.loc["sink_rate[threshold=0.1]"].to_numpy().tolist() == [[1, 1, 0]] * 2
    own = frame[frame["head"].isna()].pivot_table("value", "layer", "metric")
    assert own.index.tolist() == [1, 2]
    assert own["sink_rate"].tolist() == pytest.approx([1 / 3] * 2)
    assert own["sink_rate[threshold=0.1]"].tolist() == pytest.approx([2 / 3] * 2)
    assert set(frame["n_vectors"]) == {LENGTH}
    assert set(frame["n_batches"]) == {20}


def test_the_rate_of_gpt2_is_that_of_its_eager_attention(probe):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_embd=32, n_layer=3, n_head=4, n_positions=32, initializer_range=0.6)
    model = GPT2Model(config).eval()
    frame = measure(model, probe, ["sink_rate"]).to_pandas()
    heads = frame[frame["head"].notna()].pivot_table("value", "layer", "head")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(probe.tokens.view(20, LENGTH), output_attentions=True).attentions
    for layer, of_layer in enumerate(weights, start=1):
        to_first = of_layer.double()[:, :, 1:, 0].mean(-1)
        assert heads.loc[layer].to_numpy() == pytest.approx((to_first > 0.3).double().mean(0).numpy(), abs=1e-12)
    assert 0 < heads.to_numpy().mean() < 1
