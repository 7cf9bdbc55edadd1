"""Pairs of clouds as two layers are: the second is the first and what a block adds."""

import pytest
import torch
from hostile import HOSTILE
from torch import Tensor

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif("not torch.cuda.is_available()")]
    ),
]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(dim: int) -> Tensor:
    return torch.linalg.qr(normal(dim, dim, seed=9)).Q


def after_a_block(points: Tensor) -> Tensor:
    """Of the same shape and dtype, whatever the scale of the points."""
    wide = points.double()
    scale = wide.abs().max()
    added = torch.tanh(2 * wide / scale) @ normal(points.shape[1], points.shape[1], seed=7)
    return (wide + scale / 4 * added).to(points.dtype)


def pair(name: str) -> tuple[Tensor, Tensor]:
    points = HOSTILE[name]()
    return points, after_a_block(points)


# beyond the squares of float32 and of float64
SCALES = {
    "float32_1e-30": (torch.float32, 1e-30),
    "float32_1e30": (torch.float32, 1e30),
    "float64_1e-250": (torch.float64, 1e-250),
    "float64_1e250": (torch.float64, 1e250),
}


NUMBERS = torch.tensor([[1.0, 2], [3, 4], [0, 1], [2, 2], [5, 3]])
# after which either cloud of a pair is as similar to the other as before
INVARIANCES = {
    "translation": lambda x: x + torch.linspace(-5, 50, x.shape[1]),
    "rotation": lambda x: x @ rotation(x.shape[1]),
    "reflection": lambda x: -x,
    "scaling": lambda x: x * 3.7,
    "columns_of_zeros": lambda x: torch.nn.functional.pad(x, (3, 40)),
}
