"""A forecast of what measurements will cost a training, from the steps and the measurements so far."""

from __future__ import annotations

import time
from collections import deque
from statistics import median

from repdyn.tracking.schedule import Schedule

FORECAST_STEPS = 5
"""Timed training steps from which a forecast is made: their median is not misled by one or two slow ones."""
KEPT_STEPS = 101
"""Training steps of which the time is kept."""
CORRECTED_FROM = 1.5
"""Factor by which the cost of a measurement differs from what was said before it is said again."""


class Forecast:
    """A forecast of what measurements cost, in training steps and as a share of the training.

    A step's time is the median of the intervals between steps, without what tracking took in them. What precedes the
    first step, such as the start of the workers that load data, is in no interval.
    """

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=KEPT_STEPS)
        self._before: tuple[int, float, float] | None = None
        """The last step, when it ended, and what tracking had taken until then."""
        self._measurement: float | None = None
        self._is_stale = True
        """Whether what was said last, if anything, has not been compared with the last measurement."""
        self._stated: float | None = None

    def add_measurement(self, seconds: float) -> None:
        """Note how long a completed measurement took."""
        self._measurement, self._is_stale = seconds, True

    def add_step(self, step: int, tracking_seconds: float) -> None:
        """Note that a training step has ended.

        Args:
            step: optimizer steps taken; the same one may come several times.
            tracking_seconds: what tracking has taken so far.
        """
        now = time.perf_counter()
        if self._before is not None:
            last, then, before = self._before
            if step == last:
                return
            if step > last:
                self._steps.append((now - then - (tracking_seconds - before)) / (step - last))
        self._before = step, now, tracking_seconds

    def new_text(self, schedule: Schedule, n_steps: int | None, budget: float | None) -> str | None:
        """Return the forecast once there is one, and again where a measurement has changed it much; else None.

        Args:
            schedule: of the measurements.
            n_steps: of the whole training, if known.
            budget: the largest share that tracking may take, if there is a limit.
        """
        if not self._is_stale or self._measurement is None or len(self._steps) < FORECAST_STEPS:
            return None
        self._is_stale = False
        step_seconds = median(self._steps)
        if step_seconds <= 0:
            return None
        in_steps = self._measurement / step_seconds
        takes = "takes" if self._stated is None else "now takes"
        if self._stated is not None and 1 / CORRECTED_FROM < in_steps / self._stated < CORRECTED_FROM:
            return None
        self._stated = in_steps
        text = f"a measurement {takes} {self._measurement:.3g} s, as long as {in_steps:,.0f} training steps"
        share = _share(schedule, n_steps, in_steps)
        if share is None:
            return text
        limit = f", of which max_overhead={budget:g} allows a part" if budget and share > budget else ""
        return f"{text}; measured at {schedule}, about {share:.0%} of the training{limit}"


def _share(schedule: Schedule, n_steps: int | None, in_steps: float) -> float | None:
    """Return the share of the time that measurements of the length of ``in_steps`` steps take; None if unknown."""
    if n_steps is None and schedule.every is None:
        return None
    horizon = n_steps if n_steps is not None else schedule.every or 0
    n_due = schedule.count(horizon) if n_steps is not None else 1
    measuring = in_steps * n_due
    return measuring / (measuring + horizon)
