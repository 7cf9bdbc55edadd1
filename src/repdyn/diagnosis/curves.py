"""Statements about the curve of a metric over training: changes, turns, peaks, its coupling with the loss, its fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from repdyn.diagnosis.insight import Insight, LossCorrelation, LossCorrelations, note
from repdyn.metrics.metric import base_name
from repdyn.tables.effects import rank_correlation
from repdyn.tables.fits import METRIC, fits_of
from repdyn.tables.frames import LayerMean, RunLoss, is_finished, loss_of_run
from repdyn.tables.runs import spans
from repdyn.tables.series import MetricSeries
from repdyn.tables.style import metric_title, number_text, short_subset_title

MIN_STEPS = 5
"""Least number of measured steps for a statement about a course."""
MIN_CHANGE = 0.1
"""Least change that is worth a sentence, as a share of the larger value."""
LARGE_FACTOR = 3.0
"""Least factor that is not given in percent."""
MIN_PAIRS = 12
"""Least number of changes for a correlation."""
SIGNIFICANCE = 0.001
"""Largest p-value of a turn."""


def course_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield what the mean over layers did from the first to the last step: a peak, a trough, or a change.

    A rise or fall counts if it exceeds :data:`MIN_CHANGE` and twice the noise, which is the interval of the values or,
    if that is unknown, estimated from second differences. The extremum is that of the running median of three steps,
    so that a single outlier is no peak.
    """
    mean = best_covered_mean(series)
    if len(mean.mean) < MIN_STEPS:
        return
    steps, values = mean.mean.index.to_numpy(int), mean.mean.to_numpy(float)
    noise = _noise(mean)
    smooth = _running_median(values)
    ends = float(smooth[0]), float(smooth[-1])
    for kind, place in (("peak", int(np.argmax(smooth))), ("trough", int(np.argmin(smooth)))):
        extreme = float(smooth[place])
        if all(_differs(extreme, end, noise) for end in ends):
            verbs = ("rose", "fell") if kind == "peak" else ("fell", "rose")
            change = _share(ends[1], extreme)
            sentence = (
                f"{_subject(series, mean)} {verbs[0]} from {number_text(ends[0])} at step {steps[0]:,} to "
                f"{number_text(extreme)} near step {steps[place]:,}, then {verbs[1]} to {number_text(ends[1])}"
                f"{_percent(extreme, ends[1])}."
            )
            evidence = {"first": ends[0], kind: extreme, "last": ends[1], "noise": noise}
            at = (int(steps[0]), int(steps[place]), int(steps[-1]))
            size = max(abs(change), abs(_share(ends[0], extreme)))
            yield note(series, kind, sentence, steps=at, evidence=evidence, weight=size)
            return
    if _differs(*ends, noise):
        verb = "rose" if ends[1] > ends[0] else "fell"
        sentence = (
            f"{_subject(series, mean)} {verb} from {number_text(ends[0])} at step {steps[0]:,} to "
            f"{number_text(ends[1])} at step {steps[-1]:,}{_percent(*ends)}."
        )
        evidence = {"first": ends[0], "last": ends[1], "noise": noise}
        at = (int(steps[0]), int(steps[-1]))
        yield note(series, "change", sentence, steps=at, evidence=evidence, weight=abs(_share(*ends)))


