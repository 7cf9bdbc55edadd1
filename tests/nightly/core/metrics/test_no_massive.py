"""The subset no_massive: every metric of vectors without those of massive norm, layer by layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from small import random_tokens
from torch import nn

from repdyn import Probe, measure
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare
from repdyn.kernels import Cloud, alignment, anisotropy, norm, step_length, two_nn
from repdyn.metrics import METRICS
from repdyn.metrics.layer_view import MASSIVE_NORM, are_massive

HUGE, LATE = 7, 9
"""Tokens with a massive norm from the start, and from the second layer on."""
PLAIN = ["anisotropy", "two_nn", "norm", "alignment", "step_length"]


class Block(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        late = x[..., :1] > 5
        return torch.where(late, self.scale * x, x) + 0.3 * torch.tanh(self.linear(x))


class WithMassive(nn.Module):
    """A token of norm 200 in every layer, and one that grows to it in the second."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(50, 16)
        self.position = nn.Embedding(16, 16)
        self.blocks = nn.ModuleList([Block(1.0), Block(40.0), Block(1.0)])
        with torch.no_grad():
            self.token.weight[HUGE] *= 60
            self.token.weight[LATE] = torch.eye(16)[0] * 8

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return WithMassive().eval()


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe.from_tokens(random_tokens(40, 16), max_vectors=192, batch_vectors=96)


@pytest.fixture(scope="module")
def frame(model, probe) -> pd.DataFrame:
    names = [*PLAIN, *(f"{name}@no_massive" for name in PLAIN)]
    return measure(model, probe, names, "blocks.*").to_pandas()


def test_metrics_are_those_of_the_vectors_left_by_a_naive_filter(model, probe, frame):
    states = capture(prepare(model, probe, "blocks.*"), probe, ["all"])
    layers = [
        of.states[states.rows_of(probe.sample("all").ravel())].double() for of in states.layers
    ]
    windows = torch.from_numpy(probe.window_of_token[probe.sample("all").ravel()])
    rows = frame.query("subset == 'no_massive'").set_index(["metric", "layer"])
    n_left = []
    for layer, x in enumerate(layers):
        norms = x.norm(dim=1)
        is_left = norms <= 10 * norms.median()
        batches = is_left.split(96)
        n_left.append(int(is_left.sum()))

        def of_batches(compute, is_left=is_left):
            return np.mean(
                [float(compute(rows[is_left[rows]])) for rows in torch.arange(192).split(96)]
            )

        expected = {
            "norm": of_batches(lambda rows, x=x: norm(x[rows])),
            "anisotropy": of_batches(lambda rows, x=x: anisotropy(x[rows])),
            "two_nn": of_batches(lambda rows, x=x: two_nn(Cloud(x[rows], groups=windows[rows]))),
            "alignment": of_batches(lambda rows, x=x: alignment(x[rows], layers[-1][rows])),
        }
        if layer + 1 < len(layers):
            following = layers[layer + 1]
            expected["step_length"] = of_batches(
                lambda rows, x=x, y=following: step_length(x[rows], y[rows])
            )
        for name, value in expected.items():
            row = rows.loc[name, layer]
            assert row["value"] == pytest.approx(value, rel=1e-5), (name, layer)
            assert row["n_vectors"] == min(int(batch.sum()) for batch in batches)
            assert row["n_batches"] == 2
    # one token is left out of the first layers, two of the later ones
    sampled = probe.tokens[probe.sample("all").ravel()]
    n_huge = int((sampled == HUGE).sum())
    n_late = int((sampled == LATE).sum())
    assert n_huge
    assert n_late
    assert n_left == [192 - n_huge] * 2 + [192 - n_huge - n_late] * 2


def test_the_median_is_that_of_all_batches():
    small = torch.ones(6, 4)
    large = torch.full((2, 4), 1.01 * MASSIVE_NORM)
    assert [of.tolist() for of in are_massive([small, large])] == [[False] * 6, [True] * 2]
    assert not torch.cat(are_massive([small, large / 1.02])).any()
    # half precision: sums of squares would leave its range
    assert [of.any().item() for of in are_massive([small.half() * 300, large.half() * 300])] == [
        False,
        True,
    ]


def test_a_batch_of_massive_vectors_alone_has_no_value():
    tokens = 10 + random_tokens(4, 8, vocabulary=30, seed=1)
    tokens[2] = HUGE
    probe = Probe.from_tokens(tokens, max_vectors=28, batch_vectors=7)
    assert probe.has_disjoint_batches("all")
    torch.manual_seed(0)
    names = ["norm@no_massive", "anisotropy@no_massive", "norm@all"]
    with torch.no_grad():
        frame = measure(WithMassive().eval(), probe, names, "blocks.*").to_pandas()
    left = frame.query("subset == 'no_massive'")
    assert left["value"].isna().all()
    assert left["reason"].str.contains("0 points").all()
    assert set(left["n_vectors"]) == set(left["n_unique"]) == set(left["n_windows"]) == {0}
    assert frame.loc[frame["subset"] == "all", "value"].notna().all()


def test_any_metric_of_vectors_can_be_asked_for_on_it(model, probe):
    names = [
        f"{name}@no_massive"
        for name, metric in METRICS.items()
        if not metric.captures & {"attention_weights", "previous_checkpoint", "whole_windows"}
        and not metric.is_of_weights
        and metric.probe_requires != "topics"
    ]
    frame = measure(model, probe, names, "blocks.*").to_pandas()
    reasons = frame.loc[frame["value"].isna(), ["metric", "reason"]].drop_duplicates()
    assert not reasons["reason"].str.contains("Error").any(), reasons
    assert set(frame["subset"]) == {"no_massive"}
