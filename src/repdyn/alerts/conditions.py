"""The conditions of rules, which depend on the current and earlier observations only.

A condition holds at the step of a change, not for as long as the new state lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from repdyn.alerts.series import MIN_STDS, Course, Past

MIN_JUMP = 0.2
"""Smallest jump of a profile, as mean relative change over layers."""
MIN_HISTORY = 4
"""Least number of earlier changes with which a change of a profile or a scalar is compared."""
UNUSUAL = 2.0
"""How many times the largest of its last changes a scalar must change, on a logarithmic scale, to be said to fall or
rise."""


@dataclass(frozen=True)
class Condition:
    """A condition on the values of a metric at a step."""

    holds: Callable[[Course, Past, float], np.ndarray]
    """Maps values, past and bound to bools of shape (n_steps, n_layers), or (n_steps, 1) for a whole profile."""
    event: str
    """Description of the change, formatted with {bound}."""
    bound: tuple[float, float] | None
    """Exclusive limits of the bound; None for a condition without one."""
    whole_profile: bool = False
    """Whether it concerns the whole profile rather than single layers."""


def _undefined(now: Course, past: Past, _: float) -> np.ndarray:
    """Return which values are missing although the previous observation had them, or at first because of NaN or inf.

    Metrics that compare checkpoints are ignored: they have no value if the earlier checkpoint is not available.
    """
    missing = np.isnan(now.values)
    found = missing & ~past.is_missing
    for place in np.flatnonzero(past.is_empty):
        found[place] = missing[place] & [_is_not_finite(now, reason) for reason in now.reasons[place]]
    found[past.compares_checkpoints | now.compares_checkpoints] = False
    return found


def _is_not_finite(now: Course, reason: str | None) -> bool:
    text = reason or ("the loss is NaN" if now.layers == (None,) else "")
    return any(word in text.split() for word in ("NaN", "inf"))


def _falls(now: Course, past: Past, bound: float) -> np.ndarray:
    return _differs(now, past) & _is_unusual(now, past) & (past.values > 0) & (now.values <= bound * past.values)


def _rises(now: Course, past: Past, bound: float) -> np.ndarray:
    return _differs(now, past) & _is_unusual(now, past) & (past.values > 0) & (now.values >= bound * past.values)


def _above(now: Course, past: Past, bound: float) -> np.ndarray:
    return (now.values > bound) & ~(past.values > bound)


def _below(now: Course, past: Past, bound: float) -> np.ndarray:
    return (now.values < bound) & ~(past.values < bound)


def _jumps(now: Course, past: Past, bound: float) -> np.ndarray:
    """Return whether the profile changes by more than ``bound`` times the median of its last changes.

    Steps without a change are ignored: the first ones, at a low learning rate, are not representative.
    """
    medians = [float(np.median(before)) if len(before) >= MIN_HISTORY else math.inf for before in past.changes]
    with np.errstate(invalid="ignore"):
        return (past.change(now) > np.maximum(MIN_JUMP, bound * np.array(medians)))[:, None]


def _differs(now: Course, past: Past) -> np.ndarray:
    return past.difference(now) > MIN_STDS * past.noise(now)


def _is_unusual(now: Course, past: Past) -> np.ndarray:
    """Return whether the changes of a scalar exceed its usual ones; True for layers, whose noise is known.

    The loss of a batch fluctuates: without this a sound training with small batches has an alert every few steps.
    """
    if now.layers != (None,):
        return np.full(now.values.shape, True)
    # a relative change c = 1 - 1 / ratio is that of a ratio whose logarithm is -log(1 - c)
    # the first change has nothing to be compared with
    largest = [max(before, default=math.inf) for before in past.changes]
    with np.errstate(divide="ignore", invalid="ignore"):
        usual = -np.log1p(-np.minimum(largest, 1.0))
        change = np.abs(np.log(now.values / past.values))
    return (change > UNUSUAL * usual[:, None]) | ~np.isfinite(change)


CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "undefined": Condition(_undefined, "has no value", None),
        "falls": Condition(_falls, "fell to {bound:g} of what it was or less", (0.0, 1.0)),
        "rises": Condition(_rises, "rose to {bound:g} times what it was or more", (1.0, math.inf)),
        "above": Condition(_above, "rose above {bound:g}", (-math.inf, math.inf)),
        "below": Condition(_below, "fell below {bound:g}", (-math.inf, math.inf)),
        "jumps": Condition(
            _jumps, "jumped: a change {bound:g} times the usual one or more", (1.0, math.inf), whole_profile=True
        ),
    }
)
"""By the name used in rules."""
