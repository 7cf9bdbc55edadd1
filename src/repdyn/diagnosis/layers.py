"""Statements about depth at the last step: layers unlike their neighbours, missing values, whole sequences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from repdyn.diagnosis.insight import Insight, note
from repdyn.metrics.metric import base_name
from repdyn.tables.frames import drop_first_comparison, most_common_reason
from repdyn.tables.runs import spans
from repdyn.tables.series import MetricSeries
from repdyn.tables.style import BELOW_ONE, is_dimension, metric_title, number_text

MIN_LAYERS = 5
"""Least number of layers for a statement about one that differs."""
OUTLIER = 2.0
"""Distance of a layer from its neighbours at which it stands out, in usual distances between successive layers."""
MIN_SHARE = 0.25
"""Least such distance, as a share of the largest absolute value."""
MIN_SPREAD = 0.1
"""Least difference between the largest and the smallest value of a profile, as a share of the larger one."""
MANY_MISSING = 0.1
"""Share of values missing at the last step above which someone should look."""
OWN_WINDOW = 0.5
"""Share of vectors with the nearest neighbour in their own window above which values describe windows."""


def layer_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield the layers that lie above or below both of their neighbours at the last step, by an unusual distance.

    The distance to the nearer neighbour is compared with the median distance between successive layers, and with twice
    the interval of the value if it is known. The first and the last layer have one neighbour and are left out.
    """
    if not series.steps_with_values:
        return
    step = series.steps_with_values[-1]
    values, margins = series.at(step)
    if np.isfinite(values).sum() < MIN_LAYERS:
        return
    largest, usual = float(np.nanmax(np.abs(values))), float(np.nanmedian(np.abs(np.diff(values))))
    distances = _distances_from_both(values)
    outside = np.abs(distances) > max(OUTLIER * usual, MIN_SHARE * largest)
    with np.errstate(invalid="ignore"):
        places = np.flatnonzero(outside & ~(np.abs(distances) <= 2 * margins))
    for place in places:
        distance, layer = float(distances[place]), series.layers[place]
        sentence = (
            f"{metric_title(series.metric)} of layer {layer} is {number_text(values[place])} at step {step:,}, "
            f"{'above' if distance > 0 else 'below'} {number_text(values[place - 1])} and "
            f"{number_text(values[place + 1])} in the layers before and after it."
        )
        evidence = {"value": float(values[place]), "distance": distance, "usual_distance": usual}
        weight = 0.6 * min(1.0, abs(distance) / largest)
        yield note(series, "layer", sentence, steps=(step,), evidence=evidence, weight=weight, layers=(layer,))


