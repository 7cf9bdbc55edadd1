"""One layer, measured: the rows of every metric asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from torch import Tensor

from repdyn.kernels import Cloud, Undefined, exact_arithmetic
from repdyn.metrics import LayerView, Metric
from repdyn.records import Checkpoint, Row, provenance

OnError: TypeAlias = Literal["raise", "record"]


def rows_of_layer(
    view: LayerView, pairs: Sequence[tuple[Metric, str]], checkpoint: Checkpoint, layers: str, on_error: OnError
) -> list[Row]:
    """The rows of one layer: one for each metric that it has, and one for each head where that has a value for each.

    Args:
        view: the layer.
        pairs: metrics and the token subsets they are measured on.
        checkpoint: names what is measured.
        layers: the choice of layers as rows record it.
        on_error: as for :func:`repdyn.measure`.
    """
    rows = []
    for metric, subset in pairs:
        if metric.is_of(view):
            rows += _measured(view, metric, subset, checkpoint, layers, on_error)
    view.keep_for_later()
    return rows


def _measured(
    view: LayerView, metric: Metric, subset: str, checkpoint: Checkpoint, layers: str, on_error: OnError
) -> list[Row]:
    start = time.perf_counter()
    batches, values, reason = _values(view, metric, subset, on_error)
    seconds = time.perf_counter() - start
    n_vectors, n_unique, reason = _sizes(view, metric, subset, batches, reason, on_error)
    of_heads = np.array(values if reason is None else [math.nan] * view.probe.n_batches, ndmin=2)
    of_heads = of_heads if metric.per_head and reason is None else of_heads.reshape(-1, 1)
    row = Row(
        **asdict(checkpoint),
        layer=view.layer.index,
        depth=view.layer.depth,
        module=view.layer.module,
        layers=layers,
        stack=view.layer.stack,
        head=None,
        metric=metric.name,
        subset=subset,
        settings=metric.settings_json,
        compared_to=view.compared_to if "earlier" in metric.besides else None,
        **_mean_and_spread(of_heads.mean(axis=1)),
        n_vectors=n_vectors,
        n_unique=n_unique,
        on_distinct=metric.on_distinct,
        reason=reason,
        dim=view.layer.states.shape[1],
        dtype=str(view.layer.states.dtype).removeprefix("torch."),
        probe=view.probe.hash,
        seconds=seconds,
        **provenance(),
    )
    heads = of_heads.T if metric.per_head and reason is None else []
    return [row, *(replace(row, head=head, **_mean_and_spread(own)) for head, own in enumerate(heads))]


def _values(
    view: LayerView, metric: Metric, subset: str, on_error: OnError
) -> tuple[Sequence[tuple], list[np.ndarray | float], str | None]:
    """What the kernel is given for each batch, what it makes of them, and why it makes nothing of them."""
    batches: Sequence[tuple] = []
    values: list[np.ndarray | float] = []
    undefined = None
    try:
        with exact_arithmetic(view.layer.states.device):
            batches = metric.needs(view, subset)
            for number, inputs in enumerate(batches):
                try:
                    value = metric.kernel(*inputs, **metric.settings)
                    values.append(value.cpu().numpy() if metric.per_head else float(value))
                except Undefined as error:
                    undefined = undefined or f"batch {number}: {error}"
                    if not metric.per_head:
                        break
    except Undefined as error:
        undefined = f"batch 0: {error}"
    except Exception as error:
        if on_error == "raise":
            raise
        return batches, values, f"{type(error).__name__}: {error}"
    # the batches of heads are sequences, of which some may have nothing to compare; all others are parts of one sample
    return batches, values, None if values and metric.per_head else undefined


def _sizes(
    view: LayerView, metric: Metric, subset: str, batches: Sequence[tuple], reason: str | None, on_error: OnError
) -> tuple[int, int, str | None]:
    """Vectors and distinct vectors in the batch that has fewest, and why the value is undefined.

    0 where the distinct ones cannot be counted. Attention weights are of positions, which are all counted.
    """
    given = [inputs[0] for inputs in batches]
    try:
        if given and metric.per_head:
            positions = min(weights.shape[-1] for weights in given)
            return positions, positions, reason
        points = [
            each if isinstance(each, Cloud) else Cloud(each) for each in given if isinstance(each, Cloud | Tensor)
        ]
        clouds = points or view.clouds(subset)
        return min(cloud.n_vectors for cloud in clouds), min(cloud.n_unique for cloud in clouds), reason
    except Exception as error:
        if on_error == "raise":
            raise
        return view.probe.sample(subset).shape[1], 0, reason or f"{type(error).__name__}: {error}"


def _mean_and_spread(values: np.ndarray) -> dict[str, Any]:
    """Of the values of all batches, as the columns say it."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return {"value": float(np.mean(values)), "std": spread, "n_batches": len(values)}
