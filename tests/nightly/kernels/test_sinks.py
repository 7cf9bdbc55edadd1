"""Heads that attend to the first token, and points that carry the first direction: against the sums written out."""

import numpy as np
import pytest
import torch
from hostile import HOSTILE

from repdyn.kernels import (
    Cloud,
    Undefined,
    sink_rate,
    top_norm_variance_share,
)


def attention(heads=6, n=20, seed=0, causal=True, sink=2.0):
    scores = torch.randn(heads, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores[..., 0] += torch.linspace(-1, 2, heads).double()[:, None] * sink
    if causal:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    return scores.softmax(-1)


def naive_sink_rate(weights, threshold):
    return [float(np.mean([row[0] for row in head[1:]]) > threshold) for head in weights.double().tolist()]


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sink_rate_is_that_of_the_sums(dtype, causal, threshold):
    weights = attention(causal=causal).to(dtype)
    found = sink_rate(weights, threshold=threshold)
    assert (found.shape, found.dtype) == ((6,), torch.float64)
    assert found.tolist() == naive_sink_rate(weights, threshold)


def test_the_first_position_is_not_asked():
    weights = torch.tensor([[[1.0, 0.0, 0.0], [0.2, 0.8, 0.0], [0.35, 0.0, 0.65]]])
    assert sink_rate(weights).item() == 0
    assert sink_rate(weights, threshold=0.2).item() == 1


def test_a_mean_at_the_threshold_does_not_exceed_it():
    weights = torch.full((1, 4, 4), 0.25, dtype=torch.float64)
    assert sink_rate(weights, threshold=0.25).item() == 0


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (torch.ones(3, 1, 1), "a sequence of 1 positions, at least 2 needed"),
        (torch.ones(3, 0, 0), "a sequence of 0 positions, at least 2 needed"),
        (torch.full((3, 4, 4), torch.nan), "the attention weights contain NaN or inf"),
    ],
)
def test_sink_rate_is_undefined_with_a_reason(weights, reason):
    with pytest.raises(Undefined, match=f"^{reason}$"):
        sink_rate.or_raise(weights)
    found = sink_rate(weights)
    assert found.shape == (3,)
    assert found.isnan().all()


def naive_share(points, share):
    """None where the first direction is not told from the second."""
    x = points.double().numpy()
    centred = x / np.abs(x).max()
    centred = centred - centred.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    if len(values) > 1 and values[1] ** 2 >= values[0] ** 2 * (1 - 1e-6):
        return None
    carried, norms = left[:, 0] ** 2, np.linalg.norm(x, axis=1)
    n_longest = -(-len(x) * round(1000 * share) // 1000)
    limit = np.sort(norms)[-n_longest]
    longer = norms > limit
    return carried[longer].sum() + (n_longest - longer.sum()) * carried[norms == limit].mean()


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("name", HOSTILE)
def test_top_norm_variance_share_is_that_of_singular_vectors(name, share):
    points = HOSTILE[name]()
    expected = naive_share(points, share)
    found = top_norm_variance_share(points, share=share)
    assert (found.shape, found.dtype) == ((), torch.float64)
    assert found.isnan() if expected is None else found.item() == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_points_of_equal_length_count_in_part():
    points = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert top_norm_variance_share(points, share=0.25).item() == pytest.approx(0.5)
    assert top_norm_variance_share(points, share=0.5).item() == pytest.approx(1)


def test_without_a_first_direction_it_is_undefined():
    square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert top_norm_variance_share(square).isnan()
    with pytest.raises(
        Undefined, match="^the two largest eigenvalues are equal to a millionth: no direction is the first$"
    ):
        top_norm_variance_share.or_raise(Cloud(square))
