"""Clouds that every version of every library builds alike: integers hashed to uniform numbers
(splitmix64).
"""

import numpy as np


def uniform(n, dim, seed):
    """n points of the unit cube, shape (n, dim), float64."""
    with np.errstate(over="ignore"):
        z = np.arange(1, n * dim + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
            seed
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).reshape(n, dim) / 2.0**53


CLOUDS = {
    "square": lambda: uniform(1000, 2, 1),
    "cube_5": lambda: uniform(1000, 5, 2),
    "cube_20": lambda: uniform(777, 20, 3),
    "cube_5_in_64": lambda: uniform(1000, 5, 4) @ (uniform(5, 64, 5) - 0.5),
    "curved": lambda: np.sin(uniform(1000, 3, 6) @ (6 * uniform(3, 40, 7))),
    "three_points": lambda: uniform(3, 4, 8),
}


def _thick(n):
    """Of five dimensions and forty coordinates."""
    return uniform(n, 5, 12) @ (uniform(5, 40, 13) - 0.5)


REPEATING = {
    "no_copies": lambda: _thick(700),
    "copies_30_percent": lambda: np.concatenate([_thick(700), _thick(700)[:300]]),
    "triples": lambda: np.concatenate(
        [_thick(500), _thick(500)[100:200], _thick(500)[100:200], _thick(500)[150:160]]
    ),
    "near_copies_1e-10": lambda: np.concatenate([_thick(500), _thick(500)[:100] + 1e-10]),
    "near_copies_1e-6": lambda: np.concatenate([_thick(500), _thick(500)[:100] * (1 + 1e-6)]),
    "grid": lambda: np.floor(6 * uniform(600, 4, 14)),
    "far_from_the_origin": lambda: _thick(500) + 1000,
    "n_4096": lambda: _thick(4096),
    "n_4096_copies": lambda: _thick(3000)[(3000 * uniform(4096, 1, 15)[:, 0]).astype(int)],
    "n_5": lambda: _thick(5),
    "n_7": lambda: _thick(7),
    "n_10": lambda: _thick(10),
}
