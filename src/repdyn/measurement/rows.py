"""Measure one layer: the rows of every requested metric."""

import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
from torch import Tensor

from repdyn.kernels import (
    Cloud,
    Sequences,
    UndefinedError,
    full_precision,
    near_duplicate_share,
    same_group_share,
)
from repdyn.kernels.candidates import chosen_products
from repdyn.kernels.neighbours import resolved
from repdyn.kernels.two_nn import JACKKNIFE_GROUPS
from repdyn.metrics import LayerView, Metric
from repdyn.probe.design import view_of
from repdyn.store.schema import (
    Checkpoint,
    Estimate,
    PointCloud,
    Quantity,
    ReasonCode,
    Row,
    provenance,
    storable,
    too_few_distinct,
)
from repdyn.utils.intervals import interval_within

MIN_WINDOWS = 10
"""Least number of windows in a cloud from whose variation an interval is computed."""

OnError: TypeAlias = Literal["raise", "record"]
RECORDED: dict[OnError, type[Exception]] = {"raise": UndefinedError, "record": Exception}
"""The errors whose text is recorded as the reason of NaN; all others are raised."""


@dataclass(frozen=True)
class Reason:
    """Why there is no value."""

    text: str
    code: ReasonCode


def reason_of(error: Exception, batch: int | None = None) -> Reason:
    """Return why there is no value, or none for a batch."""
    if not isinstance(error, UndefinedError):
        return Reason(storable(f"{type(error).__name__}: {error}"), ReasonCode.ERROR)
    # it may quote the error of another package too
    text = storable(str(error) if batch is None else f"batch {batch}: {error}")
    return Reason(text, ReasonCode(error.code))


def part_of(
    progress: Callable[[float], None], number: int, n_parts: int
) -> Callable[[float], None]:
    """Return a function that reports a share of one of several equal parts as a share of
    the whole.
    """
    return lambda share: progress((number + share) / n_parts)


def rows_of_layer(
    view: LayerView,
    pairs: Sequence[tuple[Metric, str]],
    checkpoint: Checkpoint,
    layers: str,
    on_error: OnError,
    progress: Callable[[float], None],
) -> list[Row]:
    """Return the rows of one layer: one for each metric defined there, and for each head where it
    has such values.

    ``layers`` is the choice of layers as rows record it. ``progress`` is called before each metric
    and each of its batches with the completed share of the layer; what it raises breaks the
    measurement off.
    """
    rows = []
    clouds = LayerClouds(view, layers)
    for number, (metric, subset) in enumerate(pairs):
        if metric.is_defined_at(view.layer.index, is_last=view.layer.is_last):
            of_metric = part_of(progress, number, len(pairs))
            of_metric(0.0)
            rows += _rows_of_metric(clouds, metric, subset, checkpoint, on_error, of_metric)
    view.keep_for_later()
    return rows


class LayerClouds:
    """The clouds of a layer as rows describe them; what is the same for all metrics of a subset is
    found out once.
    """

    def __init__(self, view: LayerView, layers: str) -> None:
        self.view = view
        self._layers = layers
        self._described: dict[tuple[str, bool], PointCloud] = {}
        self._neighbours: dict[tuple[str, int], dict[str, Any]] = {}

    def described(self, subset: str, *, whole_windows: bool) -> PointCloud:
        """Return what is the same for every metric of a subset: the layer, the design, and how the
        vectors are spread over windows of text, or over whole ones.
        """
        key = (subset, whole_windows)
        if key in self._described:
            return self._described[key]
        view, probe = self.view, self.view.probe
        whole = probe.whole_windows if whole_windows else []
        tokens = [np.concatenate(windows) for windows in whole] or view.sample(subset)
        per_window = [np.unique(probe.window_of(batch), return_counts=True)[1] for batch in tokens]
        self._described[key] = PointCloud(
            layer=view.layer.index,
            depth=view.layer.depth,
            module=view.layer.module,
            layers=self._layers,
            stack=view.layer.stack,
            subset=subset,
            design=probe.design.name,
            n_windows=min(map(len, per_window)),
            vectors_per_window=int(max(counts.max(initial=0) for counts in per_window)),
            window_tokens=int(probe.lengths.max()),
            dim=view.layer.states.shape[1],
            dtype=view.layer.precision,
            probe=probe.hash,
        )
        return self._described[key]

    def neighbours(self, subset: str, n_batches: int) -> dict[str, Any]:
        """Return the columns of the nearest neighbours, in the worst of the first batches."""
        key = (subset, n_batches)
        if key not in self._neighbours:
            clouds = self.view.clouds(subset)[:n_batches]
            by_window = self.view.clouds_outside_windows(subset)[:n_batches]
            self._neighbours[key] = {
                "same_window_share": max(
                    float(cloud.once(same_group_share)) for cloud in by_window
                ),
                "near_duplicate_share": max(
                    float(cloud.once(near_duplicate_share)) for cloud in clouds
                ),
                **self.view.neighbour_fractions(subset),
            }
        return self._neighbours[key]


