"""How far a run lies from its baselines, earlier runs of the same recipe, and how often a run like
them would lie as far.

Each of the n + 1 runs, the judged one among them, is measured against the n others in the same way.
If the judged run is like its baselines, any order of the n + 1 scores is as probable as any other,
so that its place among them has a false-alarm rate that is known without a model of the scores:

    p = number of the n + 1 runs with a score at least as high as the judged one's / (n + 1)

It cannot be below 1 / (n + 1): 0.25 with three baselines, 0.05 with :data:`ENOUGH_FOR_LEVEL`. More
checkpoints do not help: those of a run share its seed and move together, so that runs x
checkpoints are still n + 1 independent things. Nor is a tail fitted to the n scores: it would give
smaller numbers by assuming a shape of the tail, which a handful of maxima cannot show to be wrong.

Losses are compared as metrics of one layer: many faults leave them before they leave the geometry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from repdyn.store.schema import LOSS, VALIDATION_LOSS
from repdyn.views.tables.bands import interpolated, of_layers, unit_of
from repdyn.views.tables.frames import scalar_rows
from repdyn.views.tables.runs import MeasuredRun, positions_by_step
from repdyn.views.tables.series import MetricSeries

LEVEL = 0.05
"""A run is unlike its baselines if p is at most this."""
ENOUGH_FOR_LEVEL = round(1 / LEVEL) - 1
"""The smallest number of baselines with which p can be as low."""
TOGETHER = 3
"""Neighbouring layers, and successive positions, over which deviations are averaged."""
SMALLEST_SCALE = 1e-3
"""Spread below which baselines are not told apart, as a share of the metric's usual size: those
that begin with the same weights have none."""
_MEAN_TO_STANDARD_DEVIATION = float(np.sqrt(np.pi / 2))
"""Ratio of the standard deviation to the mean absolute one, of a normal distribution."""
_LEAST_SHARE_OF_WINDOW = 0.5

LOSSES = (LOSS, VALIDATION_LOSS)
"""The losses that are compared beside the metrics."""
OF_LOSS = ""
"""The subset of a loss, which is of no vectors."""

SeriesKey: TypeAlias = tuple[str, str]
"""A metric and a subset, or a loss and :data:`OF_LOSS`."""


@dataclass(frozen=True, eq=False)
class Course:
    """One metric on one subset of all runs, at the same layers and positions."""

    layers: tuple[int, ...]
    positions: np.ndarray
    """Shape (n_positions,): all at which any run was measured, in the range that all have."""
    values: np.ndarray
    """Shape (n_runs, n_layers, n_positions), the judged run first; NaN where any run has no value.
    """
    is_log: bool = False
    """Whether the values are logarithms."""

    @cached_property
    def deviations(self) -> np.ndarray:
        """Return (n_runs, n_layers, n_positions): each run's distance from the others' median, in
        their spread.
        """
        return np.array([self._deviations_of(run) for run in range(len(self.values))])

    def _deviations_of(self, run: int) -> np.ndarray:
        # baselines leave themselves out as well: only scores made alike may come in any order
        others = np.delete(self.values, run, axis=0)
        centre = np.median(others, axis=0)
        spread = np.abs(others - centre).mean(axis=0) * _MEAN_TO_STANDARD_DEVIATION
        usual_size = float(np.nanmedian(np.abs(self.values)))
        # a metric that is 0 in all runs has no size to take a share of
        smallest = SMALLEST_SCALE * usual_size or np.finfo(float).tiny
        return (self.values[run] - centre) / np.maximum(_around(spread), smallest)

    @cached_property
    def smoothed(self) -> np.ndarray:
        """Return (n_runs, n_layer_windows, n_windows): deviations averaged over windows of
        :data:`TOGETHER` layers and positions.
        """
        return np.array([_windows(deviations, self.window) for deviations in self.deviations])

    @property
    def window(self) -> tuple[int, int]:
        """Return the number of layers and that of positions in a window."""
        return min(TOGETHER, len(self.layers)), min(TOGETHER, len(self.positions))

    @cached_property
    def extremes(self) -> np.ndarray:
        """Return (n_runs,): the largest smoothed deviation of each run, without its sign."""
        return np.nanmax(np.abs(self.smoothed), axis=(1, 2))

    @cached_property
    def usual(self) -> float:
        """Return the median over runs of these, in which metrics are comparable."""
        return float(np.median(self.extremes))


def _windows(values: np.ndarray, window: tuple[int, int]) -> np.ndarray:
    """Return means over windows, NaN where fewer than half of the values are there."""
    means, numbers = _means_of_known(values, window)
    is_enough = numbers >= _LEAST_SHARE_OF_WINDOW * window[0] * window[1]
    return np.where(is_enough, means, np.nan)


def _means_of_known(values: np.ndarray, window: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the finite values in each window, 0 without any, and their numbers."""
    cells = sliding_window_view(values, window)
    is_there = np.isfinite(cells)
    sums = np.where(is_there, cells, 0.0).sum(axis=(-2, -1))
    numbers = is_there.sum(axis=(-2, -1))
    return sums / np.maximum(numbers, 1), numbers


