"""Measure one layer: the rows of every requested metric.

A row consists of four records, which are made one after another here: the *checkpoint* is handed
in; the *cloud* says which vectors the value is of, and which of their neighbours are suspect; the
*quantity* is the metric with its settings; the *estimate* is the value with its interval, or NaN
with the reason.
"""

import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
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
from repdyn.measurement.estimates import estimates, mean_and_spread
from repdyn.metrics import LayerView, MetricRequest
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
    requests: Sequence[MetricRequest],
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
    for number, request in enumerate(requests):
        if request.metric.is_defined_at(view.layer.index, is_last=view.layer.is_last):
            of_request = part_of(progress, number, len(requests))
            of_request(0.0)
            rows += _rows_of_request(clouds, request, checkpoint, on_error, of_request)
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
        # of several batches the worst: the one with the fewest windows, and with the most vectors
        # of one window, tells how dependent the vectors may be
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
            # with the windows as groups also where the design does not exclude a vector's own
            # window: the row tells how many neighbours come from there
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


@dataclass(frozen=True, kw_only=True)
class _Computed:
    """The inputs and results of a kernel on the batches of a layer."""

    batches: Sequence[tuple]
    """The inputs of each batch."""
    values: Sequence[np.ndarray | float]
    """The value of each batch, of attention heads an array; of those up to an undefined one."""
    reason: Reason | None
    """Why there is no value; None if there is one."""
    seconds: float = 0.0


def _rows_of_request(
    clouds: LayerClouds,
    request: MetricRequest,
    checkpoint: Checkpoint,
    on_error: OnError,
    progress: Callable[[float], None],
) -> list[Row]:
    """Return the row of a metric on a subset, and one for each attention head where it has such
    values: the kernel's values, the cloud that they are of, and the estimate from them.
    """
    start = time.perf_counter()
    computed = _computed(clouds.view, request, RECORDED[on_error], progress)
    computed = replace(computed, seconds=time.perf_counter() - start)
    cloud, reason = _cloud_of(clouds, request, computed, RECORDED[on_error])
    quantity = Quantity(
        metric=request.name,
        settings=request.settings_json,
        compared_to=clouds.view.compared_to if request.compares else None,
        on_distinct=request.collapses_duplicates,
    )
    when = {"seconds": computed.seconds, **provenance()}
    if reason is not None:
        # as many as would have been measured: a step without a value keeps the number of batches
        nothing = np.full(_n_batches(clouds.view, request), math.nan)
        estimate = Estimate(
            **mean_and_spread(nothing, False, request.metric.range),
            reason=reason.text,
            reason_code=reason.code,
            **when,
        )
        return [Row(checkpoint=checkpoint, cloud=cloud, quantity=quantity, estimate=estimate)]
    by_head = estimates(clouds.view, request, computed.batches, computed.values)
    return [
        Row(
            checkpoint=checkpoint,
            cloud=cloud,
            quantity=replace(quantity, head=head),
            estimate=Estimate(**columns, **when),
        )
        for head, columns in by_head.items()
    ]


def _n_batches(view: LayerView, request: MetricRequest) -> int:
    """Return how many batches are measured: the first alone is kept for the next checkpoint."""
    return 1 if request.compares else view.probe.n_batches