def _rows_of_metric(
    clouds: LayerClouds,
    metric: Metric,
    subset: str,
    checkpoint: Checkpoint,
    on_error: OnError,
    progress: Callable[[float], None],
) -> list[Row]:
    start = time.perf_counter()
    view = clouds.view
    # the first batch alone is kept for the next checkpoint
    compares = "previous_checkpoint" in metric.captures
    n_batches = 1 if compares else view.probe.n_batches
    recorded = RECORDED[on_error]
    batches, values, reason = _values(view, metric, subset, recorded, progress)
    seconds = time.perf_counter() - start
    try:
        n_vectors, n_unique = _sizes(view, metric, subset, batches, reason)
    except recorded as error:
        reason = reason or reason_of(error, 0)
        n_vectors, n_unique = min(map(len, view.sample(subset))), 0
    neighbours: dict[str, Any] = {}
    if metric.neighbours and n_unique:
        neighbours = clouds.neighbours(subset, n_batches)
    too_few = too_few_distinct(
        metric.collapses_duplicates, n_unique, n_vectors, neighbours.get("near_duplicate_share")
    )
    if reason is None and too_few is not None:
        reason = Reason(too_few, ReasonCode.FEW_DISTINCT)
    cloud = replace(
        clouds.described(subset, whole_windows="whole_windows" in metric.captures),
        n_vectors=n_vectors,
        n_unique=n_unique,
        own_window_excluded=view.probe.design.exclude_own_window if metric.neighbours else None,
        **neighbours,
    )
    quantity = Quantity(
        metric=metric.name,
        settings=metric.settings_json,
        compared_to=view.compared_to if compares else None,
        on_distinct=metric.collapses_duplicates,
    )
    when = {"seconds": seconds, **provenance()}
    if reason is not None:
        nothing = np.full(n_batches, math.nan)
        estimate = Estimate(
            **mean_and_spread(nothing, False, metric.range),
            reason=reason.text,
            reason_code=reason.code,
            **when,
        )
        return [Row(checkpoint=checkpoint, cloud=cloud, quantity=quantity, estimate=estimate)]
    of_metric = _summaries(view, metric, subset, batches, values)
    return [
        Row(
            checkpoint=checkpoint,
            cloud=cloud,
            quantity=replace(quantity, head=head),
            estimate=Estimate(**summary, **when),
        )
        for head, summary in of_metric.items()
    ]


def _summaries(
    view: LayerView,
    metric: Metric,
    subset: str,
    batches: Sequence[tuple],
    values: Sequence[np.ndarray | float],
) -> dict[int | None, dict[str, Any]]:
    """Return the columns that summarise the values of all batches, of the layer (None) and of each
    attention head.
    """
    if metric.per_head:
        by_head = np.array(values, ndmin=2)  # (n_batches, n_heads)
        of_layer = mean_and_spread(by_head.mean(axis=1), True, metric.range)
        of_heads = [mean_and_spread(head, True, metric.range) for head in by_head.T]
        return {None: of_layer, **dict(enumerate(of_heads))}
    independent = metric.whole_sequences or (
        len(batches) > 1 and view.probe.has_disjoint_batches(view_of(subset).sampled)
    )
    summary = mean_and_spread(np.array(values).reshape(-1), independent, metric.range)
    if len(batches) == 1:
        summary |= _interval_of_one_cloud(view, metric, subset, batches[0], summary["value"])
    return {None: summary}