def _around(spread: np.ndarray) -> np.ndarray:
    """Return the mean of a spread over each cell and its neighbours: that of three runs in one cell
    is small by chance in some."""
    reach = TOGETHER // 2
    padded = np.pad(spread, reach, constant_values=np.nan)
    means, _ = _means_of_known(padded, (TOGETHER, TOGETHER))
    # neighbours must not fill in where the runs have no spread of their own
    return np.where(np.isfinite(spread), means, np.nan)


@dataclass(frozen=True)
class Deviation:
    """The metric, layers and step at which a run left the band of its baselines."""

    key: SeriesKey
    layers: tuple[int, ...]
    since: float
    """First position, in tokens or steps."""
    furthest_at: float
    """Position at which it is furthest."""
    layer: int
    """The layer in which it is furthest then."""
    value: float
    """Value of the run there."""
    low: float
    """Smallest value of the baselines there."""
    high: float
    """Their largest one."""
    ratio: float
    """The run's score as a multiple of the next lower one."""


@dataclass(frozen=True, eq=False)
class Standing:
    """A run among its baselines."""

    courses: Mapping[SeriesKey, Course]
    lost: tuple[str, int] | None = None
    """The loss of the judged run that is no number, and its first step that is none."""

    @cached_property
    def scores(self) -> np.ndarray:
        """Return (n_runs,), the judged run first: the largest, over metrics, of a run's extreme as
        a multiple of the usual one; infinite where its loss is no number.
        """
        of_metrics = [course.extremes / course.usual for course in self.courses.values()]
        scores = np.max(of_metrics, axis=0)
        # a loss that is no number lies outside of any band
        return scores if self.lost is None else np.array([np.inf, *scores[1:]])

    @property
    def p(self) -> float:
        """Return the probability that a run like its baselines has a score as high in its place
        among them.
        """
        return float(np.mean(self.scores >= self.scores[0]))

    @property
    def is_unlike(self) -> bool:
        # 1 / 20 need not equal LEVEL to the last bit
        return self.p <= LEVEL + 1e-12

    @cached_property
    def key(self) -> SeriesKey:
        """Return the metric and subset of the run's score."""
        return max(
            self.courses,
            key=lambda key: float(self.courses[key].extremes[0] / self.courses[key].usual),
        )

    @property
    def is_furthest(self) -> bool:
        """Return whether no baseline has a score as high."""
        return bool(self.scores[0] > self.scores[1:].max())

    @cached_property
    def deviation(self) -> Deviation | None:
        """Return where the run left its baselines; None if it is like them and not furthest, and
        where its loss is no number.
        """
        is_out = self.is_furthest or self.is_unlike
        return _deviation(self) if is_out and self.lost is None else None


def _deviation(standing: Standing) -> Deviation:
    """Locate what exceeds the next lower score of a run, in the metric of the run's score.

    A window whose mean exceeds it has a position, and a layer, whose mean over the window does so
    as well: these are named.
    """
    course = standing.courses[standing.key]
    is_lower = standing.scores < standing.scores[0]
    next_score = float(standing.scores[is_lower].max())
    # scores are multiples of the usual extreme of a metric: back to the unit of deviations
    limit = next_score * course.usual
    is_outside = np.abs(course.smoothed[0]) > limit
    row, column = np.unravel_index(np.nanargmax(np.abs(course.smoothed[0])), is_outside.shape)
    n_layers, n_positions = course.window
    window = course.deviations[0][row : row + n_layers, column : column + n_positions]
    # a cell without a value is never the furthest one
    outwards = np.nan_to_num(window * np.sign(course.smoothed[0][row, column]))
    layer, position = np.add(
        (row, column), np.unravel_index(np.argmax(outwards), outwards.shape)
    ).tolist()
    values = course.values[:, layer, position]
    if course.is_log:
        values = np.exp(values)
    return Deviation(
        key=standing.key,
        layers=_layers_outside(course, is_outside, limit) or (course.layers[layer],),
        since=float(course.positions[_begin(course, is_outside, limit)]),
        furthest_at=float(course.positions[position]),
        layer=course.layers[layer],
        value=float(values[0]),
        low=float(values[1:].min()),
        high=float(values[1:].max()),
        ratio=float(standing.scores[0] / next_score),
    )


def _begin(course: Course, is_outside: np.ndarray, limit: float) -> int:
    """Return the first position, in the first window outside, at which its layers are outside."""
    n_layers, n_positions = course.window
    first = int(np.flatnonzero(is_outside.any(axis=0))[0])
    over_layers = np.abs(_windows(course.deviations[0], (n_layers, 1)))
    rows_outside = np.flatnonzero(is_outside[:, first])
    of_window = over_layers[rows_outside, first : first + n_positions]
    return first + int(np.argmax((of_window > limit).any(axis=0)))


