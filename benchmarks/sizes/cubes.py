"""What the estimators make of clouds whose dimension is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from repdyn.kernels import SCALES, Cloud, gride, two_nn
from sizes.study import Progress, Row, with_values

DIMENSIONS = (2, 5, 10, 20, 40)
MOST = 16384
"""Points of a cube: its neighbours beyond tell nothing that the growth up to here does not."""
ESTIMATORS: dict[str, Callable[[Cloud], Tensor]] = {
    "two_nn": two_nn,
    **{f"gride_{k}": partial(gride, k=k) for k in SCALES},
}
_COORDINATES = 64


def cube(n: int, dimension: int, seed: int) -> Tensor:
    """n points of a uniform cube, (n, 64) float32, turned so that it lies along no axis."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(_COORDINATES, dimension, generator=generator)).Q
    return torch.rand(n, dimension, generator=generator) @ directions.T


def estimates(sizes: Sequence[int], repeats: int, progress: Progress) -> list[Row]:
    """A row for each dimension, size and estimator, over ``repeats`` independent clouds."""
    rows = []
    for dimension in DIMENSIONS:
        for n in sizes:
            progress(f"cube of {dimension} dimensions, {n}", 0)
            clouds = [Cloud(cube(n, dimension, seed), n_neighbours=SCALES[-1]) for seed in range(repeats)]
            rows += [
                _row(dimension, n, name, [kernel(x).item() for x in clouds]) for name, kernel in ESTIMATORS.items()
            ]
            progress("", 1)
    return rows


def _row(dimension: int, n: int, quantity: str, values: Sequence[float]) -> Row:
    row = Row(
        model="",
        cloud="uniform cube",
        quantity=quantity,
        batches=1,
        n=n,
        coordinates=_COORDINATES,
        dimension=dimension,
        draws=len(values),
    )
    row = with_values(row, values)
    return row if row.mean is None else replace(row, deviation=row.mean / dimension - 1)
