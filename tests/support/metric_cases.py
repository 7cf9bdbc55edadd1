"""What each metric has to be: inputs, its value written out in float64, what leaves it as it is,
and where it has no value. :data:`CASES` has an entry for each registered metric.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import metric_oracles as oracles
import torch
from pairs import normal
from torch import Tensor

from repdyn.kernels import Cloud, Sequences, Vocabulary
from repdyn.metrics.layer_view import read_lens

N, DIM, N_TOKENS = 240, 24, 60


# ---- inputs: clouds are of floats, (n, dim); labels are integers, (n,)


def cloud(seed: int = 0, n: int = N) -> Tensor:
    """Points of a decaying spectrum whose mean is not the origin."""
    return normal(n, DIM, seed=seed) / torch.arange(1.0, DIM + 1) ** 0.5 + 0.4


def one() -> tuple[Tensor, ...]:
    return (cloud(),)


def two() -> tuple[Tensor, ...]:
    x = cloud()
    return x, x + 0.5 * torch.tanh(2 * x) @ normal(DIM, DIM, seed=7) / DIM**0.5


def three() -> tuple[Tensor, ...]:
    return (*two(), cloud(seed=1) + cloud())


def windows() -> Tensor:
    return torch.arange(N) // 4


def ids(n: int = N) -> Tensor:
    return torch.arange(n) * 7 % N_TOKENS


def topics(n: int = N) -> Tensor:
    """Topics of tokens, some of which have none."""
    return ids(n) // 13 - 1


def with_labels(*labels: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (cloud() + 0.3 * cloud(seed=5)[labels[0] % N], *labels)


def near_their_tokens() -> tuple[Tensor, ...]:
    """Vectors near their rows of a table, tokens, and the table."""
    table = cloud(seed=2, n=N_TOKENS)
    return table[ids()] + 0.8 * normal(N, DIM, seed=3), ids(), table


def with_massive_activations() -> tuple[Tensor, ...]:
    x = cloud()
    x[::50, 3] *= 4000
    return (x,)


def attention() -> tuple[Tensor, ...]:
    """Causal weights of heads of which some attend to the first position, words and topics."""
    n = 32
    scores = normal(4, n, n, seed=1)
    scores[:2, :, 0] += 4
    is_later = torch.ones(n, n, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(is_later, -torch.inf).softmax(-1)
    return shares, torch.arange(n) * 5 % 13, torch.arange(n) * 5 % 13 % 4 - 1


def weights() -> tuple[Tensor, ...]:
    return attention()[:1]


def matrices() -> tuple[Tensor, ...]:
    return normal(40, DIM), normal(30, DIM, seed=1)


# ---- how a kernel takes them


def as_clouds(*tensors: Tensor) -> tuple[Any, ...]:
    return tuple(Cloud(x) if x.is_floating_point() else x for x in tensors)


def as_they_are(*tensors: Tensor) -> tuple[Any, ...]:
    return tensors


def flattened(*tensors: Tensor) -> tuple[Any, ...]:
    return tuple(x.flatten() for x in tensors)


LENGTHS = (100, 20, 90, 30)
HEAD = normal(DIM, 50, seed=4)


def as_sequences(x: Tensor) -> tuple[Any, ...]:
    return (Sequences(x, LENGTHS),)


N_HEADS = 3


def as_heads(x: Tensor) -> tuple[Any, ...]:
    return (x.unflatten(0, (N_HEADS, -1)),)


def against_table(x: Tensor, tokens: Tensor, table: Tensor, **how: bool) -> tuple[Any, ...]:
    return x, tokens, Vocabulary(table, **how)


@torch.no_grad()  # as all of a measurement runs
def through_head(x: Tensor, last: Tensor) -> tuple[Any, ...]:
    return (read_lens(x, last, lambda rows: rows.double() @ HEAD.to(rows.device)),)


# ---- what a metric has to be


@dataclass(frozen=True, kw_only=True)
class MetricCase:
    """States what a metric is."""

    oracle: Callable[..., Any]
    """Its value, of arrays in float64 and the metric's settings."""
    inputs: Callable[[], tuple[Tensor, ...]] = one
    wrap: Callable[..., tuple[Any, ...]] = as_clouds
    """The arguments of the kernel from tensors."""
    invariant: frozenset[str] = frozenset()
    """The ``CHANGES`` of the tester that leave the value as it is, of all clouds alike; those "of
    each" also where each cloud is changed in a way of its own. The others must be seen."""
    reasons: dict[str, str | None] = field(default_factory=dict)
    """By ``DEGENERATE`` input, the code of the reason why there is no value; None where there
    is one.
    """
    rel: float = 1e-9
    """Relative tolerance for float64; other precisions have 1e-5 at least."""
    is_count: bool = False
    """Its values are few, so that a change may leave it as it is by chance."""