def _layers_outside(course: Course, is_outside: np.ndarray, limit: float) -> tuple[int, ...]:
    """Return the layers of windows outside that are outside themselves."""
    n_layers, n_positions = course.window
    over_positions = np.abs(_windows(course.deviations[0], (1, n_positions))) > limit
    layers = {
        course.layers[row + int(layer)]
        for row, column in np.argwhere(is_outside)
        for layer in np.flatnonzero(over_positions[row : row + n_layers, column])
    }
    return tuple(sorted(layers))


def standing_of(
    run: MeasuredRun, baselines: Sequence[MeasuredRun], losses: Sequence[str] = LOSSES
) -> Standing:
    """Return where a run stands among baselines that are comparable, by its metrics and losses.

    Raises:
        ValueError: no metric has a value in all runs at a position that all have.
    """
    runs = [run, *baselines]
    by_step = positions_by_step(runs)
    common = [key for key in run.series if all(key in other.series for other in baselines)]
    courses = {key: _course([of_run.series[key] for of_run in runs], by_step) for key in common}
    courses |= {(loss, OF_LOSS): _course_of_loss(runs, loss, by_step) for loss in losses}
    judged = {
        key: course for key, course in courses.items() if course is not None and _has_score(course)
    }
    if not judged:
        raise ValueError(
            "expected baselines with values of the same metrics, layers and range of steps, got "
            "none in common; measure them by the same schedule"
        )
    lost = (_lost(run, loss) for loss in losses)
    return Standing(judged, next(filter(None, lost), None))


def _lost(run: MeasuredRun, loss: str) -> tuple[str, int] | None:
    """Return a loss with the first step at which it is no number; None if it always is one."""
    rows = scalar_rows(run.scalars, loss)
    is_lost = ~np.isfinite(rows["value"].to_numpy(float))
    steps = rows["step"].to_numpy()[is_lost]
    return (loss, int(steps[0])) if len(steps) else None


def _has_score(course: Course) -> bool:
    if not np.isfinite(course.values).any() or not np.isfinite(course.smoothed).any():
        return False
    # at 0 half of the runs lie on the median of the others, and nothing is a multiple of it
    return course.usual > 0


def _course(
    members: Sequence[MetricSeries], by_step: Sequence[Mapping[int, float]]
) -> Course | None:
    """Return the values of a metric in all runs where all have one; None if they share no layer or
    position.
    """
    shared_layers = set.intersection(*(set(series.layers) for series in members))
    if not shared_layers:
        return None
    layers = tuple(sorted(shared_layers))
    measured = [
        np.array([at[step] for step in series.steps])
        for series, at in zip(members, by_step, strict=True)
    ]
    return _shared_course(layers, measured, [of_layers(series, layers) for series in members])


def _course_of_loss(
    runs: Sequence[MeasuredRun], loss: str, by_step: Sequence[Mapping[int, float]]
) -> Course | None:
    """Return a loss as the course of one layer, its logarithm where it is above zero; None if the
    runs share no position.
    """
    measured = []
    of_runs = []
    for run, at in zip(runs, by_step, strict=True):
        losses = run.loss(loss)
        losses = losses.loc[losses.index.isin(list(at)) & np.isfinite(losses)]
        measured.append(np.array([at[step] for step in losses.index]))
        of_runs.append(losses.to_numpy(float)[None])
    # losses differ by factors; one that is negative somewhere has no logarithm
    is_log = all(bool((values > 0).all()) for values in of_runs)
    return _shared_course(
        (0,), measured, [np.log(values) if is_log else values for values in of_runs], is_log=is_log
    )


def _shared_course(
    layers: tuple[int, ...],
    measured: Sequence[np.ndarray],
    of_runs: Sequence[np.ndarray],
    *,
    is_log: bool = False,
) -> Course | None:
    """Return the values of all runs at all positions in the range that all have; None without any.

    Args:
        layers: of all runs.
        measured: the positions of each run, ascending.
        of_runs: the values of each, of shape (n_layers, n_measured).
    """
    if not all(map(len, measured)):
        return None
    every = np.unique(np.concatenate(measured))
    # nothing is extrapolated: a run says nothing of steps before its first or after its last
    begin = max(of_run[0] for of_run in measured)
    end = min(of_run[-1] for of_run in measured)
    is_shared = (every >= begin) & (every <= end)
    positions = every[is_shared]
    if not len(positions):
        return None
    unit = unit_of(every)
    values = np.array(
        [
            interpolated(positions, at, of_run, unit)
            for at, of_run in zip(measured, of_runs, strict=True)
        ]
    )
    # medians of fewer runs at some positions would not compare with those at others
    values[:, ~np.isfinite(values).all(axis=0)] = np.nan
    return Course(layers, positions, values, is_log=is_log)
