"""The registry of metrics: everything that can be measured, each with all that is known of it.

To add a metric to the package, write its kernel in ``kernels/`` and its record in one of the modules here. A metric of
another package needs a record alone: :func:`register_metric`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repdyn.metrics.metric import FAMILIES, OWN_FAMILY, Metric
from repdyn.metrics.registry import (
    DEFAULT_METRICS,
    METRICS,
    MetricLike,
    as_tuple,
    metric_info,
    register_metric,
    resolve,
)
from repdyn.utils.extras import lazy_names

if TYPE_CHECKING:
    from repdyn.metrics.layer_view import BlockWeights, CheckpointContext, LayerView, clouds

__all__ = [
    "DEFAULT_METRICS",
    "FAMILIES",
    "METRICS",
    "OWN_FAMILY",
    "BlockWeights",
    "CheckpointContext",
    "LayerView",
    "Metric",
    "MetricLike",
    "as_tuple",
    "clouds",
    "metric_info",
    "register_metric",
    "resolve",
]

# with torch, which lists of metrics do without
__getattr__ = lazy_names(
    __name__, dict.fromkeys(("BlockWeights", "CheckpointContext", "LayerView", "clouds"), "repdyn.metrics.layer_view")
)