ROTATED = frozenset({"rotation", "scale", "permutation"})
ANYWHERE = ROTATED | {"translation"}
EACH = frozenset({"translation of each", "rotation of each", "scale of each", "permutation"})
DIRECTIONS = frozenset({"rotation", "scale of each", "permutation"})
MOVED_TOGETHER = frozenset({"translation", "rotation", "permutation"})
FEW = {"zeros": "few_distinct", "constant": "few_distinct"}
OF_ZEROS = {"zeros": "undefined"}

_of_cloud = partial(MetricCase, invariant=ANYWHERE, reasons=FEW)
_of_two = partial(MetricCase, inputs=two, invariant=EACH, reasons=FEW)
_of_tokens = partial(
    MetricCase,
    inputs=near_their_tokens,
    wrap=against_table,
    invariant=DIRECTIONS,
    reasons=OF_ZEROS,
)
_of_sequences = partial(
    MetricCase, wrap=as_sequences, invariant=ROTATED - {"permutation"}, reasons=OF_ZEROS
)
_of_attention = partial(MetricCase, inputs=attention, wrap=as_they_are, reasons=OF_ZEROS)
_of_topics = partial(
    MetricCase, inputs=with_labels(ids(), topics()), invariant=ROTATED, reasons=OF_ZEROS
)
_ALIGNMENT = MetricCase(
    oracle=oracles.alignment,
    inputs=two,
    invariant=DIRECTIONS,
    reasons=OF_ZEROS,
)
_MUTUAL_KNN = _of_two(oracle=oracles.mutual_knn)
_PROCRUSTES = _of_two(oracle=oracles.procrustes_distance)
_IMBALANCE = _of_two(oracle=oracles.information_imbalance)
_CKA = _of_two(oracle=oracles.linear_cka)
_SVCCA = _of_two(oracle=oracles.svcca)


_COSINE = _of_tokens(oracle=oracles.token_cosine)
_RANK = _of_tokens(oracle=oracles.token_rank, is_count=True)
_NORM = MetricCase(
    oracle=oracles.weight_norm,
    inputs=lambda: matrices()[:1],
    wrap=flattened,
    invariant=frozenset({"rotation", "permutation"}),
)

