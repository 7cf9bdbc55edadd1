"""Topic gaps and the attention to the first position, against loops, and what they must not see."""

import math

import metric_oracles as oracles
import pytest
import torch

from repdyn.kernels import sink_rate
from repdyn.kernels.topics import attention_topic_gap, topic_gap, topic_gap_dot

KERNELS = {
    "cosine": (topic_gap, topic_gap.or_raise),
    "dot": (topic_gap_dot, topic_gap_dot.or_raise),
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def labelled(n=60, dim=7, n_words=12, n_topics=3, seed=0, dtype=torch.float64):
    """Vectors, words and topics; some words have several topics, some vectors none."""
    x = torch.randn(n, dim, generator=generator(seed), dtype=torch.float64) + 0.3
    ids = torch.randint(5, 5 + n_words, (n,), generator=generator(seed + 1))
    topics = torch.randint(-1, n_topics, (n,), generator=generator(seed + 2))
    return x.to(dtype), ids, topics


def naive(x, ids, topics, product):
    return oracles.topic_gap(x.double().numpy(), ids.numpy(), topics.numpy(), product)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_against_a_loop_over_pairs(kind, seed):
    x, ids, topics = labelled(seed=seed)
    assert KERNELS[kind][0](x, ids, topics).item() == pytest.approx(
        naive(x, ids, topics, kind), rel=1e-12
    )


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_precisions_are_summed_in_float64(kind, dtype):
    x, ids, topics = labelled(dtype=dtype)
    assert KERNELS[kind][0](x, ids, topics).item() == pytest.approx(
        naive(x, ids, topics, kind), rel=1e-12
    )


@pytest.mark.parametrize("kind", KERNELS)
def test_invariances(kind):
    x, ids, topics = labelled()
    gap = KERNELS[kind][0](x, ids, topics).item()
    kernel = KERNELS[kind][0]
    order = torch.randperm(len(x), generator=generator(3))
    rotation = torch.linalg.qr(torch.randn(7, 7, generator=generator(4), dtype=torch.float64)).Q
    names = torch.randperm(100, generator=generator(5))
    assert kernel(x[order], ids[order], topics[order]).item() == pytest.approx(gap, rel=1e-10)
    assert kernel(x @ rotation, ids, topics).item() == pytest.approx(gap, rel=1e-10)
    assert kernel(x, names[ids], torch.where(topics < 0, -3, 7 * topics)).item() == pytest.approx(
        gap, rel=1e-10
    )


# attention


def attention(n=14, heads=3, seed=0, *, causal=False, window=None):
    """Weights from a softmax in which a position likes itself, and the words and topics there."""
    scores = torch.randn(
        heads, n, n, generator=generator(seed), dtype=torch.float64
    ) + 3 * torch.eye(n)
    position = torch.arange(n)
    unseen = (position > position[:, None]) if causal else torch.zeros(n, n, dtype=torch.bool)
    if window:
        unseen |= (position[:, None] - position).abs() > window
    ids = torch.randint(6, (n,), generator=generator(seed + 1))
    topics = torch.randint(-1, 3, (n,), generator=generator(seed + 2))
    return scores.masked_fill(unseen, -math.inf).softmax(-1), ids, topics


@pytest.mark.parametrize(
    "mask", [{}, {"causal": True}, {"window": 4}, {"causal": True, "window": 4}], ids=str
)
@pytest.mark.parametrize("seed", [0, 10])
def test_attention_against_a_loop_over_pairs(mask, seed):
    weights, ids, topics = attention(seed=seed, **mask)
    expected = oracles.attention_topic_gap(weights.numpy(), ids.numpy(), topics.numpy())
    assert attention_topic_gap(weights, ids, topics).tolist() == pytest.approx(
        expected.tolist(), rel=1e-12
    )


def test_attention_to_itself_and_to_its_own_word_is_no_topic():
    ids = torch.tensor([0, 1, 2, 3] * 4)
    topics = ids // 2
    own_word = (ids[:, None] == ids).double()
    weights = own_word / own_word.sum(-1, keepdim=True)
    weights = 0.9 * weights + 0.1 / len(ids)
    assert attention_topic_gap(weights[None], ids, topics).item() == pytest.approx(0, abs=1e-15)


def test_a_weight_of_zero_in_one_head_is_a_weight():
    topics = torch.tensor([0, 0, 1, 1])
    by_topic = (topics[:, None] == topics).double() / 2
    weights = torch.stack([by_topic, torch.full((4, 4), 0.25).double()])
    assert attention_topic_gap(weights, torch.arange(4), topics).tolist() == [0.5, 0]


@pytest.mark.parametrize("threshold", [0.1, 0.3])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_sink_rate_is_that_of_the_sums_without_the_first_position(dtype, causal, threshold):
    weights = attention(n=20, heads=6, causal=causal)[0]
    weights[..., 0] += torch.linspace(0, 0.5, 6)[:, None]
    weights = weights.to(dtype)
    expected = [
        float(sum(row[0] for row in head[1:]) / 19 > threshold)
        for head in weights.double().tolist()
    ]
    assert 0 < sum(expected) < 6
    assert sink_rate(weights, threshold=threshold).tolist() == expected
