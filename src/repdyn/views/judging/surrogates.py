"""Whether a course turns more sharply than drift does: its phases, judged against surrogate
courses.

Nearly every random walk has change points, and so has noise around a smooth trend; a phase counts
only if it is sharper than what such courses show.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SURROGATES, PERCENTILE = 1000, 95
"""Number of surrogates of each kind, and the percentile of their sharpness that phases must exceed.
"""


class Drift(NamedTuple):
    """Compares the sharpness of the phases of a course with that of drift."""

    sharpness: float
    threshold: float
    """The highest percentile among the kinds of surrogates."""
    kind: str
    """The kind that has it."""

    @property
    def is_exceeded(self) -> bool:
        return self.sharpness > self.threshold

    def __str__(self) -> str:
        """Return both shares.

        >>> print(Drift(0.4, 0.2, "random walks"))  # doctest: +NORMALIZE_WHITESPACE
        sharper than drift: 0.40 of its path needs all phases, 0.20 of random walks (95th percentile
        of 1,000)
        """
        shares = (
            f"{self.sharpness:.2f} of its path needs all phases, {self.threshold:.2f} of "
            f"{self.kind}"
        )
        beyond = "" if self.is_exceeded else "no "
        return f"{beyond}sharper than drift: {shares} ({PERCENTILE}th percentile of {SURROGATES:,})"


def against_drift(values: Sequence[float] | np.ndarray, phases: Sequence[str]) -> Drift:
    """Compare the phases of a course with those of surrogates of its length, lag-1 correlation and
    trend.

    These are random walks, AR(1) processes and, of several phases (a single one may be a trend), an
    exponential trend with AR(1) noise, fitted to the course.

    Args:
        values: (n,) finite values by step, logarithms where ratios count.
        phases: "rise" and "fall", in their order.
    """
    course = np.asarray(values, float)
    # a stored run gets the same verdict each time that it is read
    random = np.random.default_rng(0)
    level = np.full_like(course, course.mean())
    trend = _trend(course)
    kinds = {
        "random walks": random.standard_normal((SURROGATES, len(course))).cumsum(axis=1),
        "AR(1) processes": level + _ar1(course - level, random),
    }
    if len(phases) > 1:
        kinds["its trend with AR(1) noise"] = trend + _ar1(course - trend, random)
    highest = {
        kind: float(np.percentile(sharpness(drawn, phases), PERCENTILE))
        for kind, drawn in kinds.items()
    }
    kind = max(highest, key=lambda name: highest[name])
    return Drift(float(sharpness(course[None], phases)[0]), highest[kind], kind)


def sharpness(courses: np.ndarray, phases: Sequence[str]) -> np.ndarray:
    """Return the share of each course's path that goes as its phases do, beyond the share with one
    phase fewer.

    Args:
        courses: (n_courses, n) values.
        phases: "rise" and "fall", in their order.

    Returns:
        (n_courses,) at most 1, that of a course of one phase whose every step goes as it does; 0 of
        constant courses.

    >>> sharpness(np.array([[5.0, 2.0, 3.0, 9.0, 4.0], [1.0, 2.0, 3.0, 4.0, 3.9]]), ["fall",
    ...     "rise", "fall"]).round(2)
    array([ 0.4 , -0.65])
    """
    path = np.abs(np.diff(courses)).sum(axis=1)
    gain = _gain(courses, phases)
    if len(phases) > 1:
        gain = gain - np.maximum(_gain(courses, phases[1:]), _gain(courses, phases[:-1]))
    return np.divide(gain, path, out=np.zeros_like(path), where=path > 0)


def _gain(courses: np.ndarray, phases: Sequence[str]) -> np.ndarray:
    """Return the sum of the changes of the phases, with the turning points that make it largest."""
    # the largest sum up to a step that belongs to each phase; the first one begins at the first
    # step
    gains = np.full((len(courses), len(phases)), -np.inf)
    start = 0.0
    for step in np.diff(courses).T:
        before = np.hstack([np.full((len(courses), 1), start), gains[:, :-1]])
        gains = np.maximum(gains, before) + np.outer(
            step, [1.0 if phase == "rise" else -1.0 for phase in phases]
        )
        # no later step can be the first of the first phase
        start = -np.inf
    return gains[:, -1]


def _trend(course: np.ndarray) -> np.ndarray:
    """Fit an exponential approach to a level, or departure from one: the best of rates from nearly
    linear to a step.
    """
    time = np.linspace(0.0, 1.0, len(course))
    rates = np.geomspace(0.01, 100.0, 33)[:, None]
    shapes = np.concatenate([np.exp(-rates * time), np.exp(-rates * (1 - time))])
    shapes -= shapes.mean(axis=1, keepdims=True)
    shapes /= np.linalg.norm(shapes, axis=1, keepdims=True)
    coefficients = shapes @ (course - course.mean())
    best = int(np.abs(coefficients).argmax())
    return course.mean() + coefficients[best] * shapes[best]


def _ar1(residuals: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return AR(1) processes (surrogates, n) with the lag-1 correlation and the size of the steps
    of residuals; the correlation of few values is corrected for its bias (Kendall 1954)."""
    n = len(residuals)
    centred = residuals - residuals.mean()
    variance = float(centred @ centred)
    lag = float(centred[1:] @ centred[:-1]) / variance if variance > 0 else 0.0
    # a correlation of 1 has no stationary spread, by which the first value is divided
    lag = min(0.99, max(-0.99, lag + (1 + 3 * lag) / n))
    drawn = random.standard_normal((SURROGATES, n))
    # the first value has the spread that later ones settle to, or each course would begin with a
    # trend
    drawn[:, 0] /= np.sqrt(1 - lag**2)
    for place in range(1, n):
        drawn[:, place] += lag * drawn[:, place - 1]
    # steps of such a process of unit noise have the variance 2 / (1 + lag)
    return drawn * np.sqrt(np.square(np.diff(residuals)).mean() * (1 + lag) / 2)
