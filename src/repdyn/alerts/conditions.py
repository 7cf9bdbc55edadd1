"""The conditions of rules, which depend on the current and earlier observations only.

A condition holds at the step of a change, not for as long as the new state lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from repdyn.alerts.series import MIN_STDS, Observation, PastObservations

MIN_JUMP = 0.2
"""Smallest jump of a profile, as mean relative change over layers."""
MIN_HISTORY = 4
"""Least number of earlier changes with which a change of a profile is compared."""


@dataclass(frozen=True)
class Condition:
    """A condition on the observation of a series."""

    holds: Callable[[Observation, PastObservations, float], np.ndarray]
    """Maps observation, past and bound to bools of shape (n_layers,), or (1,) for a whole profile."""
    event: str
    """Description of the change, formatted with {bound}."""
    bound: tuple[float, float] | None
    """Exclusive limits of the bound; None for a condition without one."""
    whole_profile: bool = False
    """Whether it concerns the whole profile rather than single layers."""


def _undefined(now: Observation, past: PastObservations, _: float) -> np.ndarray:
    """Return which values are missing although the previous observation had them, or at first because of NaN or inf.

    Metrics that compare checkpoints are ignored: they have no value if the earlier checkpoint is not available.
    """
    missing = np.isnan(now.values)
    if past.compares_checkpoints or now.compares_checkpoints:
        return np.zeros_like(missing)
    return missing & ([_is_not_finite(now, i) for i in range(len(missing))] if past.is_empty else ~past.is_missing)


def _is_not_finite(now: Observation, index: int) -> bool:
    reason = now.reasons[index] or ("the loss is NaN" if now.layers == (None,) else "")
    return any(word in reason.split() for word in ("NaN", "inf"))


def _falls(now: Observation, past: PastObservations, bound: float) -> np.ndarray:
    return _differs(now, past) & (past.values > 0) & (now.values <= bound * past.values)


def _rises(now: Observation, past: PastObservations, bound: float) -> np.ndarray:
    return _differs(now, past) & (past.values > 0) & (now.values >= bound * past.values)


def _above(now: Observation, past: PastObservations, bound: float) -> np.ndarray:
    return (now.values > bound) & ~(past.values > bound)


def _below(now: Observation, past: PastObservations, bound: float) -> np.ndarray:
    return (now.values < bound) & ~(past.values < bound)


def _jumps(now: Observation, past: PastObservations, bound: float) -> np.ndarray:
    """Return whether the profile changes by more than ``bound`` times the median of its last changes.

    Steps without a change are ignored: the first ones, at a low learning rate, are not representative.
    """
    median = float(np.median(past.changes)) if len(past.changes) >= MIN_HISTORY else math.inf
    return np.array([past.change(now) > max(MIN_JUMP, bound * median)])


def _differs(now: Observation, past: PastObservations) -> np.ndarray:
    return past.difference(now) > MIN_STDS * past.noise(now)


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