def provenance_of_process() -> dict[str, str]:
    """Return what this process chose by trying, for a logger's hyperparameters: no value depends on
    it, so that no row has it.
    """
    products = chosen_products()
    return {"neighbour_product": products} if products else {}


def _interval_of_one_cloud(
    view: LayerView, metric: Metric, subset: str, inputs: tuple, value: float
) -> dict[str, float]:
    """Return standard error and interval from the variation between the windows of a single cloud,
    if known.
    """
    windows = view.windows(subset)[0]
    n_windows = len(windows.unique())
    std_error = getattr(metric.function, "std_error", None)
    if n_windows < MIN_WINDOWS or metric.is_own or metric.whole_sequences or std_error is None:
        return {}
    first = inputs[0].x if isinstance(inputs[0], Cloud) else inputs[0]
    try:
        error = float(std_error(*inputs, windows=windows[: len(first)], **metric.settings))
    except UndefinedError:
        return {}
    if not math.isfinite(error):
        return {}
    half = _student(min(n_windows, JACKKNIFE_GROUPS) - 1, 0.975) * math.sqrt(2) * error
    low, high = map(float, interval_within(value, half, metric.range))
    return {"std_error": error, "low": low, "high": high}


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
    half = _student(n - 1, 0.975) * math.sqrt(2 / n) * spread
    low, high = map(float, interval_within(mean, half, bounds))
    return {**summary, "std_error": spread / math.sqrt(n), "low": low, "high": high}


@cache
def _student(degrees: int, probability: float) -> float:
    """Return a quantile of Student's t distribution; scipy is imported when it is needed, not with
    a tracker.
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def _values(
    view: LayerView,
    metric: Metric,
    subset: str,
    recorded: type[Exception],
    progress: Callable[[float], None],
) -> tuple[Sequence[tuple], list[np.ndarray | float], Reason | None]:
    """Return the kernel's inputs and value for each batch, and the reason if the value is
    undefined.
    """
    values: list[np.ndarray | float] = []
    undefined = None
    with full_precision(view.layer.states.device):
        try:
            batches = metric.selector(view, subset)
        except recorded as error:
            return [], values, reason_of(error, 0)
        for number, inputs in enumerate(batches):
            # not among what is tried: it may break the measurement off
            progress(number / len(batches))
            try:
                # a kernel of another package may write into its inputs
                value = metric.compute(*(deepcopy(inputs) if metric.is_own else inputs))
                values.append(value.cpu().numpy() if metric.per_head else float(value))
            except UndefinedError as error:
                undefined = undefined or reason_of(error, number)
                # the batches of heads are sequences, some of which may have nothing to compare; all
                # others are parts of one sample
                if not metric.per_head:
                    return batches, values, undefined
            except recorded as error:
                return batches, values, reason_of(error)
    if undefined is None and any(np.isnan(value).any() for value in values):
        without = Reason("the kernel returned NaN without a reason", ReasonCode.NO_REASON)
        return batches, values, without
    return batches, values, None if values and metric.per_head else undefined


def _sizes(
    view: LayerView, metric: Metric, subset: str, batches: Sequence[tuple], reason: Reason | None
) -> tuple[int, int]:
    """Return vectors and distinct vectors of the smallest batch; of attention weights, positions
    are counted.
    """
    first = [inputs[0].x if isinstance(inputs[0], Sequences) else inputs[0] for inputs in batches]
    if first and metric.per_head:
        n_positions = min(weights.shape[-1] for weights in first)
        return n_positions, n_positions
    if metric.family == "weights":  # the probe's
        first = []
    points = [
        x if isinstance(x, Cloud) else Cloud(x) for x in first if isinstance(x, Cloud | Tensor)
    ]
    clouds = distinct = points or view.clouds(subset)
    if (
        metric.collapses_duplicates
        and reason is None
        and all(len(inputs) == 1 for inputs in batches)
    ):
        distinct = [resolved(cloud)[0] for cloud in clouds]
    return min(cloud.n_vectors for cloud in clouds), min(cloud.n_unique for cloud in distinct)
