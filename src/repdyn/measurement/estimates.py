"""Estimates from the values of batches: their mean, and the interval for another probe."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from repdyn.kernels import Cloud, UndefinedError
from repdyn.kernels.two_nn import JACKKNIFE_GROUPS
from repdyn.metrics import LayerView, MetricRequest
from repdyn.probe.design import view_of
from repdyn.utils.intervals import interval_within, student_quantile

MIN_WINDOWS = 10
"""Least number of windows in a cloud from whose variation an interval is computed."""


def estimates(
    view: LayerView,
    request: MetricRequest,
    batches: Sequence[tuple],
    values: Sequence[np.ndarray | float],
) -> dict[int | None, dict[str, Any]]:
    """Return the columns that summarise the values of all batches, of the layer (None) and of each
    attention head.
    """
    metric = request.metric
    # sequences share no window; batches of vectors may, where the windows are too few
    independent = (
        metric.whole_sequences
        or metric.is_of_attention_weights
        or (len(batches) > 1 and view.probe.has_disjoint_batches(view_of(request.subset).sampled))
    )
    if metric.per_head:
        by_head = np.array(values, ndmin=2)  # (n_batches, n_heads)
        of_layer = mean_and_spread(by_head.mean(axis=1), independent, metric.range)
        of_heads = [mean_and_spread(head, independent, metric.range) for head in by_head.T]
        return {None: of_layer, **dict(enumerate(of_heads))}
    summary = mean_and_spread(np.array(values).reshape(-1), independent, metric.range)
    if len(batches) == 1:
        summary |= _interval_of_one_cloud(view, request, batches[0], summary["value"])
    return {None: summary}


def mean_and_spread(
    values: np.ndarray, independent: bool, bounds: tuple[float, float]
) -> dict[str, Any]:
    """Return the columns that summarise the values of all batches of a quantity within bounds.

    The mean over n batches of another probe differs from this one by a normal variate of variance 2
    sigma^2 / n, so the interval is mean +- t sqrt(2 / n) std, with Student's t of n - 1 degrees of
    freedom, on a scale on which it stays within the bounds (:func:`interval_within`). There is none
    unless the batches are independent, of disjoint windows.
    """
    mean = float(np.mean(values))
    n = len(values)
    spread = float(np.std(values, ddof=1)) if n > 1 else math.nan
    summary: dict[str, Any] = {"value": mean, "std": spread, "n_batches": n}
    if n < 2 or not independent or math.isnan(spread):
        return {**summary, "std_error": None, "low": None, "high": None}
    # 2 / n: the variance of the difference of two means over n batches each
    half = student_quantile(n - 1) * math.sqrt(2 / n) * spread
    low, high = map(float, interval_within(mean, half, bounds))
    return {**summary, "std_error": spread / math.sqrt(n), "low": low, "high": high}


def _interval_of_one_cloud(
    view: LayerView, request: MetricRequest, inputs: tuple, value: float
) -> dict[str, float]:
    """Return standard error and interval from the variation between the windows of a single cloud,
    if known.
    """
    metric = request.metric
    windows = view.windows(request.subset)[0]
    n_windows = len(windows.unique())
    std_error = getattr(metric.function, "std_error", None)
    # kernels of other packages, and those without a formula, have no error of one cloud
    if n_windows < MIN_WINDOWS or metric.is_own or metric.whole_sequences or std_error is None:
        return {}
    # a kernel may be given fewer vectors than were sampled: the first ones
    first = inputs[0].x if isinstance(inputs[0], Cloud) else inputs[0]
    try:
        error = float(std_error(*inputs, windows=windows[: len(first)], **request.settings))
    except UndefinedError:
        return {}
    if not math.isfinite(error):
        return {}
    half = student_quantile(min(n_windows, JACKKNIFE_GROUPS) - 1) * math.sqrt(2) * error
    low, high = map(float, interval_within(value, half, metric.range))
    return {"std_error": error, "low": low, "high": high}
