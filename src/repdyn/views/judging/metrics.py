"""Statements about one metric: the course of its mean over layers, its coupling with the loss, its
fit; and its profile over depth at the last step, layers unlike their neighbours, missing values,
whole sequences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from repdyn.metrics.names import base_name
from repdyn.probe.design import NO_MASSIVE
from repdyn.store.schema import FINISHED, ReasonCode
from repdyn.utils.numbers import number_text
from repdyn.views.judging.effects import MOVES, MOVING, change_size, rank_correlation
from repdyn.views.judging.fits import fits_of
from repdyn.views.judging.insight import Insight, LossCorrelation, LossCorrelations
from repdyn.views.judging.surrogates import against_drift
from repdyn.views.tables.frames import (
    LOSS_TITLES,
    REASON_COLUMNS,
    counted_reasons,
    drop_first_comparison,
    has_text,
    loss_of_run,
)
from repdyn.views.tables.series import LayerMean, MetricSeries
from repdyn.views.tables.style import metric_title, short_subset_title
from repdyn.views.tables.words import OWN_WINDOW, layer_names, own_window_sentence

MIN_STEPS = 5  # least number of measured steps for a statement about a course
MIN_CHANGE = 0.1  # least change that is worth a sentence, as a share of the larger value

TURNS = {"peak": ("rise", "fall"), "trough": ("fall", "rise")}
NO_PHASE = "; no sharper a turn than drift shows"

MASSIVE_SHARE = 0.5
"""Largest share of the anisotropy that is left without vectors of massive norm where these are said
to make it.
"""

MIN_PAIRS = 12  # least number of changes for a correlation


def course_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield what the mean over layers did from the first to the last step: a peak, a trough, or a
    change.

    A change counts if it exceeds :data:`MIN_CHANGE` and twice the noise, which is the interval of
    the values or, if that is unknown, estimated from second differences. The extremum is that of
    the running median of three steps, so that a single outlier is no peak. A turn that drift shows
    too is said to be one.
    """
    mean = best_covered_mean(series)
    if len(mean.mean) < MIN_STEPS:
        return
    smooth = mean.mean.rolling(3, center=True).median().fillna(mean.mean)
    course = _Course(
        series=series,
        mean=mean,
        steps=smooth.index.tolist(),
        values=smooth.to_numpy(float),
        noise=_noise(mean),
    )
    turns = (
        ("peak", MOVES, int(course.values.argmax())),
        ("trough", MOVES[::-1], int(course.values.argmin())),
    )
    for kind, verbs, turn in turns:
        extreme = float(course.values[turn])
        # beyond both ends, or it is part of a rise or a fall
        if course.differs(extreme, course.first) and course.differs(extreme, course.last):
            yield _turn(course, kind, verbs, turn)
            return
    if course.differs(course.last, course.first):
        yield _change(course)


class _Course(NamedTuple):
    """The mean of a metric over layers against step, smoothed."""

    series: MetricSeries
    mean: LayerMean
    steps: list[int]
    values: np.ndarray
    noise: float

    @property
    def first(self) -> float:
        return float(self.values[0])

    @property
    def last(self) -> float:
        return float(self.values[-1])

    def differs(self, value: float, other: float) -> bool:
        return _differs(value, other, self.noise)

    def sentence(self, verb: str) -> str:
        """Return the sentence up to the value at its end."""
        subject = _subject(self.series, self.mean)
        return f"{subject} {verb} from {number_text(self.first)} at step {self.steps[0]:,} to"


def _turn(course: _Course, kind: str, verbs: Sequence[str], turn: int) -> Insight:
    """Return that a course has an extremum of this kind, ``turn`` steps after its first one."""
    at = course.steps[turn]
    extreme = float(course.values[turn])
    first = course.first
    last = course.last
    drift = against_drift(course.mean.mean.to_numpy(float), TURNS[kind])
    sentence = (
        f"{course.sentence(verbs[0])} {number_text(extreme)} near step {at:,}, then {verbs[1]} to "
        f"{number_text(last)}{_by(extreme, last)}{'' if drift.is_exceeded else NO_PHASE}."
    )
    size = max(abs(_share(last, extreme)), abs(_share(first, extreme)))
    return note(
        course.series,
        kind=kind,
        sentence=sentence,
        steps=(course.steps[0], at, course.steps[-1]),
        evidence={
            "first": first,
            kind: extreme,
            "last": last,
            "noise": course.noise,
            "sharpness": drift.sharpness,
            "of_drift": drift.threshold,
        },
        weight=min(1.0, size if drift.is_exceeded else 0.5 * size),
    )


