"""The largest activation of each layer over training, fitted by the published formula."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import fdtrc, lambertw

from repdyn.metrics.names import base_name
from repdyn.tables.frames import measurements
from repdyn.tables.series import MetricSeries, metric_series

METRIC = "largest_activation"
N_PARAMETERS = 5
MIN_STEPS = 10
"""Least number of measured steps: twice the parameters."""
MIN_R_SQUARED = 0.95
MAX_P_VALUE = 0.001

# searched, with time in units of the last step
_RATES = np.logspace(-2, 4, 37)
"""lambda * gamma"""
_OFFSETS = np.logspace(-6, 1, 36)
"""t0 / gamma"""
_LOG_SCALES = np.log([0.1, 1e6])
"""Least and largest log(gamma)."""
_MAX_DECAYED = 5.0
"""Largest exponent of the decay at the first step; without a bound A grows beyond all sizes."""
_ACCURACY = 1e-8


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
    p_value: float
    """Of the F test against a constant, as if the errors of the steps were independent."""
    n_steps: int

    @property
    def is_reported(self) -> bool:
        """True if the curve explains at least :data:`MIN_R_SQUARED` and beats a constant at :data:`MAX_P_VALUE`."""
        return self.r_squared >= MIN_R_SQUARED and self.p_value <= MAX_P_VALUE

    @property
    def peak_step(self) -> float:
        """The step of the maximum, NaN for a curve that falls first.

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

    With time in units of the last step, the rate ``lambda * gamma`` is searched from 0.01 to 10,000 and the offset
    ``t0 / gamma`` from a millionth to 10, on a grid that is then refined; the curve is linear in what is left, with
    gamma from 0.1 to a million, and lambda * x <= 5 at the first step. Without bounds the formula includes curves that
    no finite parameters give.

    Args:
        steps: shape (n_steps,), ascending, >= 0.
        values: shape (n_steps,); those that are not finite are left out.

    Returns:
        None for fewer than :data:`MIN_STEPS` finite values, and for values that are all the same.
    """
    return fit_layers(steps, np.asarray(values, float)[None])[0]


def fit_layers(steps: ArrayLike, values: np.ndarray) -> list[ActivationFit | None]:
    """Return :func:`fit_activations` of each layer, with what their searches share computed once.

    Args:
        steps: shape (n_steps,), ascending, >= 0.
        values: shape (n_layers, n_steps).
    """
    t = np.asarray(steps, float)
    found: list[ActivationFit | None] = [None] * len(values)
    alike: dict[bytes, list[int]] = {}  # layers with values at the same steps
    for place, known in enumerate(np.isfinite(values)):
        if known.sum() >= MIN_STEPS and np.ptp(values[place, known]):
            alike.setdefault(known.tobytes(), []).append(place)
    for places in alike.values():
        known = np.isfinite(values[places[0]])
        for place, fit in zip(places, _fits(t[known], [values[place, known] for place in places]), strict=True):
            found[place] = fit
    return found


def _fits(t: np.ndarray, courses: Sequence[np.ndarray]) -> list[ActivationFit]:
    """Return the fits of several courses over the same steps."""
    t, last = t / t[-1], float(t[-1])
    units, centres = [float(np.ptp(y)) for y in courses], [float(y.mean()) for y in courses]
    scaled = [(y - centre) / unit for y, unit, centre in zip(courses, units, centres, strict=True)]
    # one rate after another bounds the memory
    grids = np.full((len(courses), len(_RATES), len(_OFFSETS)), math.inf)
    for row, rate in enumerate(_RATES):
        offsets = _OFFSETS[_decays_late(t, rate, _OFFSETS)]
        curves = _Curves(t, np.full(len(offsets), rate), offsets)
        for place, y in enumerate(scaled):
            grids[place, row, : len(offsets)] = curves.best_scales(y)[0]
    fits = []
    for y, of_course, grid, centre in zip(scaled, courses, grids, centres, strict=True):
        rate, offset = _refined(t, y, grid)
        curve = _Curves(t, rate, offset)
        left_over, log_scale = (float(found[0]) for found in curve.best_scales(y))
        shape = curve.shapes(np.array([log_scale]))[0]
        slope = float(np.cov(shape, of_course, bias=True)[0, 1] / shape.var())
        gamma = math.exp(log_scale)
        parameters = (
            slope * math.exp(float(rate[0] * offset[0])),
            float(rate[0]) / gamma,
            gamma / last,
            gamma * float(offset[0]),
            centre - slope * float(shape.mean()),
        )
        total, freedom = float(np.square(y).sum()), len(y) - N_PARAMETERS
        ratio = (total / left_over - 1) * freedom / (N_PARAMETERS - 1) if left_over > 0 else math.inf
        p_value = float(fdtrc(N_PARAMETERS - 1, freedom, ratio))
        fits.append(ActivationFit(*parameters, 1 - left_over / total, p_value, len(y)))
    return fits


_KNOWN: WeakKeyDictionary[MetricSeries, dict[int, ActivationFit]] = WeakKeyDictionary()


def fits_of(series: MetricSeries) -> dict[int, ActivationFit]:
    """Return the fit of each layer that has one, which is searched once for all views of a series."""
    if series not in _KNOWN:
        fits = zip(series.layers, fit_layers(series.steps, series.values), strict=True)
        _KNOWN[series] = {layer: fit for layer, fit in fits if fit is not None}
    return _KNOWN[series]


def activation_fits(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the :func:`fit_table` of a run.

    Args:
        frame: rows of one run, of one stack of its model, on one probe.
    """
    names = [name for name in frame["metric"].unique() if base_name(name) == METRIC]
    of_metric = frame.loc[frame["metric"].isin(names)]
    if bool(of_metric["layer"].isna().all()):
        return fit_table([])
    return fit_table(metric_series(measurements(of_metric)).values())


