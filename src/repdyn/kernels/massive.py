"""How much of a cloud's size sits in a few huge coordinates."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from repdyn.kernels.cloud import Cloud, as_cloud, full_precision, row_chunks, unit_scale
from repdyn.kernels.undefined import nan_if_undefined


@nan_if_undefined
def massive_activation_share(x: Tensor | Cloud, *, magnitude: float = 100.0, ratio: float = 1000.0) -> Tensor:
    """Compute the share of the sum of squares that massive activations carry.

    ``sum(x_ij**2, massive) / sum(x_ij**2)``.

    An activation, a single coordinate of a single vector, is massive when its magnitude exceeds ``magnitude`` and is at
    least ``ratio`` times the median magnitude of all activations of the cloud (of an even number, the lower of the two
    in the middle). The points are not centred.

    Args:
        x: points, shape (n_vectors, dim), any floating dtype, any device; or a Cloud of them.
        magnitude: in the unit of ``x``, >= 0.
        ratio: to the median, >= 0.

    Returns:
        0-d float64 tensor on the device of ``x``, a pure number in [0, 1]; NaN when undefined. 0 where no activation
        is massive.

    Raises:
        ValueError: for another shape or dtype, or for ``magnitude`` or ``ratio`` out of range.

    Invariant to order of the points and of their coordinates, signs, and repetition of the cloud as a whole; not to
    rotation, translation or, for ``magnitude`` > 0, scaling.
    Undefined when the points contain NaN or inf, or fewer than 3 of them differ.

    Source: Sun, Chen, Kolter, Liu, Massive Activations in Large Language Models, COLM 2024, section 2, whose criterion
    it is ("at least or around 1,000 times"); the share is ours.

    Example:
        >>> states = torch.full((4, 8), 0.125)
        >>> states[0, 5], states[1, 2] = 200.0, 99.0
        >>> round(massive_activation_share(states).item(), 4)
        0.8032
    """
    cloud = as_cloud(x)
    for name, value in {"magnitude": magnitude, "ratio": ratio}.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"expected a finite {name} >= 0, got {value}; the criterion of the source is 100 and 1000")
    cloud.require_defined()
    with full_precision(cloud.x.device):
        at_least = ratio * cloud.x.abs().flatten().median().double()
        scale = unit_scale(cloud.x)
        massive, total = torch.zeros(2, dtype=torch.float64, device=cloud.x.device).unbind()
        for rows in row_chunks(cloud.x):
            sizes = rows.double().abs()
            is_massive = (sizes > magnitude) & (sizes >= at_least)
            squares = sizes.mul_(scale).square_()
            total += squares.sum()
            massive += squares.mul_(is_massive).sum()
        return massive / total