def turn_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield the step at which the course of the mean over layers turns.

    Two joined lines over log(1 + step) are compared with one line by an F test; the step of the knot is the one of
    least squares. A knot next to either end is not considered. Because the knot is chosen, the p-value is multiplied by
    the number of knots tried (Bonferroni).
    """
    covered = best_covered_mean(series)
    mean = covered.mean
    if len(mean) < 2 * MIN_STEPS:
        return
    steps, values = mean.index.to_numpy(int), mean.to_numpy(float)
    places = np.log10(1.0 + steps - steps[0])
    line = _squares(np.column_stack([np.ones_like(places), places]), values)
    bent = {
        k: _squares(np.column_stack([np.ones_like(places), places, _hinge(places, k)]), values)
        for k in _knots(places, values)
    }
    knot = min(bent, key=lambda k: bent[k][0])
    left_over = bent[knot][0]
    freedom = len(steps) - 4
    # rounding alone bends a perfect line
    if left_over <= 0 or line[0] <= 1e-18 * float(np.square(values).sum()):
        return
    ratio = (line[0] - left_over) / 2 / (left_over / freedom)
    p_value = min(1.0, float(fdtrc(2, freedom, ratio)) * freedom)  # one knot for each degree of freedom
    slope, bend = bent[knot][1][1:]
    before, after = float(slope), float(slope + bend)
    if p_value > SIGNIFICANCE or abs(after - before) < MIN_CHANGE * float(np.abs(values).max()):
        return
    sentence = (
        f"{_subject(series, covered)} changed course near step {steps[knot]:,}: {before:+.2g} per tenfold of steps "
        f"before, {after:+.2g} after."
    )
    evidence = {"slope_before": before, "slope_after": after, "p_value": p_value}
    size = min(1.0, abs(after - before) / float(np.abs(values).max()))
    yield note(series, "turn", sentence, steps=(int(steps[knot]),), evidence=evidence, weight=0.5 * size)


def coupling_statements(series: MetricSeries, loss: RunLoss) -> Iterator[Insight]:
    """Yield whether changes of the mean over layers go with changes of the loss.

    Spearman's rank correlation of the changes between successive steps, not of the values: two curves that both fall
    correlate whatever drives them.
    """
    covered = best_covered_mean(series)
    both = at_shared_steps(covered.mean, loss.values)
    changes = np.diff(both.to_numpy(float), axis=0)
    if len(changes) < MIN_PAIRS:
        return
    found = rank_correlation(changes[:, 0], changes[:, 1])
    if math.isnan(found.value) or found.low <= 0.0 <= found.high or abs(found.value) < 0.5:
        return
    direction = "the same" if found.value > 0 else "the opposite"
    sentence = (
        f"{_subject(series, covered)} moves in {direction} direction as the {loss.title} (rank correlation "
        f"of {found.n} changes {found.value:.2f}, 95 % interval {found.low:.2f} to {found.high:.2f})."
    )
    evidence = {"correlation": found.value, "low": found.low, "high": found.high, "changes": float(found.n)}
    steps, weight = (int(both.index[0]), int(both.index[-1])), 0.4 * abs(found.value)
    yield note(series, "coupling", sentence, steps=steps, evidence=evidence | {"loss": loss.name}, weight=weight)


def at_shared_steps(mean: pd.Series, loss: pd.Series) -> pd.DataFrame:
    """Return a mean over layers and a loss, both by step, at the steps at which both are finite."""
    both = pd.concat({"metric": mean, "loss": loss}, axis="columns", join="inner").sort_index()
    return both.loc[np.isfinite(both.to_numpy(float)).all(axis=1)]


def best_covered_mean(series: MetricSeries) -> LayerMean:
    """Return the mean over layers at the steps at which all of these layers have a value.

    The layers are those with the most values: as many as maximise layers times steps. The mean over all layers would be
    that of a single one where the others have no value at the beginning.
    """
    known = ~np.isnan(series.values)
    order = np.argsort(-known.sum(axis=1), kind="stable")
    complete = np.logical_and.accumulate(known[order])
    sizes = complete.sum(axis=1) * np.arange(1, len(order) + 1)
    n_used = len(sizes) - int(np.argmax(sizes[::-1]))  # of equal sizes, more layers
    steps = complete[n_used - 1]
    chosen = order[:n_used]
    index = pd.Index(np.array(series.steps)[steps])
    mean = pd.Series(series.values[chosen][:, steps].mean(axis=0), index)
    margin = pd.Series(series.margins[chosen][:, steps].mean(axis=0), index)
    return LayerMean(mean, margin, n_used if steps.any() else 0, len(order))


def _subject(series: MetricSeries, mean: LayerMean) -> str:
    tokens = "" if series.subset == "all" else f", {short_subset_title(series.subset)}"
    return f"{metric_title(series.metric)} (mean over {mean.coverage}{tokens})"


def _noise(mean: LayerMean) -> float:
    """Return the standard error of a value of the mean: the median over steps, or from second differences."""
    known = mean.margin.dropna()
    if len(known) == len(mean.margin):
        return float(known.median()) / 1.96
    seconds = np.diff(mean.mean.to_numpy(float), 2)
    # the standard deviation of a normal distribution, from the median of absolute values; and of x - 2 y + z
    return float(np.median(np.abs(seconds)) * 1.4826 / math.sqrt(6.0))


def _running_median(values: np.ndarray) -> np.ndarray:
    """Return the median of each value and its neighbours; the two ends stay as they are."""
    inner = np.median(np.lib.stride_tricks.sliding_window_view(values, 3), axis=1)
    return np.concatenate([values[:1], inner, values[-1:]])


def _differs(value: float, other: float, noise: float) -> bool:
    return abs(_share(value, other)) >= MIN_CHANGE and abs(value - other) > 2 * math.sqrt(2) * noise


def _share(value: float, other: float) -> float:
    """Return the difference as a share of the larger of both."""
    larger = max(abs(value), abs(other))
    return (value - other) / larger if larger > 0 else 0.0


def _squares(columns: np.ndarray, values: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the sum of squares that a linear regression leaves, and its coefficients."""
    coefficients = np.linalg.lstsq(columns, values, rcond=None)[0]
    return float(np.square(values - columns @ coefficients).sum()), coefficients


def _hinge(places: np.ndarray, knot: int) -> np.ndarray:
    return np.maximum(0.0, places - places[knot])


