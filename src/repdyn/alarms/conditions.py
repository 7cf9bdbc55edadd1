"""The conditions that a rule can name: each finds the cells of a course where it holds, by what came before alone.

A condition holds at a step by the values up to that step, so that a run and its store raise the same alarms. It holds
where something happens, not as long as it lasts.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from repdyn.alarms.courses import Course

SPREADS = 2.0
"""Standard deviations of their difference by which two values must lie apart to count as different."""
JUMP_AT_LEAST = 0.2
"""Mean relative change over layers below which no profile jumps."""
HISTORY = 8
"""Earlier changes of a profile that a change is held against, at most."""
HISTORY_AT_LEAST = 4
"""And at least."""


@dataclass(frozen=True)
class Condition:
    """What can be asked of a course."""

    holds: Callable[[Course, float], np.ndarray]
    """Course and bound to (n_layers, n_steps), True where it happens; (1, n_steps) of a whole profile."""
    words: str
    """What happened, for people; {bound} stands for the bound."""
    bound: tuple[float, float] | None
    """Between which the bound must lie, these not included; None where there is none."""


def _undefined(course: Course, _: float) -> np.ndarray:
    """No value where the measurement before had one, or where what was measured is not finite from the first on."""
    lost = np.isnan(course.values) & ~np.isnan(np.roll(course.values, 1, axis=1))
    lost[:, 0] = np.isnan(course.values[:, 0]) & [_says_not_finite(course, layer) for layer in range(len(lost))]
    return lost


def _says_not_finite(course: Course, layer: int) -> bool:
    reason = course.reasons.get((layer, 0), "the loss is NaN" if course.layers == (None,) else "")
    return any(word in reason.split() for word in ("NaN", "inf"))


def _falls(course: Course, bound: float) -> np.ndarray:
    return _apart(course) & (course.before > 0) & (course.values <= bound * course.before)


def _rises(course: Course, bound: float) -> np.ndarray:
    return _apart(course) & (course.before > 0) & (course.values >= bound * course.before)


def _above(course: Course, bound: float) -> np.ndarray:
    return (course.values > bound) & ~(course.before > bound)


def _below(course: Course, bound: float) -> np.ndarray:
    return (course.values < bound) & ~(course.before < bound)


def _jumps(course: Course, bound: float) -> np.ndarray:
    """The profile changes by more than ``bound`` times the median of its last changes.

    Where it did not change is no history: the first steps of a training, taken at a low learning rate, say nothing of
    what is usual.
    """
    change = profile_changes(course)
    found = np.zeros((1, len(change)), bool)
    for place in range(len(change)):
        history = change[:place][change[:place] > 0][-HISTORY:]
        usual = float(np.median(history)) if len(history) >= HISTORY_AT_LEAST else math.inf
        found[0, place] = change[place] > max(JUMP_AT_LEAST, bound * usual)
    return found


def profile_changes(course: Course) -> np.ndarray:
    """(n_steps,) mean over layers of |value - before| / max(|value|, |before|), in [0, 2]; NaN at the first step.

    Changes that do not exceed their noise count as none.
    """
    difference = np.abs(course.values - course.before)
    larger = np.fmax(np.abs(course.values), np.abs(course.before))
    relative = np.divide(difference, larger, out=np.zeros_like(difference), where=larger > 0)
    relative = np.where(difference > SPREADS * course.noise, relative, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step without any value has no mean
        return np.nanmean(np.where(np.isnan(difference), np.nan, relative), axis=0)


def _apart(course: Course) -> np.ndarray:
    return np.abs(course.values - course.before) > SPREADS * course.noise


CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "undefined": Condition(_undefined, "has no value any more", None),
        "falls": Condition(_falls, "fell to {bound:g} of what it was or less", (0.0, 1.0)),
        "rises": Condition(_rises, "rose to {bound:g} times what it was or more", (1.0, math.inf)),
        "above": Condition(_above, "rose above {bound:g}", (-math.inf, math.inf)),
        "below": Condition(_below, "fell below {bound:g}", (-math.inf, math.inf)),
        "jumps": Condition(_jumps, "jumped: a change {bound:g} times the usual one or more", (1.0, math.inf)),
    }
)
"""By the word under which a rule names it."""
