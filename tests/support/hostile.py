"""Clouds that break a careless kernel, and float64 oracles too naive to be wrong."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from repdyn.kernels.search import nearest_neighbours

N, DIM = 400, 80


def _gaussian(n: int = N, dim: int = DIM, seed: int = 0) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def _uniform(n: int, seed: int = 1) -> Tensor:
    return torch.rand(n, 1, generator=torch.Generator().manual_seed(seed))


def _grid(levels: int, n: int, dim: int) -> Tensor:
    return torch.randint(levels, (n, dim), generator=torch.Generator().manual_seed(2)).float()


def _one_wide() -> Tensor:
    return _gaussian() * torch.where(torch.arange(DIM) == 5, 500.0, 1.0)


def _low_rank() -> Tensor:
    return _gaussian(N, 8) @ _gaussian(8, DIM, seed=3)


def _with_spectrum(singular_values: Tensor) -> Tensor:
    """Centred points with exactly these singular values (descending, one per dimension)."""
    centred = _gaussian().double()
    basis = torch.linalg.qr(centred - centred.mean(0)).Q
    rotation = torch.linalg.qr(_gaussian(DIM, DIM, seed=4).double()).Q
    return (basis * singular_values @ rotation).float()


def _tops(*tops: float) -> Tensor:
    return torch.cat([torch.tensor(tops), torch.ones(DIM - len(tops))]).double()


def _sinks() -> Tensor:
    """Language-model-like: two large constant dimensions, and a few rows that are larger still."""
    points = _low_rank()
    points[:, 0] += 1000
    points[:, 1] -= 400
    points[::97] *= 300
    return points


def _underflowing() -> Tensor:
    """Two points at +-1 and clusters around the origin whose squares float32 cannot hold."""
    clusters = (10 * _gaussian(10)).repeat_interleave(20, 0) + _gaussian(200, seed=5)
    return torch.cat([torch.ones(1, DIM), -torch.ones(1, DIM), 1e-24 * clusters])


def _blocks() -> Tensor:
    """Most of the variance where none of the evenly spaced rows has any, and balanced."""
    points = torch.zeros(512, 200)
    points[0::4, :100] = _gaussian(128, 100) * torch.linspace(3, 0.1, 100) ** 3
    points[1::4, 100:] = 50 * _gaussian(128, 100, seed=5)
    points[3::4, 100:] = -points[1::4, 100:]
    return points


HOSTILE: dict[str, Callable[[], Tensor]] = {
    "gaussian": _gaussian,
    "low_rank": _low_rank,
    "offset_3000": lambda: _low_rank() + 3000,
    "std_500": _one_wide,
    "std_500_offset_3000": lambda: _one_wide() + 3000,
    "scale_1e-6": lambda: _gaussian() * 1e-6,
    "scale_1e5": lambda: _gaussian() * 1e5,
    "scale_1e-30": lambda: _gaussian() * 1e-30,
    "scale_1e30": lambda: _gaussian() * 1e30,
    "duplicates_20_percent": lambda: torch.cat([_gaussian(320), _gaussian(320)[:80]]),
    "duplicates_95_percent": lambda: _gaussian(30).repeat(20, 1),
    "rank_1": lambda: _gaussian(N, 1) @ _gaussian(1, DIM, seed=3),
    "n_3": lambda: _gaussian(3),
    "n_5": lambda: _gaussian(5),
    "d_1": lambda: _gaussian(N, 1),
    "d_gt_n": lambda: _gaussian(90, 500),
    "bfloat16": lambda: _gaussian().bfloat16(),
    "float16": lambda: _gaussian().half(),
    "float64_offset": lambda: 1e-9 * _low_rank().double() + 1,
    "transposed": lambda: _gaussian(DIM, N).T,
    "strided": lambda: _gaussian(2 * N, 2 * DIM)[::2, 1::2],
    "integer_grid": lambda: _grid(10, N, 3),
    "near_duplicates_1e-4": lambda: torch.cat(
        [_gaussian(200), _gaussian(200) + 1e-4 * _gaussian(200, seed=5)]
    ),
    "tight_cluster": lambda: torch.cat(
        [_gaussian(250), _gaussian(1) + 5e-5 * _gaussian(150, seed=5)]
    ),
    "bimodal_1000": lambda: torch.cat([_low_rank(), _uniform(N).sub(0.5).sign() * 1000], 1),
    "equal_top_two": lambda: _with_spectrum(_tops(2, 2)),
    "close_top_two": lambda: _with_spectrum(_tops(2, 2 * (1 - 1e-4))),
    "flat_spectrum": lambda: _with_spectrum(_tops()),
    "heavy_tail": lambda: _gaussian() / _uniform(N),
    "sinks": _sinks,
    "underflowing": _underflowing,
    "blocks": _blocks,
    # coarse values around a median of zero: bfloat16 holds them exactly, and only its scores are
    # rounded
    "relu_bfloat16": lambda: (_gaussian(1500, 64) - 0.3).relu().bfloat16(),
    "int8": lambda: (40 * _gaussian(1500, 32)).round().clamp(-127, 127),
}


def naive_anisotropy(points: Tensor) -> float:
    x = points.double().numpy()
    squares = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    return squares[0] / squares.sum()


def nearest_distances(points: Tensor, k: int = 2, **settings) -> Tensor:
    """Return the distances of the search that is tested, (n, k)."""
    return nearest_neighbours(points, k, **settings).distances


def naive_nearest(points: Tensor, k: int = 2, groups: Tensor | None = None) -> np.ndarray:
    """Distances to the k nearest others, or others outside the own group, shape (n, k)."""
    x = points.double().numpy()
    group_of = np.arange(len(x)) if groups is None else groups.numpy()
    distances = (np.sqrt(((x - row) ** 2).sum(1)) for row in x)
    return np.stack(
        [
            np.sort(row[is_other])[:k]
            for row, is_other in zip(distances, group_of[:, None] != group_of, strict=True)
        ]
    )


def naive_two_nearest(points: Tensor) -> np.ndarray:
    """Over distinct rows, shape (n_distinct, 2)."""
    return naive_nearest(torch.from_numpy(np.unique(points.double().numpy() + 0.0, axis=0)))


def n_kept_of(n: int, discard: float) -> int:
    """In whole per mille, because 5 * (1 - 0.8) is less than 1."""
    return n * (1000 - round(1000 * discard)) // 1000


def naive_two_nn(points: Tensor, discard: float = 0.1) -> float:
    r1, r2 = naive_two_nearest(points).T
    n = len(r1)
    n_kept = n_kept_of(n, discard)
    x = np.sort(np.log(r2 / r1))[:n_kept]
    y = -np.log(1 - np.arange(1, n_kept + 1) / n)
    return np.linalg.lstsq(x[:, None], y, rcond=None)[0][0]