def _change(course: _Course) -> Insight:
    """Return that the last value of a course differs from the first, and whether it still moves."""
    first = course.first
    last = course.last
    end = course.steps[-1]
    half = float(course.values[np.abs(np.array(course.steps) - end / 2).argmin()])
    # still moving: over the second half, between the last two quarters, and at the very end
    late = max(1, len(course.values) // 4)
    moves = (
        (half, last),
        (course.values[-2 * late : -late].mean(), course.values[-late:].mean()),
        course.mean.mean.iloc[-2:],
    )
    goes_on = course.differs(last, half) and all(
        (now > before) == (last > first) for before, now in moves
    )
    grew, fell = MOVES
    growing, falling = MOVING
    sentence = (
        f"{course.sentence(fell if last < first else grew)} {number_text(last)} at step "
        f"{end:,}{_by(first, last)}"
    )
    if goes_on:
        sentence += f", and was still {falling if last < first else growing} at the end"
    return note(
        course.series,
        kind="change",
        sentence=f"{sentence}.",
        steps=(course.steps[0], end),
        evidence={"first": first, "last": last, "noise": course.noise},
        weight=min(1.0, abs(_share(last, first))),
    )


COUPLING = "coupling"
"""Kind of a statement that a metric moves with the loss."""


def coupling_statements(series: MetricSeries, correlations: LossCorrelations) -> Iterator[Insight]:
    """Yield whether changes of the mean over layers go with changes of the loss.

    Of the changes between successive steps, not of the values: two curves that both fall correlate
    whatever drives them.
    """
    for of_metric in correlations.of_metrics:
        if (of_metric.metric, of_metric.subset) != series.key:
            continue
        changes = of_metric.changes
        is_open = changes.low <= 0.0 <= changes.high
        # written with "not", so that NaN is no connection either
        if changes.n < MIN_PAIRS or not abs(changes.value) >= 0.5 or is_open:
            return
        direction = "the same" if changes.value > 0 else "the opposite"
        sentence = (
            f"{_subject(series, best_covered_mean(series))} moves in {direction} direction as the "
            f"{correlations.loss} (rank correlation of {changes.n} changes {changes.value:.2f}, "
            f"95% interval {changes.low:.2f} to {changes.high:.2f})."
        )
        yield note(
            series,
            kind=COUPLING,
            sentence=sentence,
            steps=(series.steps[0], series.steps[-1]),
            evidence={
                "correlation": changes.value,
                "low": changes.low,
                "high": changes.high,
                "changes": float(changes.n),
            },
            weight=0.4 * abs(changes.value),
        )


def note(series: MetricSeries, *, kind: str, sentence: str, **further: Any) -> Insight:
    """Return a description of a metric on a subset, with further fields of the statement."""
    return Insight(
        severity="note",
        kind=kind,
        sentence=sentence,
        metric=series.metric,
        subset=series.subset,
        **further,
    )


def best_covered_mean(series: MetricSeries) -> LayerMean:
    """Return the mean over layers at the steps at which all of these layers have a value.

    The layers are those with the most values: as many as maximise layers times steps. The mean over
    all layers would be that of a single one where the others have no value at the beginning.
    """
    has_value = ~np.isnan(series.values) & series.in_means[:, None]
    # each layer that is added can only take steps away
    order = np.argsort(-has_value.sum(axis=1), kind="stable")
    complete = np.logical_and.accumulate(has_value[order])
    sizes = complete.sum(axis=1) * np.arange(1, len(order) + 1)
    n_used = len(sizes) - int(np.argmax(sizes[::-1]))  # of equal sizes, more layers
    steps = complete[n_used - 1]
    chosen = order[:n_used]
    index = pd.Index(np.array(series.steps)[steps])
    mean = pd.Series(series.values[chosen][:, steps].mean(axis=0), index)
    low, high = (
        pd.Series(ends[chosen][:, steps].mean(axis=0), index)
        for ends in (series.lows, series.highs)
    )
    return LayerMean(
        mean=mean,
        low=low,
        high=high,
        n_used=n_used if steps.any() else 0,
        n_layers=int(series.in_means.sum()),
    )


def _subject(series: MetricSeries, mean: LayerMean) -> str:
    tokens = "" if series.subset == "all" else f", {short_subset_title(series.subset)}"
    return f"{metric_title(series.metric)}, mean over {mean.coverage}{tokens},"


def _noise(mean: LayerMean) -> float:
    """Return the standard error of a value of the mean: the median over steps, or from second
    differences.
    """
    margins = mean.margin.dropna()
    if len(margins) == len(mean.margin):
        # margins are half widths of 95% intervals
        return float(margins.median()) / 1.96
    seconds = np.diff(mean.mean.to_numpy(float), 2)
    # the standard deviation of a normal distribution, from the median of absolute values; and of x
    # - 2 y + z
    return float(np.median(np.abs(seconds)) * 1.4826 / math.sqrt(6.0))


def _differs(value: float, other: float, noise: float) -> bool:
    return abs(_share(value, other)) >= MIN_CHANGE and abs(value - other) > 2 * math.sqrt(2) * noise


def _share(value: float, other: float) -> float:
    """Return the difference as a share of the larger of both."""
    larger = max(abs(value), abs(other))
    return (value - other) / larger if larger > 0 else 0.0


def _by(value: float, other: float) -> str:
    """Return the size of a change in brackets; nothing if it changes sign or begins at 0."""
    return f" (by {change_size(math.log(other / value))})" if value * other > 0 else ""


MIN_CHECKPOINTS = 8  # least number of checkpoints with both a value of the metric and a loss
CAVEAT = (
    "Two trends correlate whatever drives them, so look at the changes. Checkpoints of one run are "
    "not independent, so that the intervals of the values are too narrow."
)


def loss_correlations(
    frame: pd.DataFrame, series: Mapping[tuple[str, str], MetricSeries]
) -> LossCorrelations:
    """Return Spearman's correlation of each metric with the loss, over checkpoints and over the
    changes between them.

    The mean of a metric is over the layers of :func:`best_covered_mean`, the loss that of
    :func:`repdyn.views.tables.frames.loss_of_run`. Each metric and subset needs
    :data:`MIN_CHECKPOINTS` checkpoints. The intervals assume independent pairs, which checkpoints
    of one training are not.
    """
    # the stored losses of a run have no stage
    is_of_finished = has_text(frame, "stage", FINISHED)
    if is_of_finished[frame["layer"].notna().to_numpy()].all():
        return LossCorrelations(
            None, reason="a finished model has no checkpoints to correlate over"
        )
    name, losses = loss_of_run(frame)
    if losses.empty:
        return LossCorrelations(None, reason="no loss is stored with the measurements")
    pairs: dict[tuple[str, str], np.ndarray] = {}
    for key, of_metric in series.items():
        mean = best_covered_mean(of_metric).mean
        _, at_mean, at_loss = np.intersect1d(mean.index, losses.index, return_indices=True)
        both = np.stack([mean.to_numpy(float)[at_mean], losses.to_numpy(float)[at_loss]], axis=1)
        pairs[key] = both[np.isfinite(both).all(axis=1)]
    of_metrics = tuple(
        LossCorrelation(
            metric=metric,
            subset=subset,
            values=rank_correlation(*both.T),
            changes=rank_correlation(*np.diff(both, axis=0).T),
        )
        for (metric, subset), both in pairs.items()
        if len(both) >= MIN_CHECKPOINTS
    )
    most = max(map(len, pairs.values()), default=0)
    reason = f"{most} checkpoints have both a value and a loss, and {MIN_CHECKPOINTS} are needed"
    return LossCorrelations(LOSS_TITLES[name], of_metrics, None if of_metrics else reason)


def activation_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield in how many layers ``largest_activation`` follows its formula, with the parameters of
    the layer in which it ends largest."""
    fits = {layer: fit for layer, fit in fits_of(series).items() if fit.is_reported}
    if not fits:
        return
    first = series.steps_with_values[0]
    last = series.steps_with_values[-1]
    largest = max(fits, key=lambda layer: float(fits[layer].at(last)))
    fit = fits[largest]
    mean = math.fsum(fit_of_layer.r_squared for fit_of_layer in fits.values()) / len(fits)
    peaks = [layer for layer, fit_of in fits.items() if first < fit_of.peak_step < last]
    where = layer_names(peaks) if peaks else "none of them"
    sentence = (
        f"{metric_title(series.metric)} follows A exp(-lambda x) log(x) + K with x = gamma step + "
        f"t0 in {len(fits)} of {len(series.layers)} layers (mean R² {mean:.3f}), with a maximum "
        f"within the run in {where}; in layer {largest} A {number_text(fit.amplitude)}, lambda "
        f"{number_text(fit.decay)}, gamma {fit.time_scale:.2g}, t0 {number_text(fit.time_offset)}, "
        f"K {number_text(fit.baseline)} (R² {fit.r_squared:.3f}, {fit.n_steps} steps)."
    )
    numbers = {
        "layers": len(fits),
        "mean_r_squared": mean,
        "peak_step": fit.peak_step,
        **fit._asdict(),
    }
    yield note(
        series,
        kind="activation growth",
        sentence=sentence,
        layers=tuple(fits),
        steps=(first, last),
        evidence={name: float(value) for name, value in numbers.items()},
        weight=0.5 * len(fits) / len(series.layers),
    )


MIN_LAYERS = 5  # least number of layers for a statement about one that differs
OUTLIER = 2.0
"""Distance of a layer from its neighbours at which it stands out, in usual distances between
successive layers.
"""
MIN_SHARE = 0.25  # least such distance, as a share of the largest absolute value
MIN_SPREAD = 0.1
"""Least difference between the largest and the smallest value of a profile, as a share of the
larger one.
"""
_CELL = ["layer", "metric", "subset", "head"]
MANY_MISSING = 0.1  # share of values missing at the last step above which someone should look


def _last_profile(series: MetricSeries) -> tuple[int, np.ndarray, np.ndarray] | None:
    """Return the last step with a value, and values and margins over depth; None if too few layers
    have one.
    """
    if not series.steps_with_values:
        return None
    step = series.steps_with_values[-1]
    values, margins = series.at(step)
    return (step, values, margins) if np.isfinite(values).sum() >= MIN_LAYERS else None


def layer_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield the layers that lie above or below both of their neighbours at the last step, by an
    unusual distance.

    The distance to the nearer neighbour is compared with the median distance between successive
    layers, and with twice the interval of the value if it is known. The first and the last layer
    have one neighbour and are left out.
    """
    if (profile := _last_profile(series)) is None:
        return
    step, values, margins = profile
    largest = float(np.nanmax(np.abs(values)))
    usual = float(np.nanmedian(np.abs(np.diff(values))))
    before = values[1:-1] - values[:-2]
    after = values[1:-1] - values[2:]
    # signed, to the nearer of both neighbours; 0 between them
    distances = np.where(
        before * after > 0, np.sign(before) * np.fmin(np.abs(before), np.abs(after)), 0.0
    )
    # a share of the largest value too, since successive layers may hardly differ at all
    outside = np.abs(distances) > max(OUTLIER * usual, MIN_SHARE * largest)
    for index in 1 + np.flatnonzero(outside & ~(np.abs(distances) <= 2 * margins[1:-1])):
        distance = float(distances[index - 1])
        layer = series.layers[index]
        sentence = (
            f"{metric_title(series.metric)} of layer {layer} is {number_text(values[index])} at "
            f"step {step:,}, {'above' if distance > 0 else 'below'} "
            f"{number_text(values[index - 1])} and {number_text(values[index + 1])} in the layers "
            "before and after it."
        )
        evidence = {"value": float(values[index]), "distance": distance, "usual_distance": usual}
        weight = 0.6 * min(1.0, abs(distance) / largest)
        yield note(
            series,
            kind="layer",
            sentence=sentence,
            layers=(layer,),
            steps=(step,),
            evidence=evidence,
            weight=weight,
        )


def profile_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield the layers with the largest and the smallest value at the last step."""
    if (profile := _last_profile(series)) is None:
        return
    step, values, _ = profile
    high = int(np.nanargmax(values))
    low = int(np.nanargmin(values))
    if values[high] - values[low] <= MIN_SPREAD * max(abs(values[high]), abs(values[low])):
        return
    sentence = (
        f"{metric_title(series.metric)} is largest in layer {series.layers[high]} "
        f"({number_text(values[high])}) and smallest in layer {series.layers[low]} "
        f"({number_text(values[low])}){_at(series, step)}."
    )
    layers = tuple(sorted((series.layers[high], series.layers[low])))
    evidence = {
        "largest": float(values[high]),
        "largest_layer": float(series.layers[high]),
        "smallest": float(values[low]),
        "smallest_layer": float(series.layers[low]),
    }
    yield note(
        series,
        kind="profile",
        sentence=sentence,
        layers=layers,
        steps=(step,),
        evidence=evidence,
        weight=0.1,
    )


def missing_statements(rows: pd.DataFrame) -> Iterator[Insight]:
    """Yield how many values of the last step are missing, and why.

    Those of the embeddings are expected: the tokens of a text repeat, so that a model without
    position embeddings has few distinct vectors there. Blocks that change little have few from the
    first step on, which says nothing of the training; such values are named, but call for no
    attention.
    """
    steps = rows["step"].to_numpy()
    is_missing = rows["value"].isna().to_numpy()
    last = int(steps.max())
    # layer 0 is left out: the embeddings have few distinct vectors in a sound run too
    is_at_end = (steps == last) & (rows["layer"].to_numpy(int) > 0)
    if not is_missing[is_at_end].any():
        return
    at_end = rows.loc[is_at_end, ["step", *_CELL, "value", *REASON_COLUMNS]]
    # the first checkpoint has none before it to compare with
    at_end = drop_first_comparison(at_end) if last == steps.min() else at_end
    missing = at_end.loc[at_end["value"].isna()]
    if missing.empty:
        return
    earlier = rows.loc[(steps < last) & ~is_missing, _CELL].drop_duplicates()
    had_value = missing.merge(earlier, "left", indicator=True)["_merge"].eq("both").to_numpy()
    is_few = missing["reason_code"].eq(ReasonCode.FEW_DISTINCT).fillna(False).to_numpy(bool)
    # what never had a value has not lost one
    as_ever = is_few & ~had_value & (last > steps.min())
    share = len(missing) / len(at_end)
    reason = counted_reasons(missing)
    metrics = missing["metric"].unique().tolist()
    layers = tuple(sorted(missing["layer"].unique().tolist()))
    named = metric_title(metrics[0]) if len(metrics) == 1 else f"{len(metrics)} metrics"
    before = ", as at every step before" if as_ever.all() else ""
    sentence = (
        f"{named}: no value in {len(missing)} of {len(at_end)} cells at step {last:,} "
        f"({layer_names(layers)}){before}: {reason}."
    )
    not_finite = bool(missing["reason_code"].eq(ReasonCode.NOT_FINITE).any())
    severity = (
        "failed"
        if not_finite
        else "watch"
        if sum(~as_ever) > MANY_MISSING * len(at_end)
        else "note"
    )
    metric = metrics[0] if len(metrics) == 1 else None
    evidence = {"missing": float(len(missing)), "values": float(len(at_end)), "reason": reason}
    yield Insight(
        severity=severity,
        kind="missing values",
        sentence=sentence,
        metric=metric,
        layers=layers,
        steps=(last,),
        evidence=evidence,
        weight=share,
    )


def window_statements(rows: pd.DataFrame) -> Iterator[Insight]:
    """Yield whether many vectors have their nearest neighbour in their own window of text, and
    whether ever more.
    """
    are_counted = rows["own_window_excluded"].eq(False) & rows["same_window_share"].notna()
    if not bool(are_counted.any()):
        return
    shares = rows.loc[are_counted, ["step", "metric", "same_window_share"]]
    highest = shares.groupby("step")["same_window_share"].max()
    first = float(highest.iloc[0])
    last = float(highest.iloc[-1])
    if last <= OWN_WINDOW:
        return
    metric = str(shares["metric"].iloc[0])
    evidence = {"first_share": first, "last_share": last}
    steps = int(highest.index[0]), int(highest.index[-1])
    yield Insight(
        severity="watch",
        kind="own window",
        sentence=own_window_sentence(metric, first, last),
        metric=metric,
        steps=steps,
        evidence=evidence,
        weight=0.2 * last,
    )


MIN_CORRELATION = 0.5  # least absolute rank correlation with depth that is worth a sentence
MIDDLE = (1 / 3, 2 / 3)  # relative depths between which a layer is a middle one


def condensation_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield the trend of ``sequence_cosine`` over depth at the last step."""
    if base_name(series.metric) != "sequence_cosine" or not series.steps_with_values:
        return
    first = series.steps_with_values[0]
    step = series.steps_with_values[-1]
    before, _ = _with_depth(series, first)
    correlation, n_layers = _with_depth(series, step)
    if n_layers < MIN_LAYERS or not abs(correlation) >= MIN_CORRELATION:
        return
    earlier = f"; {before:.2f} at step {first:,}" if first < step and not np.isnan(before) else ""
    sentence = (
        f"{metric_title(series.metric)} {'rises' if correlation > 0 else 'falls'} with "
        f"depth{_at(series, step)} (rank correlation {correlation:.2f} over {n_layers} "
        f"layers{earlier})."
    )
    evidence = {"correlation": correlation, "first_correlation": before, "layers": float(n_layers)}
    weight = 0.3 * abs(correlation)
    yield note(
        series,
        kind="condensation",
        sentence=sentence,
        steps=(step,),
        evidence=evidence,
        weight=weight,
    )


def valley_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield the valley of ``sequence_entropy`` over depth at the last step."""
    profile = _last_profile(series) if base_name(series.metric) == "sequence_entropy" else None
    if profile is None:
        return
    step, values, margins = profile
    low = int(np.nanargmin(values))
    if not MIDDLE[0] <= series.depths[low] <= MIDDLE[1] or np.isnan(values[:low]).all():
        return
    before = int(np.nanargmax(values[:low]))
    after = low + int(np.nanargmax(values[low:]))
    rise = float(min(values[before], values[after]) - values[low])
    largest = float(np.nanmax(values))
    # written with "not", so that NaN is no valley
    if not rise > MIN_SHARE * largest or rise <= 2 * margins[low]:
        return
    layers = tuple(series.layers[place] for place in (before, low, after))
    texts = [number_text(values[place]) for place in (before, low, after)]
    sentence = (
        f"{metric_title(series.metric)} has a valley{_at(series, step)}: {texts[1]} in layer "
        f"{layers[1]}, between {texts[0]} in layer {layers[0]} and {texts[2]} in layer {layers[2]}."
    )
    evidence = {
        "lowest": float(values[low]),
        "before": float(values[before]),
        "after": float(values[after]),
    }
    weight = 0.6 * rise / largest
    yield note(
        series,
        kind="compression valley",
        sentence=sentence,
        layers=layers,
        steps=(step,),
        evidence=evidence,
        weight=weight,
    )


def massive_statements(series: Mapping[tuple[str, str], MetricSeries]) -> Iterator[Insight]:
    """Yield the layers whose anisotropy a few vectors of massive norm make at the last step: those
    where it is at most half of it without these, by more than both intervals.
    """
    on_all = series.get(("anisotropy", "all"))
    without = series.get(("anisotropy", NO_MASSIVE))
    if on_all is None or without is None or on_all.layers != without.layers:
        return
    if not (steps := sorted({*on_all.steps_with_values} & {*without.steps_with_values})):
        return
    values, margins = on_all.at(steps[-1])
    values_without, margins_without = without.at(steps[-1])
    beyond = values - values_without > np.nan_to_num(np.hypot(margins, margins_without))
    places = np.flatnonzero(beyond & (values_without <= MASSIVE_SHARE * values))
    if not len(places):
        return
    layers = tuple(on_all.layers[place] for place in places)
    sentence = (
        f"{metric_title('anisotropy')} is {_extent(values[places])} in {layer_names(layers)}"
        f"{_at(on_all, steps[-1])}, {_extent(values_without[places])} without a few vectors of "
        "massive norm."
    )
    evidence = {
        "mean": float(values[places].mean()),
        "mean_without": float(values_without[places].mean()),
    }
    weight = float((values - values_without)[places].max())
    yield Insight(
        severity="note",
        kind="massive norms",
        sentence=sentence,
        metric="anisotropy",
        subset="all",
        layers=layers,
        steps=(steps[-1],),
        evidence=evidence,
        weight=weight,
    )


def _extent(values: np.ndarray) -> str:
    """Return the smallest and the largest of some values, or the one that both read as."""
    ends = dict.fromkeys((number_text(float(values.min())), number_text(float(values.max()))))
    return " to ".join(ends)


def _with_depth(series: MetricSeries, step: int) -> tuple[float, int]:
    """Return Spearman's rank correlation of the values with depth, NaN if there is none, and the
    number of values.
    """
    values = series.at(step)[0]
    known = np.flatnonzero(~np.isnan(values))
    return rank_correlation(values[known], known).value, len(known)


def _at(series: MetricSeries, step: int) -> str:
    return "" if len(series.steps) == 1 else f" at step {step:,}"
