"""The arithmetic of an alignment profile: its steps, their average, a monotone fit and a monotone bound."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def gradient(alignment: ArrayLike) -> np.ndarray:
    """Return what each step adds to the alignment: ``G_l = A_{l+1} - A_l``.

    Args:
        alignment: A_0 ... A_L, (..., L + 1) mean cosines of each layer to the last one.

    Returns:
        G_0 ... G_{L-1}, (..., L), each in [-2, 2].

    Source: Lee 2024, Fractal Self-Similarity in Semantic Convergence (Fractal Fract. 8(10):552).

    >>> gradient([0.0, 0.5, 0.75, 1.0])
    array([0.5 , 0.25, 0.25])
    """
    return np.diff(_profile(alignment), axis=-1)


def average_rate(alignment: ArrayLike) -> np.ndarray:
    """Return the mean of the gradient, ``(A_L - A_0) / L``, which does not depend on the layers between.

    Args:
        alignment: as for :func:`gradient`.

    Returns:
        (...), each in [-2 / L, 2 / L].

    >>> float(average_rate([0.25, 0.5, 0.75, 1.0]))
    0.25
    """
    values = _profile(alignment)
    return (values[..., -1] - values[..., 0]) / (values.shape[-1] - 1)


def isotonic_fit(steps: ArrayLike) -> np.ndarray:
    """Return the non-decreasing sequence over depth that is nearest to a gradient by least squares.

    Where the gradient falls with depth the fit is constant, the mean of what it pools; its mean is the gradient's. A
    pooled mean lies above the smallest of what it pools: the fit is no lower bound, see :func:`lower_envelope`.

    Args:
        steps: G_0 ... G_{L-1}, (L,), from :func:`gradient`.

    Returns:
        (L,), between the smallest and the largest step.

    Source: the monotone function of Lee 2024, fitted over depth; by the pool adjacent violators algorithm of scipy.

    >>> isotonic_fit([0.5, 0.25, 0.25, 1.0]).round(4).tolist()
    [0.3333, 0.3333, 0.3333, 1.0]
    """
    from scipy.optimize import isotonic_regression  # slow to import, and rarely needed

    return isotonic_regression(_steps(steps)).x


def lower_envelope(steps: ArrayLike) -> np.ndarray:
    """Return the largest non-decreasing sequence over depth nowhere above a gradient: ``min over j >= l of G_j``.

    Args:
        steps: G_0 ... G_{L-1}, (L,), from :func:`gradient`.

    Returns:
        (L,), its last value the last step; a positive first value says that no step loses alignment.

    >>> lower_envelope([0.5, 0.25, 0.25, 1.0]).tolist()
    [0.25, 0.25, 0.25, 1.0]
    """
    return np.minimum.accumulate(_steps(steps)[::-1])[::-1]


def _profile(alignment: ArrayLike) -> np.ndarray:
    values = np.asarray(alignment, dtype=float)
    if values.ndim == 0 or values.shape[-1] < 2:
        raise ValueError(f"expected the alignment of two layers or more, (..., L + 1), got shape {values.shape}")
    return _finite(values)


def _steps(steps: ArrayLike) -> np.ndarray:
    values = np.asarray(steps, dtype=float)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"expected the steps of one profile, (L,) with L >= 1, got shape {values.shape}")
    return _finite(values)


def _finite(values: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        raise ValueError(f"expected finite values, got {values[~np.isfinite(values)][0]} among them; leave it out")
    return values
