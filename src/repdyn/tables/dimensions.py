"""Estimates of an intrinsic dimension that describe none."""

from __future__ import annotations

from repdyn.metrics import metric_info

BELOW_ONE = (
    "the vectors lie in tight pairs or clusters, as in a small or barely trained model, and the estimate does not "
    "describe a dimension"
)


def is_dimension(metric: str) -> bool:
    """Return whether a metric estimates a dimension.

    >>> is_dimension("two_nn[discard=0.8]"), is_dimension("anisotropy")
    (True, False)
    """
    return metric_info(metric).unit == "dimension"


def is_below_one(metric: str, value: float) -> bool:
    """Return whether a value is an estimate of a dimension below 1.

    >>> is_below_one("two_nn", 0.8), is_below_one("two_nn[discard=0.8]", 1.2), is_below_one("anisotropy", 0.8)
    (True, False, False)
    """
    return value < 1 and is_dimension(metric)
