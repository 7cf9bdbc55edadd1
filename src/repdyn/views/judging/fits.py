"""The published course of the largest activation, fitted to measured ones."""

from __future__ import annotations

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import lambertw

from repdyn.metrics.names import base_name
from repdyn.views.tables.frames import log_spaced
from repdyn.views.tables.series import MetricSeries

METRIC = "largest_activation"
MIN_STEPS = 10
"""Least number of measured steps: twice the parameters."""
MIN_R_SQUARED = 0.95

# searched, with time in units of the last step
_RATES = np.logspace(-2, 4, 37)
"""lambda * gamma"""
_OFFSETS = np.logspace(-6, 1, 36)
"""t0 / gamma"""
_GRID_STEPS = 200
"""Largest number of steps, log-spaced, that the grid is searched on; it is refined on all of them.
"""
_LOG_SCALES = np.log([0.1, 1e6])
"""Least and largest log(gamma)."""
_MAX_DECAYED = 5.0
"""Largest exponent of the decay at the first step; without a bound A grows beyond all sizes."""
_ACCURACY = 1e-8
_KNOWN: WeakKeyDictionary[MetricSeries, dict[int, ActivationFit]] = WeakKeyDictionary()


class ActivationFit(NamedTuple):
    """``A exp(-lambda x) log(x) + K`` with ``x = gamma * step + t0``, by least squares."""

    amplitude: float
    """A, in the unit of the states."""
    decay: float
    """lambda, >= 0."""
    time_scale: float
    """gamma, per step, > 0."""
    time_offset: float
    """t0, > 0."""
    baseline: float
    """K, in the unit of the states."""
    r_squared: float
    """Share of the variance over the steps that the curve explains."""
    n_steps: int

    @property
    def is_reported(self) -> bool:
        """Return True if the curve explains at least :data:`MIN_R_SQUARED`."""
        return self.r_squared >= MIN_R_SQUARED

    @property
    def peak_step(self) -> float:
        """Return the step of the maximum, NaN for a curve that falls first.

        It solves ``x log(x) = 1 / lambda``, and may lie after the last measured step.
        """
        if not (self.amplitude > 0 and self.decay > 0):
            return math.nan
        x = math.exp(float(lambertw(1 / self.decay).real))
        return (x - self.time_offset) / self.time_scale

    def at(self, steps: ArrayLike) -> np.ndarray:
        """Return the values of the curve at these steps."""
        x = self.time_scale * np.asarray(steps, float) + self.time_offset
        return self.amplitude * np.exp(-self.decay * x) * np.log(x) + self.baseline