def fit_table(series: Iterable[MetricSeries]) -> pd.DataFrame:
    """Return the fits of the layers of one run, those that are not worth a report among them.

    Args:
        series: of the metrics of the run, of one stack of its model.

    Returns:
        For each layer with a fit its metric, layer, parameters, r_squared, p_value, n_steps, peak_step and is_reported.
    """
    rows = [
        {
            "metric": of.metric,
            "layer": layer,
            **fit._asdict(),
            "peak_step": fit.peak_step,
            "is_reported": fit.is_reported,
        }
        for of in series
        if base_name(of.metric) == METRIC
        for layer, fit in fits_of(of).items()
    ]
    return pd.DataFrame(rows, columns=["metric", "layer", *ActivationFit._fields, "peak_step", "is_reported"])


def _refined(t: np.ndarray, y: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rate and the offset that leave the least sum of squares, each of shape (1,).

    Args:
        t, y: scaled steps and values.
        grid: sums of squares by rate and offset.
    """
    row, column = np.unravel_index(grid.argmin(), grid.shape)
    found = minimize(
        lambda logs: float(_Curves(t, *np.exp(logs[:, None])).best_scales(y)[0][0]),
        np.log([_RATES[row], _OFFSETS[column]]),
        method="Nelder-Mead",
        bounds=np.log([(_RATES[0], _RATES[-1]), (_OFFSETS[0], _OFFSETS[-1])]),
        options={"xatol": _ACCURACY, "fatol": _ACCURACY * float(grid.min()), "maxiter": 300},
    )
    rate, offset = np.exp(found.x[:, None])
    return rate, offset


def _decays_late(t: np.ndarray, rates: ArrayLike, offsets: np.ndarray) -> np.ndarray:
    """Return whether the exponent of the decay is within its bound at the first step."""
    return np.asarray(rates) * (offsets + t[0]) <= _MAX_DECAYED


class _Curves:
    """The curves of several rates and offsets, shapes (n,), without what depends on the values."""

    def __init__(self, t: np.ndarray, rates: np.ndarray, offsets: np.ndarray) -> None:
        self._decays_late = _decays_late(t, rates, offsets)
        self._fall, self._rise = np.exp(-rates[:, None] * t), np.log(offsets[:, None] + t)
        columns = np.stack([self._fall * self._rise, self._fall, np.ones_like(self._fall)], axis=-1)
        self._q, self._r = np.linalg.qr(columns)

    @cached_property
    def _at_bounds(self) -> list[_Shapes]:
        return [_Shapes(self.shapes(np.full(len(self._fall), at))) for at in _LOG_SCALES]

    def shapes(self, log_scales: np.ndarray) -> np.ndarray:
        """Return ``exp(-lambda gamma t) * log(gamma t + t0)`` for log(gamma) of shape (n,), shape (n, n_steps)."""
        return self._fall * (self._rise + log_scales[:, None])

    def best_scales(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum of squares that the best curve of each rate and offset leaves of y, of mean 0, and its
        log(gamma), shapes (n,)."""
        r = self._r
        with np.errstate(all="ignore"):
            # back substitution: a triangle that is singular gives no number, which is out of bounds
            z = np.swapaxes(self._q, 1, 2) @ y
            third = z[:, 2] / r[:, 2, 2]
            second = (z[:, 1] - r[:, 1, 2] * third) / r[:, 1, 1]
            first = (z[:, 0] - r[:, 0, 1] * second - r[:, 0, 2] * third) / r[:, 0, 0]
            free = second / first
        inside = (free >= _LOG_SCALES[0]) & (free <= _LOG_SCALES[1])
        if inside.all():
            log_scales, left_over = free, _Shapes(self.shapes(free)).squares_left(y)
        else:
            low, high = (shapes.squares_left(y) for shapes in self._at_bounds)
            log_scales = np.where(inside, free, np.where(low <= high, *_LOG_SCALES))
            left_over = np.minimum(low, high)
            if inside.any():
                left_over = np.where(inside, _Shapes(self.shapes(log_scales)).squares_left(y), left_over)
        return np.where(self._decays_late, left_over, math.inf), log_scales


class _Shapes:
    """Curves around their means, shape (n, n_steps)."""

    def __init__(self, shapes: np.ndarray) -> None:
        self._centred = shapes - shapes.mean(axis=1, keepdims=True)
        self._squares = np.square(self._centred).sum(axis=1, keepdims=True)

    def squares_left(self, y: np.ndarray) -> np.ndarray:
        """Return the sum of squares of y, of mean 0, that a line on each shape leaves, shape (n,)."""
        # a shape that is flat explains nothing
        slopes = np.divide(
            self._centred @ y[:, None], self._squares, out=np.zeros_like(self._squares), where=self._squares > 0
        )
        return np.square(y - slopes * self._centred).sum(axis=1)