def _computed(
    view: LayerView,
    request: MetricRequest,
    recorded: type[Exception],
    progress: Callable[[float], None],
) -> _Computed:
    """Return the kernel's inputs and value for each batch, and the reason if there is no value.

    One undefined batch leaves the layer without a value, since the batches are parts of one sample.
    Those of attention weights are sequences, some of which may have nothing to compare: they are
    left out.
    """
    metric = request.metric
    values: list[np.ndarray | float] = []
    undefined = None
    # a training may have allowed TF32, with 10 bits of each factor
    with full_precision(view.layer.states.device):
        try:
            batches = metric.selector(view, request.subset)
        except recorded as error:
            return _Computed(batches=[], values=[], reason=reason_of(error, 0))
        for number, inputs in enumerate(batches):
            # not among what is tried: it may break the measurement off
            progress(number / len(batches))
            try:
                # a kernel of another package may write into its inputs
                value = request.compute(*(deepcopy(inputs) if metric.is_own else inputs))
                values.append(value.cpu().numpy() if metric.per_head else float(value))
            except UndefinedError as error:
                # the first batch's reason stands for all
                undefined = undefined or reason_of(error, number)
                if not metric.is_of_attention_weights:
                    break
            except recorded as error:
                return _Computed(batches=batches, values=values, reason=reason_of(error))
    if undefined is None and any(np.isnan(value).any() for value in values):
        # a kernel of another package, whose author did not raise UndefinedError
        undefined = Reason("the kernel returned NaN without a reason", ReasonCode.NO_REASON)
    elif metric.is_of_attention_weights and values:
        undefined = None
    return _Computed(batches=batches, values=values, reason=undefined)


def _cloud_of(
    clouds: LayerClouds,
    request: MetricRequest,
    computed: _Computed,
    recorded: type[Exception],
) -> tuple[PointCloud, Reason | None]:
    """Return the cloud that the values are of, as rows describe it, and why there is no value: the
    kernel's reason, or too few distinct vectors.
    """
    view = clouds.view
    metric = request.metric
    reason = computed.reason
    try:
        n_vectors, n_unique = _sizes(view, request, computed)
    except recorded as error:
        # the vectors themselves are missing, such as those after a final norm that was not found:
        # the row still says how many there would have been
        reason = reason or reason_of(error, 0)
        n_vectors = min(map(len, view.sample(request.subset)))
        n_unique = 0
    neighbours: dict[str, Any] = {}
    if metric.neighbours and n_unique:
        neighbours = clouds.neighbours(request.subset, _n_batches(view, request))
    too_few = too_few_distinct(
        request.collapses_duplicates, n_unique, n_vectors, neighbours.get("near_duplicate_share")
    )
    if reason is None and too_few is not None:
        reason = Reason(too_few, ReasonCode.FEW_DISTINCT)
    cloud = replace(
        clouds.described(request.subset, whole_windows="whole_windows" in metric.captures),
        n_vectors=n_vectors,
        n_unique=n_unique,
        own_window_excluded=view.probe.design.exclude_own_window if metric.neighbours else None,
        **neighbours,
    )
    return cloud, reason


def _sizes(view: LayerView, request: MetricRequest, computed: _Computed) -> tuple[int, int]:
    """Return vectors and distinct vectors of the smallest batch; of attention weights, positions
    are counted.
    """
    batches = computed.batches
    if batches and request.metric.is_of_attention_weights:
        n_positions = min(weights.shape[-1] for weights, *_ in batches)
        return n_positions, n_positions
    clouds = distinct = _clouds_of(batches, request) or view.clouds(request.subset)
    # of one cloud, the points that are left without near duplicates are counted; which of two
    # clouds' points are left in both is known to the kernel alone
    has_value_of_one_cloud = computed.reason is None and all(len(inputs) == 1 for inputs in batches)
    if request.collapses_duplicates and has_value_of_one_cloud:
        distinct = [resolved(cloud)[0] for cloud in clouds]
    return min(cloud.n_vectors for cloud in clouds), min(cloud.n_unique for cloud in distinct)


def _clouds_of(batches: Sequence[tuple], request: MetricRequest) -> list[Cloud]:
    """Return the vectors that a kernel takes first in each batch; none where it takes no vectors of
    the layer, so that these are counted.
    """
    if request.metric.is_of_weights or request.metric.per_head:
        return []
    first = [inputs[0].x if isinstance(inputs[0], Sequences) else inputs[0] for inputs in batches]
    return [x if isinstance(x, Cloud) else Cloud(x) for x in first if isinstance(x, Cloud | Tensor)]


def provenance_of_process() -> dict[str, str]:
    """Return what this process chose by trying, for a logger's hyperparameters: no value depends on
    it, so that no row has it.
    """
    products = chosen_products()
    return {"neighbour_product": products} if products else {}
