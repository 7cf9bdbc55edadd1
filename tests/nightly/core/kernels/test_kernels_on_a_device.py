"""Every kernel on a device other than the CPU: nothing mixes devices, and the host rarely waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from operator import le
from typing import Any

import pytest
import torch
from grouped import shuffled
from hostile import HOSTILE
from pairs import after_a_block
from pretend_cuda import PretendCuda
from torch import Tensor

from repdyn import kernels
from repdyn.kernels import Cloud, Sequences, Vocabulary

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# clouds that lead kernels into branches of their own: copies, ties beyond the rounding, outliers,
# dim > n, NaN
BRANCHES = ["duplicates_20_percent", "bimodal_1000", "sinks", "d_gt_n", "nan"]


def points(n: int = 300, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Return distinct points, (n, 24), of a decaying spectrum around a distant origin."""
    normal = torch.randn(n, 24, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (normal / torch.arange(1.0, 25) ** 0.5 + 3).to(dtype)


def attention(n: int = 32, dtype: torch.dtype = torch.float32) -> Tensor:
    scores = torch.randn(4, n, n, generator=torch.Generator().manual_seed(1))
    return (
        scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
        .softmax(-1)
        .to(dtype)
    )


def windows(n: int) -> Tensor:
    return shuffled(torch.arange(n) // 8)


def ids(n: int) -> Tensor:
    return torch.arange(n) % 60


def one(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (points(n, dtype),)


def wide(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return points of many dimensions, the first of which stands out."""
    return (torch.cat([points(n, dtype, seed=seed) * (4 - seed) for seed in range(4)], 1),)


def two(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return points(n, dtype), points(n, dtype).tanh()


def three(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return *two(n, dtype), points(n, dtype, seed=1)


def grouped(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return points(n, dtype), windows(n)


def grouped_with_ids(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return points(n, dtype), windows(n), ids(n)


def two_grouped(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return *two(n, dtype), windows(n)


def tokens(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return points(n, dtype), ids(n), points(70, dtype, seed=2)


def with_ids(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return points(n, dtype), ids(n)


def topics(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return points(n, dtype), ids(n), ids(n) % 4


def weights(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (attention(dtype=dtype),)


def weights_with_topics(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return attention(dtype=dtype), ids(32), ids(32) % 4


def on_vocabulary(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, ids, table: kernel(x, ids, Vocabulary(table))


def on_grouped(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b, groups: kernel(Cloud(a, groups=groups), Cloud(b, groups=groups))


def on_heads(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: kernel(x.expand(2, *x.shape))


def of_cloud(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, groups: kernel(Cloud(x, groups=groups))


def of_sequences(kernel: Callable[..., Any], first: int = 2) -> Callable[..., Any]:
    """Return the kernel on two sequences, by default the first of 2 points."""
    return lambda x: kernel(Sequences(x, (first, len(x) - first)))


CALLS: dict[str, tuple[Callable[..., Any], Callable[..., tuple], tuple[int, int]]] = {
    "alignment": (kernels.alignment, two, (4, 4)),
    "alignment_falls": (kernels.alignment_falls, three, (7, 7)),
    "alignment_gradient": (kernels.alignment_gradient, three, (7, 7)),
    "alpha_req": (lambda x: kernels.alpha_req(x, last=24), one, (5, 5)),
    "anisotropy": (kernels.anisotropy, one, (3, 3)),
    "anisotropy_by_iteration": (kernels.anisotropy, wide, (3, 3)),
    "attention_topic_gap": (kernels.attention_topic_gap, weights_with_topics, (4, 4)),
    "attention_topic_mean": (kernels.attention_topic_mean, weights_with_topics, (4, 4)),
    "attention_evenness": (kernels.attention_evenness, weights, (3, 3)),
    "class_variance": (kernels.class_variance, with_ids, (10, 10)),
    "self_similarity": (kernels.self_similarity, with_ids, (7, 7)),
    "components": (kernels.components, one, (4, 4)),
    "curvature": (of_sequences(kernels.curvature, 3), one, (3, 3)),
    "dime": (kernels.dime, grouped, (16, 16)),
    "effective_rank": (kernels.effective_rank, one, (4, 4)),
    "gride": (of_cloud(kernels.gride), grouped, (35, 43)),
    "head_anisotropy": (on_heads(kernels.head_anisotropy), one, (9, 9)),
    "head_cosine": (on_heads(kernels.head_cosine), one, (9, 9)),
    "information_imbalance": (on_grouped(kernels.information_imbalance), two_grouped, (58, 70)),
    "isoscore": (kernels.isoscore, one, (4, 4)),
    "largest_activation": (of_sequences(kernels.largest_activation), one, (1, 1)),
    "levina_bickel": (of_cloud(kernels.levina_bickel), grouped, (35, 43)),
    "lidar": (kernels.lidar, grouped, (12, 12)),
    "linear_cka": (kernels.linear_cka, two, (8, 8)),
    "linearity": (kernels.linearity, two, (13, 13)),
    "local_dimension": (of_cloud(kernels.local_dimension), grouped, (8, 8)),
    "local_anisotropy": (of_cloud(kernels.local_anisotropy), grouped, (8, 8)),
    "massive_activation_share": (kernels.massive_activation_share, one, (3, 3)),
    "mean_cosine": (kernels.mean_cosine, one, (3, 3)),
    "mutual_knn": (on_grouped(kernels.mutual_knn), two_grouped, (36, 44)),
    "near_duplicate_share": (of_cloud(kernels.near_duplicate_share), grouped, (4, 4)),
    "norm": (kernels.norm, one, (1, 1)),
    "outlier_kurtosis": (kernels.outlier_kurtosis, one, (3, 3)),
    "participation_ratio": (kernels.participation_ratio, one, (4, 4)),
    "ph_dimension": (of_cloud(kernels.ph_dimension), grouped, (5, 5)),
    "procrustes_distance": (kernels.procrustes_distance, two, (6, 6)),
    "prompt_entropy": (of_sequences(kernels.prompt_entropy), one, (3, 3)),
    "effective_rank_of_variance": (kernels.effective_rank_of_variance, one, (4, 4)),
    "same_group_share": (of_cloud(kernels.same_group_share), grouped, (3, 3)),
    "same_label_fraction": (
        lambda x, groups, labels: kernels.same_label_fraction(Cloud(x, groups=groups), labels),
        grouped_with_ids,
        (9, 9),
    ),
    "sequence_cosine": (of_sequences(kernels.sequence_cosine), one, (3, 3)),
    "sequence_entropy": (of_sequences(kernels.sequence_entropy), one, (3, 3)),
    "sink_rate": (kernels.sink_rate, weights, (1, 1)),
    "step_length": (kernels.step_length, two, (2, 2)),
    # of each cloud, whether rounding would choose the last direction
    "svcca": (kernels.svcca, two, (12, 12)),
    "token_cosine": (on_vocabulary(kernels.token_cosine), tokens, (5, 5)),
    "token_distance": (on_vocabulary(kernels.token_distance), tokens, (5, 5)),
    "token_imbalance": (lambda x, ids: kernels.token_imbalance(x, ids), with_ids, (17, 21)),
    "token_rank": (on_vocabulary(kernels.token_rank), tokens, (15, 15)),
    "token_top1_match": (on_vocabulary(kernels.token_top1_match), tokens, (15, 15)),
    "top_norm_variance_share": (kernels.top_norm_variance_share, one, (8, 8)),
    "topic_gap": (kernels.topic_gap, topics, (15, 15)),
    "topic_gap_dot": (kernels.topic_gap_dot, topics, (16, 16)),
    "topic_mean": (kernels.topic_mean, topics, (15, 15)),
    "two_nn": (of_cloud(kernels.two_nn), grouped, (4, 4)),
    "update_ratio": (lambda a, b: kernels.update_ratio(a.flatten(), b.flatten()), two, (3, 3)),
    "weight_norm": (kernels.weight_norm, one, (1, 1)),
    "weight_stable_rank": (kernels.weight_stable_rank, one, (4, 4)),
    "unbiased_participation_ratio": (kernels.unbiased_participation_ratio, one, (5, 5)),
    "two_nn_with_duplicates": (
        lambda x, groups: kernels.two_nn(Cloud(x, groups=groups), duplicates="count"),
        grouped,
        (7, 7),
    ),
}
"""By name: the kernel, its inputs, and how often the host waits for the device on 300 points and on
1100, two tiles of the search for neighbours."""


SEARCHING = {
    "gride",
    "levina_bickel",
    "mutual_knn",
    "near_duplicate_share",
    "same_group_share",
    "two_nn",
}
SEARCHING |= {
    "two_nn_with_duplicates",
    "local_anisotropy",
    "local_dimension",
    "ph_dimension",
    "information_imbalance",
    "token_imbalance",
}


def on_device(
    name: str, arguments: Sequence[Tensor], context: Callable[[], Any] = PretendCuda
) -> tuple[Tensor, Any]:
    with context() as cuda:
        result = CALLS[name][0](*(argument.to("cuda") for argument in arguments))
        assert not isinstance(result, Tensor) or result.is_cuda
    return torch.as_tensor(result, device="cpu"), cuda


def test_every_kernel_is_here():
    public = {name for name, value in vars(kernels).items() if hasattr(value, "or_raise")}
    assert public <= CALLS.keys()


@pytest.mark.parametrize(
    ("context", "tolerance"),
    [
        pytest.param(PretendCuda, 1e-9, id="pretended"),
        # a real device rounds otherwise, within what the kernels promise
        pytest.param(
            nullcontext,
            1e-5,
            id="gpu",
            marks=[pytest.mark.gpu, pytest.mark.skipif("not torch.cuda.is_available()")],
        ),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_the_value_is_that_of_the_cpu(name, dtype, context, tolerance):
    kernel, make, _ = CALLS[name]
    arguments = make(300, dtype)
    expected = torch.as_tensor(kernel(*arguments))
    assert expected.isfinite().all()
    value, _ = on_device(name, arguments, context)
    # the CPU iterates to a residual of the direction, of whose square the value is off
    tolerance = max(tolerance, 1e-8) if name == "anisotropy_by_iteration" else tolerance
    torch.testing.assert_close(value, expected, rtol=tolerance, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name][1] in {one, two, grouped}])
@pytest.mark.parametrize("cloud", BRANCHES)
# `one`, `two` and `grouped` are the kinds of inputs of metric_cases
def test_rare_branches_do_not_mix_devices(name, cloud):
    kernel, make, _ = CALLS[name]
    x = torch.full((5, 2), torch.nan) if cloud == "nan" else HOSTILE[cloud]()
    arguments = {one: (x,), two: (x, after_a_block(x)), grouped: (x, windows(len(x)))}[make]
    expected = torch.as_tensor(kernel(*arguments))
    torch.testing.assert_close(
        on_device(name, arguments)[0], expected, rtol=1e-7, atol=1e-12, equal_nan=True
    )


@pytest.mark.parametrize("name", CALLS)
def test_the_host_waits_no_more_often_than_recorded(name):
    syncs = [on_device(name, CALLS[name][1](n, torch.float32))[1].syncs for n in (300, 1100)]
    assert all(map(le, [each.total() for each in syncs], CALLS[name][2])), syncs


@pytest.mark.parametrize("kernel", [kernels.curvature, kernels.prompt_entropy])
@pytest.mark.parametrize("lengths", [[8] * 300, [5, 7, 30] * 100], ids=["equal", "ragged"])
def test_the_host_does_not_wait_at_every_sequence(kernel, lengths):
    """It waited twice to five times at each: 1,500 times for 512 sequences."""
    expected = kernel(Sequences(points(sum(lengths)), tuple(lengths)))
    with PretendCuda() as cuda:
        computed = kernel(Sequences(points(sum(lengths)).to("cuda"), tuple(lengths)))
    assert cuda.syncs.total() <= 3, cuda.syncs
    torch.testing.assert_close(torch.as_tensor(computed, device="cpu"), expected)