def profile_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield the layers with the largest and the smallest value at the last step."""
    if not series.steps_with_values:
        return
    step = series.steps_with_values[-1]
    values = series.at(step)[0]
    if np.isfinite(values).sum() < MIN_LAYERS:
        return
    high, low = int(np.nanargmax(values)), int(np.nanargmin(values))
    if values[high] - values[low] <= MIN_SPREAD * max(abs(values[high]), abs(values[low])):
        return
    sentence = (
        f"{metric_title(series.metric)} is largest in layer {series.layers[high]} ({number_text(values[high])}) and "
        f"smallest in layer {series.layers[low]} ({number_text(values[low])}){_at(series, step)}."
    )
    layers = tuple(sorted((series.layers[high], series.layers[low])))
    evidence = {"largest": float(values[high]), "smallest": float(values[low])}
    yield note(series, "profile", sentence, steps=(step,), evidence=evidence, weight=0.1, layers=layers)


def missing_statements(rows: pd.DataFrame) -> Iterator[Insight]:
    """Yield how many values of the last step are missing, and why; those of the embeddings are expected: the tokens of
    a text repeat, so that a model without position embeddings has few distinct vectors there."""
    last = int(rows["step"].to_numpy().max())
    # the other columns would be copied with each selection of rows
    expected = drop_first_comparison(rows.loc[:, ["step", "layer", "metric", "value", "reason"]])
    at_end = expected.loc[(expected["step"] == last) & (expected["layer"] > 0)]
    missing = at_end.loc[at_end["value"].isna()]
    if missing.empty:
        return
    share = len(missing) / len(at_end)
    reason = most_common_reason(missing)
    metrics = missing["metric"].unique().tolist()
    layers = tuple(sorted(missing["layer"].unique().tolist()))
    named = metric_title(metrics[0]) if len(metrics) == 1 else f"{len(metrics)} metrics"
    sentence = (
        f"{named}: {len(missing)} of {len(at_end)} values at step {last:,} cannot be judged "
        f"(layers {spans(layers)}): {reason}."
    )
    not_finite = any(word in reason.split() for word in ("NaN", "inf"))
    severity = "failed" if not_finite else "watch" if share > MANY_MISSING else "note"
    metric = metrics[0] if len(metrics) == 1 else None
    evidence = {"missing": float(len(missing)), "values": float(len(at_end)), "reason": reason}
    yield Insight(severity, "missing values", sentence, metric, None, None, layers, (last,), evidence, weight=share)


def window_statements(rows: pd.DataFrame) -> Iterator[Insight]:
    """Yield whether many vectors have their nearest neighbour in their own window of text, and whether ever more."""
    counted = rows["same_window_share"].notna() & (rows["own_window_excluded"] == False)  # noqa: E712
    known = rows.loc[counted, ["step", "metric", "same_window_share"]]
    if known.empty:
        return
    highest = known.groupby("step")["same_window_share"].max()
    first, last = float(highest.iloc[0]), float(highest.iloc[-1])
    if last <= OWN_WINDOW:
        return
    rising = f", up from {first:.0%}" if last > first + 0.1 else ""
    metric = str(known["metric"].iloc[0])
    sentence = (
        f"{metric_title(metric)}: the nearest neighbour of up to {last:.0%} of the vectors lies in their own window of "
        f'text{rising}, which this sampling design lets count; a probe of the design "independent" leaves it out.'
    )
    evidence = {"first_share": first, "last_share": last}
    steps = int(highest.index[0]), int(highest.index[-1])
    yield Insight("watch", "own window", sentence, metric, steps=steps, evidence=evidence, weight=0.2 * last)


def below_one_statements(rows: pd.DataFrame) -> Iterator[Insight]:
    """Yield for each estimator of a dimension in which layers, and up to which step, it is below 1."""
    low = rows.loc[rows["value"] < 1, ["metric", "layer", "step", "value"]]
    for metric in filter(is_dimension, low["metric"].unique()):
        below = low.loc[low["metric"] == metric]
        layers = tuple(sorted(below["layer"].unique().tolist()))
        steps = tuple(sorted(below["step"].unique().tolist()))
        lowest, share = float(below["value"].min()), len(below) / np.count_nonzero(rows["metric"] == metric)
        at = f"at step {steps[0]:,}" if len(steps) == 1 else f"at {len(steps)} steps, the last of them {steps[-1]:,}"
        sentence = (
            f"{metric_title(str(metric))} is below 1 in layers {spans(layers)} {at} (lowest {number_text(lowest)}): "
            f"{BELOW_ONE}."
        )
        evidence = {"lowest": lowest, "share": share}
        severity = "watch" if steps[-1] == int(rows["step"].to_numpy().max()) else "note"
        yield Insight(severity, "below 1", sentence, str(metric), None, None, layers, steps, evidence, 0.3 * share)


def _distances_from_both(values: np.ndarray) -> np.ndarray:
    """Return the signed distance of each value to the nearer of both neighbours; 0 if it lies between them."""
    distances = np.zeros(len(values))
    before, after = values[1:-1] - values[:-2], values[1:-1] - values[2:]
    with np.errstate(invalid="ignore"):
        outside = before * after > 0
    distances[1:-1] = np.where(outside, np.sign(before) * np.fmin(np.abs(before), np.abs(after)), 0.0)
    return distances


MIN_CORRELATION = 0.5
"""Least absolute rank correlation with depth that is worth a sentence."""
MIDDLE = (1 / 3, 2 / 3)
"""Relative depths between which a layer is a middle one."""


def sequence_statements(series: MetricSeries) -> Iterator[Insight]:
    """Yield the trend of ``sequence_cosine`` over depth, or the valley of ``sequence_entropy``, at the last step."""
    describe = {"sequence_cosine": _condensation, "sequence_entropy": _valley}.get(base_name(series.metric))
    if describe and series.steps_with_values:
        yield from describe(series, series.steps_with_values[-1])


def _condensation(series: MetricSeries, step: int) -> Iterator[Insight]:
    correlation, n_layers = _with_depth(series, step)
    if n_layers < MIN_LAYERS or not abs(correlation) >= MIN_CORRELATION:
        return
    first = series.steps_with_values[0]
    before = _with_depth(series, first)[0]
    earlier = f"; {before:.2f} at step {first:,}" if first < step and not np.isnan(before) else ""
    sentence = (
        f"{metric_title(series.metric)} {'rises' if correlation > 0 else 'falls'} with depth{_at(series, step)} (rank "
        f"correlation {correlation:.2f} over {n_layers} layers{earlier})."
    )
    evidence = {"correlation": correlation, "first_correlation": before, "layers": float(n_layers)}
    yield note(series, "condensation", sentence, steps=(step,), evidence=evidence, weight=0.3 * abs(correlation))


def _valley(series: MetricSeries, step: int) -> Iterator[Insight]:
    values, margins = series.at(step)
    if np.isfinite(values).sum() < MIN_LAYERS:
        return
    low = int(np.nanargmin(values))
    is_middle = MIDDLE[0] <= series.depths[low] <= MIDDLE[1]
    if not is_middle or np.isnan(values[:low]).all():
        return
    before, after = int(np.nanargmax(values[:low])), low + int(np.nanargmax(values[low:]))
    rise = float(min(values[before], values[after]) - values[low])
    if not rise > MIN_SHARE * float(np.nanmax(values)) or rise <= 2 * margins[low]:
        return
    layers = tuple(series.layers[place] for place in (before, low, after))
    texts = [number_text(values[place]) for place in (before, low, after)]
    sentence = (
        f"{metric_title(series.metric)} has a valley{_at(series, step)}: {texts[1]} in layer {layers[1]}, between "
        f"{texts[0]} in layer {layers[0]} and {texts[2]} in layer {layers[2]}."
    )
    evidence = {"lowest": float(values[low]), "before": float(values[before]), "after": float(values[after])}
    weight = 0.6 * rise / float(np.nanmax(values))
    yield note(series, "compression valley", sentence, steps=(step,), evidence=evidence, weight=weight, layers=layers)


def _with_depth(series: MetricSeries, step: int) -> tuple[float, int]:
    """Return Spearman's rank correlation of the values with depth, NaN if there is none, and the number of values."""
    values = pd.Series(series.at(step)[0]).dropna()
    if values.nunique() < 2:
        return float("nan"), len(values)
    return float(values.rank().corr(pd.Series(values.index, values.index).rank())), len(values)


def _at(series: MetricSeries, step: int) -> str:
    return "" if len(series.steps) == 1 else f" at step {step:,}"
