"""The table of metrics: everything that can be measured, each with what it needs and where it comes from.

To add a metric, write its kernel in ``kernels/`` and give it a line in one of the modules here.
"""

from repdyn.metrics.layer_view import CheckpointContext, LayerView, clouds
from repdyn.metrics.metric import Metric
from repdyn.metrics.table import DEFAULT_METRICS, METRICS, MetricLike, as_tuple, resolve

__all__ = [
    "DEFAULT_METRICS",
    "METRICS",
    "CheckpointContext",
    "LayerView",
    "Metric",
    "MetricLike",
    "as_tuple",
    "clouds",
    "resolve",
]
