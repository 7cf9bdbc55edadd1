"""The gradient of the alignment over depth, and monotone curves and bounds fitted to it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_MAX_RATE = 5.0
"""Largest rate of decay of a gradient per layer: the next step is 150 times as small."""


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


def decay_rate(steps: ArrayLike) -> float:
    """Return the rate lambda of the curve ``a * exp(-lambda * l)`` nearest to a gradient by least squares.

    Args:
        steps: G_0 ... G_{L-1}, (L,), from :func:`gradient`, of either sign.

    Returns:
        Per layer, positive where the gradient shrinks with depth, in [-5, 5]; NaN for a single step, and for steps that
        are all 0.

    >>> round(decay_rate([0.4, 0.2, 0.1, 0.05]), 4)
    0.6931
    """
    from scipy.optimize import minimize_scalar

    values = _steps(steps)
    if len(values) < 2 or not values.any():
        return math.nan

    def missed(rate: float) -> float:
        curve = np.exp(-rate * np.arange(len(values)) - max(0.0, -rate * (len(values) - 1)))
        return -float((curve @ values) ** 2 / (curve @ curve))

    rates = np.linspace(-_MAX_RATE, _MAX_RATE, 401)
    nearest = rates[int(np.argmin([missed(rate) for rate in rates]))]
    bounds = max(-_MAX_RATE, nearest - 0.05), min(_MAX_RATE, nearest + 0.05)
    found: Any = minimize_scalar(missed, bounds=bounds, method="bounded", options={"xatol": 1e-9})
    return float(found.x)


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


def bound_over_alignment(alignment: ArrayLike) -> np.ndarray:
    """Return the largest non-decreasing function f of the alignment with ``G_l >= f(A_l)``, at each layer.

    ``f(A_l) = min of G_j over all j with A_j >= A_l``. It is :func:`lower_envelope` where the alignment rises with
    depth, and differs from it where the alignment falls.

    Args:
        alignment: A_0 ... A_L, (L + 1,) mean cosines of each layer to the last one.

    Returns:
        (L,): f(A_0) ... f(A_{L-1}).

    Source: theorem 3 of Lee 2024, Fractal Self-Similarity in Semantic Convergence (Fractal Fract. 8(10):552).

    >>> bound_over_alignment([0.5, 0.25, 0.75, 1.0]).tolist()
    [-0.25, -0.25, 0.25]
    """
    steps, before = gradient(alignment), np.asarray(alignment, float)[:-1]
    return np.array([steps[before >= value].min() for value in before])


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
