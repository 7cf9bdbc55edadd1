"""The registry of metrics: everything that can be measured, each by its definition.

:class:`Metric` defines a quantity, :class:`MetricRequest` is one with settings on a subset, and
:class:`repdyn.views.display.Display` says how it is drawn. To add a metric to the package, write
its kernel in ``kernels/``, its definition in one of the modules here, and its display in
``views/display.py``. A metric of another package needs a definition alone:
:func:`register_metric`.

metric                the definition: what it computes, from what, and where
shape, change, tokens the definitions of this package
registry              definitions by name; ``resolve``: from the names of a user to requests
request, names        a metric with settings on a subset, and how its name is written
layer_view            what a metric can access at one layer, made once for all
inputs                what a kernel takes of it, batch by batch
logged                names of values in loggers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repdyn.metrics.metric import Metric as Metric
from repdyn.metrics.registry import DEFAULT_METRICS as DEFAULT_METRICS
from repdyn.metrics.registry import METRICS as METRICS
from repdyn.metrics.registry import MetricLike as MetricLike
from repdyn.metrics.registry import as_tuple as as_tuple
from repdyn.metrics.registry import metric_info as metric_info
from repdyn.metrics.registry import register_metric as register_metric
from repdyn.metrics.registry import resolve as resolve
from repdyn.metrics.request import MetricRequest as MetricRequest
from repdyn.utils.extras import lazy_names

if TYPE_CHECKING:
    from repdyn.metrics.layer_view import BlockWeights as BlockWeights
    from repdyn.metrics.layer_view import CheckpointContext as CheckpointContext
    from repdyn.metrics.layer_view import LayerView as LayerView

# with torch, which lists of metrics do without
__getattr__ = lazy_names(
    __name__,
    dict.fromkeys(("BlockWeights", "CheckpointContext", "LayerView"), "repdyn.metrics.layer_view"),
)
