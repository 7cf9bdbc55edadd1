"""The conditions that a rule can name: each finds the layers where it holds, from earlier observations alone.

A condition holds at the step at which something happens, not as long as it lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from repdyn.alerts.series import SPREADS, Observation, PastObservations

JUMP_AT_LEAST = 0.2
"""Mean relative change over layers below which no profile jumps."""
HISTORY_AT_LEAST = 4
"""Earlier changes without which a profile has no history."""


@dataclass(frozen=True)
class Condition:
    """A condition on an observation."""

    holds: Callable[[Observation, PastObservations, float], np.ndarray]
    """Maps observation, past and bound to shape (n_layers), True where it holds; of one element for a whole profile."""
    words: str
    """What happened, in words; {bound} stands for the bound."""
    bound: tuple[float, float] | None
    """Exclusive limits of the bound; None for a condition without one."""
    whole: bool = False
    """Whether it is about the whole profile."""


def _undefined(now: Observation, past: PastObservations, _: float) -> np.ndarray:
    """Find values that are missing where the observation before had one, or at the first because of NaN or inf.

    Metrics that compare checkpoints are left out: they have no value if the earlier checkpoint is not available.
    """
    missing = np.isnan(now.values)
    if past.compares or now.compares:
        return np.zeros_like(missing)
    return missing & ([_says_not_finite(now, place) for place in range(len(missing))] if past.is_empty else ~past.lost)


def _says_not_finite(now: Observation, place: int) -> bool:
    reason = now.reasons[place] or ("the loss is NaN" if now.layers == (None,) else "")
    return any(word in reason.split() for word in ("NaN", "inf"))


def _falls(now: Observation, past: PastObservations, bound: float) -> np.ndarray:
    return _apart(now, past) & (past.values > 0) & (now.values <= bound * past.values)


def _rises(now: Observation, past: PastObservations, bound: float) -> np.ndarray:
    return _apart(now, past) & (past.values > 0) & (now.values >= bound * past.values)


def _above(now: Observation, past: PastObservations, bound: float) -> np.ndarray:
    return (now.values > bound) & ~(past.values > bound)


def _below(now: Observation, past: PastObservations, bound: float) -> np.ndarray:
    return (now.values < bound) & ~(past.values < bound)


def _jumps(now: Observation, past: PastObservations, bound: float) -> np.ndarray:
    """Find whether the profile changes by more than ``bound`` times the median of its last changes.

    Steps without a change are no history: the first ones, at a low learning rate, do not show what is usual.
    """
    usual = float(np.median(past.changes)) if len(past.changes) >= HISTORY_AT_LEAST else math.inf
    return np.array([past.change(now) > max(JUMP_AT_LEAST, bound * usual)])


def _apart(now: Observation, past: PastObservations) -> np.ndarray:
    return past.difference(now) > SPREADS * past.noise(now)


CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "undefined": Condition(_undefined, "has no value", None),
        "falls": Condition(_falls, "fell to {bound:g} of what it was or less", (0.0, 1.0)),
        "rises": Condition(_rises, "rose to {bound:g} times what it was or more", (1.0, math.inf)),
        "above": Condition(_above, "rose above {bound:g}", (-math.inf, math.inf)),
        "below": Condition(_below, "fell below {bound:g}", (-math.inf, math.inf)),
        "jumps": Condition(
            _jumps, "jumped: a change {bound:g} times the usual one or more", (1.0, math.inf), whole=True
        ),
    }
)
"""By the name that a rule gives."""
