"""What tracking costs a training: said once, and bounded."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from repdyn.tracking.schedule import Schedule
from repdyn.utils.distributed import ALONE, Ranks
from repdyn.utils.printing import print_above_bars, warn

log = logging.getLogger(__name__)

FORECAST_STEPS = 5
"""Timed training steps until a forecast: their median is not misled by one or two slow ones."""
NOTABLE_SHARE = 0.05
"""Share of the training's time from which on a bound is suggested."""
KEPT_STEPS = 101
"""Training steps of which the time is kept."""


@dataclass
class Cost:
    """Counts the time that the tracking of one run takes, and says whether there is time for more.

    It also forecasts once what tracking will cost. For that, the time of a training step is the
    median of the intervals between steps, without the time that tracking took in them. What
    precedes the first step, such as the start of the workers that load data, is in no interval.
    """

    budget: float | None
    """Largest share of the wall-clock time that tracking may take; None for no limit."""
    schedule: Schedule
    n_steps: int | None = None
    """Optimizer steps of the whole training, if known."""
    ranks: Ranks = ALONE
    seconds: float = 0.0
    """Wall-clock time of this process in tracking: trial, measurements, storing, logging and views.
    """
    n_left_out: int = 0
    """The number of scheduled measurements that the budget had no time for."""
    _start: float = field(default_factory=lambda: time.perf_counter())
    _depth: int = 0
    """How many blocks of :meth:`counted` are open."""
    _is_attempt: bool = False
    """True if the open block has run the model, with success or without; a step whose rows are in
    the store already is no attempt.
    """
    _is_measurement: bool = False
    """True if the open block has measured all that was requested."""
    _last_attempt: float | None = None
    """The seconds of the last attempt, by which the budget is decided: one that fails costs, too.
    """
    _measurement: float | None = None
    """The seconds of the last complete measurement, by which the forecast is made."""
    _is_stated: bool = False
    """True once the forecast was printed."""
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    """The seconds of the last training steps, without tracking."""
    _last_step: tuple[int, float, float] | None = None
    """The last step, the time when it ended, and the seconds of tracking until then."""

    @property
    def total_seconds(self) -> float:
        """Return the wall-clock time since the tracking began, training included."""
        return time.perf_counter() - self._start

    @contextmanager
    def counted(self) -> Iterator[Cost]:
        """Count the time of what runs inside, once where such blocks are nested."""
        start = time.perf_counter()
        self._depth += 1
        try:
            yield self
        finally:
            self._depth -= 1
            # the outermost block's time includes that of the others
            if self._depth == 0:
                spent = time.perf_counter() - start
                self.seconds += spent
                if self._is_attempt:
                    self._last_attempt = spent
                if self._is_measurement:
                    self._measurement = spent
                self._is_attempt = False
                self._is_measurement = False

    def note_attempt(self) -> None:
        """Note that what is counted measures; of two runs, both are of one attempt."""
        self._is_attempt = True

    def note_measurement(self) -> None:
        """Note that what is counted has measured all that was requested."""
        self._is_measurement = True

    def allows(self, step: int) -> bool:
        """Return whether the budget has time to measure a scheduled step.

        All ranks call it, and get what the first of them says: their clocks differ.
        """
        budget = self.budget
        last = self._last_attempt
        if budget is None:
            return True

        def stays_within_budget() -> bool:
            # another measurement adds its seconds to those of tracking and to those of the job
            return last is None or self.seconds + last <= budget * (self.total_seconds + last)

        has_time = self.ranks.on_rank_zero(stays_within_budget)
        # told at once for the first one, and counted for the end
        if not has_time and self.ranks.is_rank_zero:
            if self.n_left_out == 0:
                warn(
                    log,
                    f"step {step} is not measured: another measurement of {last:.1f} s would "
                    f"exceed max_overhead={budget:g} of the training's time; measured again at "
                    "the first scheduled step with time for it",
                )
            self.n_left_out += 1
        return has_time

    def count_step(self, step: int) -> None:
        """Count a training step, and print once what tracking costs.

        Gradient accumulation counts a step several times, of which the first counts.
        """
        if self._is_stated or not self.ranks.is_rank_zero:
            return
        now = time.perf_counter()
        if self._last_step is not None:
            last, ended, tracking = self._last_step
            if step == last:
                return
            # a training that goes back to an earlier checkpoint has no interval there
            if step > last:
                in_training = now - ended - (self.seconds - tracking)
                self._steps.append(in_training / (step - last))
        self._last_step = (step, now, self.seconds)
        if self._measurement is not None and len(self._steps) >= FORECAST_STEPS:
            step_seconds = median(self._steps)
            if step_seconds > 0:
                self._is_stated = True
                print_above_bars(self._forecast(self._measurement, step_seconds))

    def _forecast(self, measurement: float, step: float) -> str:
        """Return what tracking costs, from the seconds of a measurement and of a training step."""
        in_steps = measurement / step
        text = (
            f"repdyn: a measurement takes {measurement:.3g} s, as long as {in_steps:,.0f} "
            "training steps"
        )
        if self.schedule.at_checkpoints:
            return text  # how many there will be is up to the trainer
        if self.n_steps:
            n_training = self.n_steps
            n_measurements = self.schedule.count(self.n_steps)
            # the end of a training is measured whatever the schedule
            if self.n_steps not in self.schedule:
                n_measurements += 1
        elif self.schedule.every:
            # of a training of unknown length: one measurement in each interval
            n_training = self.schedule.every
            n_measurements = 1
        else:
            return text
        # both in training steps
        measuring = in_steps * n_measurements
        share = measuring / (measuring + n_training)
        text += f"; as scheduled, about {share:.0%} of the training"
        if share > NOTABLE_SHARE and self.budget is None:
            text += "; max_overhead=0.05 bounds that"
        return text

    def report(self) -> None:
        """Print once how many measurements the budget left out."""
        if self.n_left_out:
            print_above_bars(
                f"repdyn: {self.n_left_out} scheduled measurements were left out by "
                f"max_overhead={self.budget:g}"
            )
            self.n_left_out = 0


class Spent:
    """The seconds that a training has taken, counted until they are asked for.

    The views at the end are still drawing then, which ``Cost.seconds`` has not counted yet.
    """

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._start = time.perf_counter()

    @property
    def tracking_seconds(self) -> float:
        """Return those of the tracking, the views at its end included."""
        return self._cost.seconds + time.perf_counter() - self._start

    @property
    def total_seconds(self) -> float:
        """Return those of the training, tracking included."""
        return self._cost.total_seconds

    def as_dict(self) -> dict[str, float]:
        """Return both by name."""
        return {
            "tracking_seconds": self.tracking_seconds,
            "total_seconds": self.total_seconds,
        }


def known_steps(n_steps: float | None) -> int | None:
    """Return the number of steps of a training; None where a framework does not know it and says
    inf, -1 or nothing.

    >>> known_steps(100.0), known_steps(-1), known_steps(float("inf")), known_steps(None)
    (100, None, None, None)
    """
    if n_steps is None or not math.isfinite(n_steps) or n_steps < 0:
        return None
    return int(n_steps)
