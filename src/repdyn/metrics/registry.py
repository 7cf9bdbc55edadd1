"""The metrics by name: those of this package, of installed packages, and those registered at run time."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from threading import RLock
from typing import TYPE_CHECKING

from repdyn.metrics import change, sequences, shape, sinks, tokens, topics
from repdyn.metrics.metric import Metric
from repdyn.metrics.names import base_name

if TYPE_CHECKING:
    from torch import Tensor

ENTRY_POINTS = "repdyn.metrics"
"""Entry points of this group name a Metric, or a list of them, in an installed package."""
ALL = "all"
"""Stands for every metric that the probe allows."""
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


class Registry(Mapping[str, Metric]):
    """Metrics by name, in the order in which they are listed; those of installed packages are loaded on first use."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._has_entry_points = False
        self._lock = RLock()

    def __getitem__(self, name: str) -> Metric:
        return self._loaded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._loaded())

    def add(self, metric: Metric) -> None:
        """Add a metric under its name; as :func:`register_metric`."""
        if not isinstance(metric, Metric):
            raise ValueError(f"expected a repdyn.Metric, got {metric!r}")
        if not _NAME.fullmatch(metric.name) or metric.name == ALL:
            raise ValueError(
                f'expected a name of letters, digits, "_", "-" and ".", other than {ALL!r}, got {metric.name!r}'
            )
        known = self._metrics.get(metric.name)
        if known is not None and known != metric:
            meaning = f" ({known.meaning})" if known.meaning else ""
            raise ValueError(
                f"expected a new name, got {metric.name!r}, which is another metric{meaning}; choose another name"
            )
        self._metrics[metric.name] = metric

    def _loaded(self) -> dict[str, Metric]:
        if not self._has_entry_points:
            with self._lock:
                # set first: a package that looks into the registry while it is imported must not load it again
                pending, self._has_entry_points = not self._has_entry_points, True
                for entry_point in entry_points(group=ENTRY_POINTS) if pending else ():
                    self._load(entry_point)
        return self._metrics

    def _load(self, entry_point: EntryPoint) -> None:
        try:
            found = entry_point.load()
            for metric in [found] if isinstance(found, Metric) else found:
                self.add(metric)
        except Exception as error:
            package = entry_point.dist.name if entry_point.dist else "an unknown package"
            warnings.warn(
                f"the metrics of {package} are not available: its entry point {entry_point.name} = {entry_point.value} "
                f"raised {type(error).__name__}: {error}; update or uninstall {package}",
                RuntimeWarning,
                stacklevel=2,
            )


METRICS = Registry(
    [
        *shape.CLOUD,
        *shape.SPECTRUM,
        *sequences.SPECTRUM,
        *shape.SIMILARITY,
        *sequences.SIMILARITY,
        *sinks.METRICS,
        *change.METRICS,
        *tokens.METRICS,
        *topics.METRICS,
    ]
)


def register_metric(metric: Metric) -> None:
    """Make a metric known by its name, to everything that measures, lists or draws metrics in this process.

    An installed package makes its metrics known everywhere by an entry point of the group "repdyn.metrics".

    Raises:
        ValueError: not a Metric, a name with other characters than letters, digits, "_", "-" and ".", or a name that
            another metric has.
    """
    METRICS.add(metric)


def metric_info(name: str) -> Metric:
    """Return the record of the metric that a stored name means, with whatever settings.

    A name that the registry does not know, such as that of a package that is not installed here, has a record without
    any knowledge: it is shown under its name.

    >>> metric_info("two_nn[discard=0.8]").unit, metric_info("my_metric").title
    ('dimension', '')
    """
    base = base_name(name)
    return METRICS.get(base) or Metric(base, _unavailable)


def _unavailable(*inputs: object, **settings: object) -> Tensor:
    raise RuntimeError("expected the kernel of a registered metric, got a stored name alone; install its package")
