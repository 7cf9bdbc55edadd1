"""The logit lens against a naive computation, and its properties."""

from __future__ import annotations

import math

import pytest
import torch
from pairs import normal
from pretend_cuda import PretendCuda

from repdyn.kernels import lens
from repdyn.kernels.lens import read_predictions

N, DIM, VOCABULARY = 7, 5, 11
PARTS = ("ids", "probabilities", "entropy", "kl", "final_rank")


X = normal(N, DIM)
LAST = normal(N, DIM, seed=1)
WEIGHT = normal(DIM, VOCABULARY, seed=2)


def head(x):
    return x @ WEIGHT.to(x)


def test_against_a_naive_computation():
    predictions = read_predictions(X, LAST, head, k=3)
    for row in range(N):
        p, q = ([math.exp(v) for v in head(states[row]).tolist()] for states in (X, LAST))
        p = [v / sum(p) for v in p]
        q = [v / sum(q) for v in q]
        order = sorted(range(VOCABULARY), key=lambda token: -p[token])
        assert predictions.ids[row].tolist() == order[:3]
        assert predictions.probabilities[row].tolist() == pytest.approx(
            [p[token] for token in order[:3]], rel=1e-12
        )
        assert float(predictions.entropy[row]) == pytest.approx(
            -sum(v * math.log(v) for v in p), rel=1e-12
        )
        # from the final prediction to that of the layer, not the other way round
        assert float(predictions.kl[row]) == pytest.approx(
            sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)), rel=1e-10
        )
        assert int(predictions.final_rank[row]) == order.index(q.index(max(q)))


def test_tiles_give_the_same_as_one_pass_and_bound_the_logits(monkeypatch):
    whole = read_predictions(X, LAST, head, k=2)
    sizes = []

    def counted(x):
        sizes.append(len(x))
        return head(x)

    monkeypatch.setattr(lens, "_LOGITS", 2 * VOCABULARY)
    tiled = read_predictions(X, LAST, counted, k=2)
    assert max(sizes) == 2
    for field in PARTS:
        assert torch.allclose(
            getattr(tiled, field).double(), getattr(whole, field).double(), rtol=1e-12, atol=1e-15
        )


def test_tokens_that_are_impossible():
    def masked(x):
        return head(x).index_fill(1, torch.tensor([0]), -torch.inf)

    predictions = read_predictions(X, LAST, masked, k=VOCABULARY + 5)
    assert predictions.ids.shape == (N, VOCABULARY)
    assert bool(predictions.entropy.isfinite().all() and predictions.kl.isfinite().all())
    assert bool(
        (read_predictions(X, LAST, lambda x: masked(x) if x is X else head(x)).kl >= 0).all()
    )


def test_on_a_device():
    expected = read_predictions(X, LAST, head, k=3)
    with PretendCuda() as cuda:
        weight = WEIGHT.to("cuda")
        predictions = read_predictions(X.to("cuda"), LAST.to("cuda"), lambda x: x @ weight, k=3)
        assert cuda.syncs.total() == 0
        parts = [part.cpu() for part in predictions]
    assert all(torch.equal(one, other) for one, other in zip(parts, expected, strict=True))