def _knots(places: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the inner knots whose two lines may be the ones of least squares, up to rounding.

    The sum of squares that each leaves is found for all of them at once: a hinge lowers that of the line by the square
    of its product with the residuals over the square of its own residual.
    """
    inner = np.arange(2, len(places) - 2)
    basis = np.linalg.qr(np.column_stack([np.ones_like(places), places - places.mean()]))[0]
    left = values - basis @ (basis.T @ values)
    columns = np.column_stack([np.ones_like(places), places, places**2, left, places * left])
    beyond = np.cumsum(columns[::-1], axis=0)[::-1][inner + 1]
    at = places[inner]
    products = beyond[:, 4] - at * beyond[:, 3]
    squares = beyond[:, 2] - 2 * at * beyond[:, 1] + at**2 * beyond[:, 0]
    weighted = np.cumsum((basis * places[:, None])[::-1], axis=0)[::-1][inner + 1]
    plain = np.cumsum(basis[::-1], axis=0)[::-1][inner + 1]
    own = squares - np.square(weighted - at[:, None] * plain).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        lowered = np.square(products) / own
    # rounding: of the values, of the line's squares, and of hinges that are nearly lines
    rounding = len(values) * float(1e-13 * np.abs(values).max()) ** 2 + 1e-6 * float(np.square(left).sum())
    near = ~(lowered < np.nanmax(lowered) - rounding) | (own < 1e-6 * squares)
    return inner[near]


def _percent(value: float, other: float) -> str:
    """Return the change in percent, or as a factor if large, in brackets; nothing if it changes sign or begins at 0."""
    if value * other <= 0:
        return ""
    ratio = other / value
    return f" (x{ratio:.3g})" if ratio >= LARGE_FACTOR else f" ({ratio - 1:+.0%})"


MIN_CHECKPOINTS = 8
"""Least number of checkpoints with both a value of the metric and a loss."""
CAVEAT = (
    "Two trends correlate whatever drives them, so look at the changes. Checkpoints of one run are not independent, so "
    "that the intervals of the values are too narrow."
)


def loss_correlations(frame: pd.DataFrame, series: Mapping[tuple[str, str], MetricSeries]) -> LossCorrelations:
    """Return Spearman's correlation of each metric with the loss, over checkpoints and over the changes between them.

    The mean of a metric is over the layers of :func:`repdyn.diagnosis.curves.best_covered_mean`, the loss that of
    :func:`repdyn.tables.frames.loss_of_run`. The intervals assume independent pairs, which checkpoints of one training
    are not.

    Args:
        frame: rows of one run on one probe, or of one of its stacks, scalars among them.
        series: its metrics, by name and token subset.

    Returns:
        A correlation for each metric and subset with at least :data:`MIN_CHECKPOINTS` checkpoints.
    """
    if is_finished(frame.loc[frame["layer"].notna(), ["stage"]]):
        return LossCorrelations(None, reason="a finished model has no checkpoints to correlate over")
    loss = loss_of_run(frame)
    if loss.values.empty:
        return LossCorrelations(None, reason="no loss is stored with the measurements")
    means = {key: best_covered_mean(one).mean for key, one in series.items()}
    pairs = {key: at_shared_steps(mean, loss.values).to_numpy(float) for key, mean in means.items()}
    found = tuple(
        LossCorrelation(*key, rank_correlation(*both.T), rank_correlation(*np.diff(both, axis=0).T))
        for key, both in pairs.items()
        if len(both) >= MIN_CHECKPOINTS
    )
    most = max(map(len, pairs.values()), default=0)
    reason = f"{most} checkpoints have both a value and a loss, and {MIN_CHECKPOINTS} are needed"
    return LossCorrelations(loss.title, found, None if found else reason)


def activation_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield in how many layers ``largest_activation`` follows its formula, with the parameters of the layer in which
    it ends largest."""
    if base_name(series.metric) != METRIC:
        return
    fits = {layer: fit for layer, fit in fits_of(series).items() if fit.is_reported}
    if not fits:
        return
    first, last = series.steps_with_values[0], series.steps_with_values[-1]
    largest = max(fits, key=lambda layer: float(fits[layer].at(last)))
    fit, mean = fits[largest], math.fsum(each.r_squared for each in fits.values()) / len(fits)
    peaks = [layer for layer, each in fits.items() if first < each.peak_step < last]
    where = f"layer{'s' * (len(peaks) > 1)} {spans(peaks)}" if peaks else "none of them"
    sentence = (
        f"{metric_title(series.metric)} follows A exp(-lambda x) log(x) + K with x = gamma step + t0 in {len(fits)} of "
        f"{len(series.layers)} layers (mean R² {mean:.3f}), with a maximum within the run in "
        f"{where}; in layer {largest} A {number_text(fit.amplitude)}, "
        f"lambda {number_text(fit.decay)}, gamma {fit.time_scale:.2g}, t0 {number_text(fit.time_offset)}, "
        f"K {number_text(fit.baseline)} (R² {fit.r_squared:.3f}, {fit.n_steps} steps)."
    )
    numbers = {"layers": len(fits), "mean_r_squared": mean, "peak_step": fit.peak_step, **fit._asdict()}
    evidence, weight = {name: float(value) for name, value in numbers.items()}, 0.5 * len(fits) / len(series.layers)
    steps, layers = (first, last), tuple(fits)
    yield note(series, "activation growth", sentence, steps=steps, evidence=evidence, weight=weight, layers=layers)
