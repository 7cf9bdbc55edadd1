"""Where a kernel has no value it gives NaN, and or_raise the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hostile import HOSTILE
from pairs import NUMBERS, normal

from repdyn import kernels
from repdyn.kernels import Cloud, Sequences, UndefinedError, Vocabulary

FOUR = torch.eye(4)
GAPPED = FOUR.clone()
GAPPED[2] = 0
TABLE = normal(9, 4)
WITH_ZERO = normal(9, 4) * (torch.arange(9) != 3)[:, None]
CLUSTERED = Cloud(
    normal(40, 3) + 100 * (torch.arange(40) // 20)[:, None], groups=torch.arange(40) // 20
)
CROSS = torch.cat([torch.eye(70), 3 * torch.ones(1, 70)])
WITH_TINY = normal(40, 4).double() * torch.tensor([1.0, 1.0, 1.0, 1e-4])
MOST_IN_ONE = torch.tensor([0, 0, 0, 1, 2])

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("alignment", (FOUR, GAPPED), {}, "compared with: 1 of 4 vectors are zero"),
    ("alpha_req", (HOSTILE["low_rank"](),), {}, "8 eigenvalues"),
    (
        "attention_topic_gap",
        (torch.eye(3)[None], torch.arange(3), torch.full((3,), -1)),
        {},
        "topic",
    ),
    ("class_variance", (normal(6, 2), torch.tensor([0, 0, 1, 2, 3, -1])), {}, "1 classes"),
    (
        "class_variance",
        (torch.tensor([[1.0], [-1], [2], [-2], [5], [6]]), torch.arange(6) // 2),
        {},
        "same mean",
    ),
    ("gride", (torch.eye(70),), {"k": 8}, "equal"),
    ("isoscore", (HOSTILE["d_1"](),), {}, "1 dimension"),
    ("largest_activation", (Sequences(FOUR * torch.inf, (2, 2)),), {}, "NaN or inf"),
    ("levina_bickel", (torch.randn(20, 3).repeat(2, 1),), {}, "20 distinct of 40 points"),
    (
        "levina_bickel",
        (torch.eye(70, dtype=torch.float64) * 0.7 @ torch.linalg.qr(normal(70, 70)).Q,),
        {},
        "equal",
    ),
    (
        "levina_bickel",
        (torch.cat([1e-200 * torch.eye(40).double(), torch.ones(1, 40)]),),
        {},
        "leave the range of float64",
    ),
    ("linear_cka", (torch.eye(5), NUMBERS), {}, "no two points are more alike"),
    (
        "linearity",
        (normal(15, 20).repeat(4, 1), normal(60, 20, seed=1)),
        {},
        "15 distinct of 60 points",
    ),
    (
        "linearity",
        (normal(100, 20), normal(100, 20) + 1e-3),
        {"of": "step"},
        "the same for all points",
    ),
    (
        "local_dimension",
        (Cloud(torch.randn(12, 3), groups=torch.arange(12).clamp_max(7)),),
        {"k": 8},
        "7 of 12",
    ),
    ("local_dimension", (CROSS,), {"k": 8}, "71 of 71 neighbourhoods"),
    ("local_dimension", (CLUSTERED,), {"k": 8, "points": 4}, "4 of 4 neighbourhoods"),
    (
        "mean_cosine",
        (torch.cat([FOUR, torch.zeros(1, 4), -torch.zeros(1, 4)]),),
        {},
        "2 of 6 vectors are zero",
    ),
    (
        "mutual_knn",
        tuple(Cloud(NUMBERS, groups=MOST_IN_ONE) for _ in range(2)),
        {"k": 2},
        "at least 3 needed",
    ),
    ("mutual_knn", (torch.eye(9), normal(9, 3)), {"k": 2}, "9 of 9 tokens"),
    ("svcca", (normal(9, 6), normal(9, 6, seed=1)), {}, "more than the 8 that 9 centred points"),
    ("svcca", (WITH_TINY, WITH_TINY), {"variance": 1 - 1e-9}, "less than 1e-07"),
    ("ph_dimension", (torch.randn(63, 3),), {}, "63 distinct of 63 points"),
    ("ph_dimension", (Cloud(torch.randn(64, 3), groups=torch.arange(64) % 8),), {}, "one group"),
    ("ph_dimension", (torch.eye(64),), {}, "power 1"),
    ("sequence_cosine", (Sequences(FOUR, (3, 1)),), {}, "one token"),
    ("sequence_cosine", (Sequences(GAPPED, (2, 2)),), {}, "1 of 4 vectors are zero"),
    (
        "sequence_entropy",
        (Sequences(FOUR * (torch.arange(4) > 1)[:, None], (2, 2)),),
        {},
        "zeros alone",
    ),
    ("sink_rate", (torch.ones(3, 1, 1),), {}, "1 positions"),
    ("alignment", (NUMBERS, 0 * NUMBERS), {}, "5 of 5 vectors are zero"),
    (
        "top_norm_variance_share",
        (torch.nn.functional.layer_norm(normal(9, 4), (4,), eps=0.0),),
        {},
        "equally long",
    ),
    (
        "token_cosine",
        (normal(4, 3), torch.arange(4), Vocabulary(TABLE)),
        {},
        "4 dimensions, the vectors 3",
    ),
    ("token_rank", (normal(4, 4), torch.arange(4), Vocabulary(WITH_ZERO)), {}, "token 3 is zero"),
    (
        "token_top1_match",
        (FOUR * torch.nan, torch.arange(4), Vocabulary(TABLE)),
        {},
        "the vectors contain NaN",
    ),
    (
        "token_rank",
        (FOUR, torch.arange(4), Vocabulary(TABLE * torch.inf)),
        {},
        "the input embeddings contain",
    ),
    ("top_norm_variance_share", (torch.cat([FOUR, -FOUR]),), {}, "no direction is the first"),
    (
        "topic_gap",
        (FOUR, torch.tensor([1, 1, 2, 3]), torch.tensor([0, 0, 1, -1])),
        {},
        "no two of the 3 vectors",
    ),
    (
        "topic_gap",
        (GAPPED, torch.arange(4), torch.tensor([0, 0, 1, 1])),
        {},
        "1 of 4 vectors are zero",
    ),
    (
        "topic_gap_dot",
        (1e200 * TABLE, torch.arange(9), torch.arange(9) % 3),
        {},
        "range of float64",
    ),
    (
        "two_nn",
        (torch.eye(40).repeat(2, 1),),
        {"discard": 0.8, "duplicates": "count"},
        "0 of 0 points",
    ),
]


@pytest.mark.parametrize(
    ("name", "inputs", "settings", "reason"), CASES, ids=[f"{c[0]} {c[3]}" for c in CASES]
)
def test_nan_and_a_reason(
    name: str, inputs: tuple[Any, ...], settings: dict[str, Any], reason: str
):
    kernel: Callable[..., Any] = getattr(kernels, name)
    assert torch.as_tensor(kernel(*inputs, **settings)).isnan().all()
    with pytest.raises(UndefinedError, match=reason):
        kernel.or_raise(*inputs, **settings)  # pyright: ignore[reportFunctionMemberAccess]