CASES: dict[str, MetricCase] = {
    # geometry and dimension
    "anisotropy": _of_cloud(oracle=oracles.anisotropy, rel=1e-7),
    "two_nn": _of_cloud(oracle=oracles.two_nn),
    **{f"gride_{k}": _of_cloud(oracle=oracles.gride, rel=1e-6) for k in (2, 4, 8, 16, 32)},
    "levina_bickel": _of_cloud(oracle=oracles.levina_bickel),
    "local_dimension": _of_cloud(oracle=oracles.local_dimension),
    "local_anisotropy": _of_cloud(oracle=oracles.local_anisotropy),
    "ph_dimension": _of_cloud(oracle=oracles.ph_dimension, invariant=ANYWHERE - {"permutation"}),
    # spectrum
    "participation_ratio": _of_cloud(oracle=oracles.participation_ratio),
    "unbiased_participation_ratio": _of_cloud(oracle=oracles.unbiased_participation_ratio),
    "effective_rank": _of_cloud(oracle=oracles.effective_rank),
    "effective_rank_of_variance": _of_cloud(oracle=oracles.effective_rank_of_variance),
    "lidar": _of_cloud(oracle=oracles.lidar, inputs=with_labels(windows())),
    "dime": _of_cloud(
        oracle=oracles.dime,
        inputs=with_labels(windows()),
        # the views of a window are by the order of its vectors
        invariant=ANYWHERE - {"permutation"},
    ),
    "alpha_req": _of_cloud(oracle=oracles.alpha_req),
    **{
        f"components_{percent}": _of_cloud(oracle=oracles.components, is_count=True)
        for percent in (50, 90, 95, 99)
    },
    "sequence_entropy": _of_sequences(oracle=oracles.mean_over(LENGTHS, oracles.sequence_entropy)),
    "prompt_entropy": _of_sequences(
        oracle=oracles.mean_over(LENGTHS, oracles.prompt_entropy),
        # negative products of coordinates are taken for 0
        invariant=frozenset({"translation", "scale"}),
        reasons={"zeros": "undefined", "constant": "rounding"},
    ),
    # similarity of vectors
    "mean_cosine": MetricCase(oracle=oracles.mean_cosine, invariant=ROTATED, reasons=FEW),
    "self_similarity": MetricCase(
        oracle=oracles.self_similarity,
        inputs=with_labels(ids() % 20),
        invariant=ROTATED,
        reasons=OF_ZEROS,
    ),
    "isoscore": _of_cloud(oracle=oracles.isoscore),
    "massive_activation_share": MetricCase(
        oracle=oracles.massive_activation_share,
        inputs=with_massive_activations,
        invariant=frozenset({"permutation"}),
        reasons=FEW,
        is_count=True,
    ),
    "outlier_kurtosis": MetricCase(
        oracle=oracles.outlier_kurtosis,
        invariant=frozenset({"scale", "permutation"}),
        reasons=FEW,
    ),
    "next_token_variance": _of_cloud(oracle=oracles.class_variance, inputs=with_labels(ids())),
    "curvature": _of_sequences(
        oracle=oracles.mean_over(LENGTHS, oracles.curvature),
        invariant=ANYWHERE - {"permutation"},
        reasons={"zeros": "undefined", "constant": "undefined"},
    ),
    "sequence_cosine": _of_sequences(oracle=oracles.mean_over(LENGTHS, oracles.mean_cosine)),
    "largest_activation": _of_sequences(
        oracle=oracles.mean_over(LENGTHS, oracles.largest_activation),
        invariant=frozenset(),
        reasons={},
    ),
    # queries and keys; rows that change places go to another head
    **{
        f"{vectors}_anisotropy": _of_cloud(
            oracle=oracles.of_heads(N_HEADS, oracles.anisotropy),
            wrap=as_heads,
            invariant=ANYWHERE - {"permutation"},
        )
        for vectors in ("query", "key")
    },
    **{
        f"{vectors}_cosine": _of_cloud(
            oracle=oracles.of_heads(N_HEADS, oracles.mean_cosine),
            wrap=as_heads,
            invariant=ROTATED - {"permutation"},
        )
        for vectors in ("query", "key")
    },
    # attention sinks
    "sink_rate": _of_attention(oracle=oracles.sink_rate, inputs=weights, reasons={}, is_count=True),
    "attention_evenness": _of_attention(
        oracle=oracles.attention_evenness,
        inputs=weights,
        invariant=frozenset({"permutation"}),
        reasons=OF_ZEROS,
    ),
    "top_norm_variance_share": MetricCase(
        oracle=oracles.top_norm_variance_share, invariant=ROTATED, reasons=FEW, rel=1e-6
    ),
    # convergence to the last layer, and steps to the next
    "alignment": _ALIGNMENT,
    "alignment_gradient": replace(_ALIGNMENT, oracle=oracles.alignment_gradient, inputs=three),
    "alignment_falls": replace(
        _ALIGNMENT, oracle=oracles.alignment_falls, inputs=three, is_count=True
    ),
    "mutual_knn": _MUTUAL_KNN,
    "procrustes_last": _PROCRUSTES,
    "norm": MetricCase(oracle=oracles.norm, invariant=MOVED_TOGETHER - {"translation"}),
    "step_length": MetricCase(oracle=oracles.step_length, inputs=two, invariant=MOVED_TOGETHER),
    "step_cosine": _ALIGNMENT,
    "linearity": _of_two(oracle=oracles.linearity),
    "linearity_step": _of_two(
        oracle=oracles.linearity, invariant=ANYWHERE | {"translation of each"}
    ),
    "cka_next": _CKA,
    "svcca_next": _SVCCA,
    "imbalance_next": _IMBALANCE,
    # change between checkpoints
    "imbalance_previous": _IMBALANCE,
    "cka_previous": _CKA,
    "svcca_previous": _SVCCA,
    "mutual_knn_previous": _MUTUAL_KNN,
    "procrustes_previous": _PROCRUSTES,
    # weights and gradients
    "weight_norm": _NORM,
    "gradient_norm": _NORM,
    "update_ratio": MetricCase(
        oracle=oracles.update_ratio,
        inputs=two,
        wrap=flattened,
        invariant=ROTATED,
        reasons=OF_ZEROS,
    ),
    "weight_stable_rank": MetricCase(
        oracle=oracles.weight_stable_rank,
        inputs=matrices,
        wrap=as_they_are,
        invariant=DIRECTIONS | {"rotation of each"},
        reasons={"zeros": "few_distinct"},
        rel=1e-6,
    ),
    # tokens against the vocabulary
    "token_cosine": _COSINE,
    "token_rank": _RANK,
    "token_top1_match": _of_tokens(oracle=oracles.token_top1_match, is_count=True),
    "token_imbalance": _of_cloud(oracle=oracles.token_imbalance, inputs=with_labels(ids())),
    "token_cosine_attention": _COSINE,
    "token_rank_attention": _RANK,
    "token_distance": _of_tokens(
        oracle=oracles.token_distance, invariant=MOVED_TOGETHER, reasons={}
    ),
    "token_rank_distance": _of_tokens(
        oracle=oracles.token_rank_distance,
        wrap=partial(against_table, by_distance=True),
        invariant=ANYWHERE,
        reasons={},
        is_count=True,
    ),
    "lens_kl": MetricCase(
        oracle=partial(oracles.lens_kl, head=HEAD.numpy()),
        inputs=two,
        wrap=through_head,
        invariant=frozenset({"permutation"}),
    ),
    "lens_agreement": MetricCase(
        oracle=partial(oracles.lens_agreement, head=HEAD.numpy()),
        inputs=two,
        wrap=through_head,
        invariant=frozenset({"permutation"}),
        is_count=True,
    ),
    # topics
    "topic_gap": _of_topics(oracle=oracles.topic_gap),
    "topic_gap_dot": _of_topics(
        oracle=partial(oracles.topic_gap, product="dot"),
        invariant=ROTATED - {"scale"},
        reasons={},
    ),
    "attention_topic_gap": _of_attention(
        oracle=oracles.attention_topic_gap, invariant=frozenset({"permutation"})
    ),
    **{
        f"topic_{pairs}": _of_topics(
            oracle=oracles.topic_mean, invariant=ROTATED - {"scale"}, reasons={}
        )
        for pairs in ("same", "different")
    },
    **{
        f"attention_topic_{pairs}": _of_attention(
            oracle=oracles.attention_topic_mean, invariant=frozenset({"permutation"})
        )
        for pairs in ("same", "different")
    },
}
"""What each registered metric has to be, by its name."""