def fit_activations(steps: ArrayLike, values: ArrayLike) -> ActivationFit | None:
    """Fit the course of one layer's largest activation by least squares over its steps.

    With time in units of the last step, the rate ``lambda * gamma`` is searched from 0.01 to 10,000
    and the offset ``t0 / gamma`` from a millionth to 10, on a grid that is then refined; the curve
    is linear in what is left, with gamma from 0.1 to a million, and lambda * x <= 5 at the first
    step. Without bounds the formula includes curves that no finite parameters give.

    Args:
        steps: shape (n_steps,), ascending, >= 0.
        values: shape (n_steps,); those that are not finite are left out.

    Returns:
        None for fewer than :data:`MIN_STEPS` finite values, and for values that are all the same.
    """
    t = np.asarray(steps, float)
    y = np.asarray(values, float)
    is_finite = np.isfinite(y)
    if is_finite.sum() < MIN_STEPS or not np.ptp(y[is_finite]):
        return None
    t = t[is_finite]
    y = y[is_finite]
    last = float(t[-1])
    # in units of the last step one grid of rates serves runs of any length
    t = t / t[-1]
    # one accuracy of the search serves values of any size
    scaled = (y - y.mean()) / np.ptp(y)
    some = log_spaced((last * t).tolist(), _GRID_STEPS)
    coarse = t[some], scaled[some] - scaled[some].mean()
    # one rate after another bounds the memory
    grid = np.stack([_best(*coarse, np.full(len(_OFFSETS), rate), _OFFSETS)[0] for rate in _RATES])
    row, column = np.unravel_index(grid.argmin(), grid.shape)
    optimum = minimize(
        lambda logs: float(_best(t, scaled, *np.exp(logs[:, None]))[0][0]),
        np.log([_RATES[row], _OFFSETS[column]]),
        method="Nelder-Mead",
        bounds=np.log([(_RATES[0], _RATES[-1]), (_OFFSETS[0], _OFFSETS[-1])]),
        options={"xatol": _ACCURACY, "fatol": _ACCURACY * float(grid.min()), "maxiter": 300},
    )
    rate, offset = np.exp(optimum.x).tolist()
    left_over, log_scale = (float(of[0]) for of in _best(t, scaled, *np.exp(optimum.x[:, None])))
    shape = np.exp(-rate * t) * (np.log(offset + t) + log_scale)
    # of the values themselves: the search was on scaled ones
    slope = float(np.cov(shape, y, bias=True)[0, 1] / shape.var())
    gamma = math.exp(log_scale)
    return ActivationFit(
        amplitude=slope * math.exp(rate * offset),
        decay=rate / gamma,
        time_scale=gamma / last,
        time_offset=gamma * offset,
        baseline=float(y.mean() - slope * shape.mean()),
        r_squared=1 - left_over / float(np.square(scaled).sum()),
        n_steps=len(y),
    )


def fits_of(series: MetricSeries) -> dict[int, ActivationFit]:
    """Return the fit of each layer that has one, which is searched once for all views of a series;
    none of another metric than :data:`METRIC`."""
    if base_name(series.metric) != METRIC:
        return {}
    if series not in _KNOWN:
        fits = zip(
            series.layers,
            (fit_activations(series.steps, of_layer) for of_layer in series.values),
            strict=True,
        )
        _KNOWN[series] = {layer: fit for layer, fit in fits if fit is not None}
    return _KNOWN[series]


def _best(
    t: np.ndarray, y: np.ndarray, rates: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of squares that the best curve of each rate and offset leaves of y, of mean 0,
    and its log(gamma), shapes (n,)."""
    fall = np.exp(-rates[:, None] * t)
    rise = np.log(offsets[:, None] + t)

    def left_over(log_scales: np.ndarray) -> np.ndarray:
        shapes = fall * (rise + log_scales[:, None])
        shapes -= shapes.mean(axis=1, keepdims=True)
        squares = np.square(shapes).sum(axis=1, keepdims=True)
        # a shape that is flat explains nothing
        slopes = np.divide(
            shapes @ y[:, None], squares, out=np.zeros_like(squares), where=squares > 0
        )
        return np.square(y - slopes * shapes).sum(axis=1)

    # for a given rate and offset the curve is linear in A, A log(gamma) and K
    q, r = np.linalg.qr(np.stack([fall * rise, fall, np.ones_like(fall)], axis=-1))
    with np.errstate(all="ignore"):
        # back substitution: a triangle that is singular gives no number, which is out of bounds
        z = np.swapaxes(q, 1, 2) @ y
        third = z[:, 2] / r[:, 2, 2]
        second = (z[:, 1] - r[:, 1, 2] * third) / r[:, 1, 1]
        free = second / ((z[:, 0] - r[:, 0, 1] * second - r[:, 0, 2] * third) / r[:, 0, 0])
    inside = (free >= _LOG_SCALES[0]) & (free <= _LOG_SCALES[1])
    log_scales = free
    if not inside.all():
        low, high = (left_over(np.full(len(rates), end)) for end in _LOG_SCALES)
        log_scales = np.where(inside, free, np.where(low <= high, *_LOG_SCALES))
    decays_late = rates * (offsets + t[0]) <= _MAX_DECAYED
    return np.where(decays_late, left_over(log_scales), math.inf), log_scales
