"""Groups of all kinds for any number of points, and a float64 oracle for neighbours outside of a
point's own group.
"""

from collections.abc import Callable

import numpy as np
import torch
from hostile import HOSTILE
from torch import Tensor


def shuffled(groups: Tensor) -> Tensor:
    return groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(11))]


GROUPINGS: dict[str, Callable[[int], Tensor]] = {
    "eights": lambda n: shuffled(torch.arange(n) // 8),
    "eights_in_order": lambda n: torch.arange(n) // 8,
    "half_in_one": lambda n: shuffled(
        torch.cat([torch.full((n // 2,), -7), torch.arange(n - n // 2)])
    ),
    "all_but_a_fifth_in_one": lambda n: shuffled(
        torch.cat([torch.full((n - n // 5,), 3), 4 + torch.arange(n // 5)])
    ),
    "two": lambda n: shuffled(torch.arange(n) % 2),
    # one, two, four, eight, ...
    "doubling": lambda n: shuffled((torch.arange(n) + 1.0).log2().int()),
}

GROUPED = sorted(
    {(name, list(GROUPINGS)[i % len(GROUPINGS)]) for i, name in enumerate(HOSTILE)}
    | {(name, grouping) for name in ("gaussian", "bimodal_1000", "sinks") for grouping in GROUPINGS}
)
"""Every hostile cloud with one of the groupings, and three that are hostile in different ways with
all of them.
"""


def naive_nearest_outside(points: Tensor, groups: Tensor, k: int) -> np.ndarray:
    """Distances to the k nearest points of other groups, shape (n, k)."""
    x = points.double().numpy()
    of = groups.numpy()
    return np.stack(
        [
            np.sort(np.sqrt(((x[is_other] - row) ** 2).sum(1)))[:k]
            for row, is_other in zip(x, of[:, None] != of, strict=True)
        ]
    )


def n_outside(groups: Tensor) -> int:
    return len(groups) - int(groups.unique(return_counts=True)[1].max())
