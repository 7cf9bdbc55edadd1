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

FORECAST_STEPS = (
    5  # timed training steps until a forecast: their median is not misled by one or two slow ones
)
NOTABLE_SHARE = 0.05  # of the training's time, from which on a bound is suggested
KEPT_STEPS = 101  # training steps of which the time is kept


@dataclass
class Cost:
    """The time that the tracking of one run takes, and what is decided by it.

    A step's time is the median of the intervals between steps, without what tracking took in them.
    What precedes the first step, such as the start of the workers that load data, is in no
    interval.
    """

    budget: float | None
    """Largest share of the wall-clock time that tracking may take; None for no limit."""
    schedule: Schedule
    n_steps: int | None = None
    """Of the whole training, if known."""
    ranks: Ranks = ALONE
    seconds: float = 0.0
    """Wall-clock time of this process in tracking: trial, measurements, storing, logging and views.
    """
    n_left_out: int = 0
    """Scheduled measurements that the budget had no time for."""
    _start: float = field(default_factory=lambda: time.perf_counter())
    _depth: int = 0
    _is_attempt: bool = False
    """Whether what is counted measures, with success or without, rather than finds that the store
    has the step.
    """
    _is_measurement: bool = False
    """Whether it has measured all that was requested."""
    _last_attempt: float | None = None
    _measurement: float | None = None
    """What the last measurement took."""
    _is_stated: bool = False
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    _before: tuple[int, float, float] | None = None
    """The last step, when it ended, and what tracking had taken until then."""

    @property
    def total_seconds(self) -> float:
        """Wall-clock time since the tracking began, training included."""
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
            if self._depth == 0:
                self._count(time.perf_counter() - start)

    def _count(self, spent: float) -> None:
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
        """Return whether the budget has time to measure a scheduled step; the same on all ranks,
        which all call it.
        """
        budget, last = self.budget, self._last_attempt
        if budget is None:
            return True
        # the first always has time
        has_time = self.ranks.on_rank_zero(
            lambda: last is None or self.seconds + last <= budget * (self.total_seconds + last)
        )
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
        """Count a training step, which may come several times, under gradient accumulation; print
        once what tracking costs."""
        if self._is_stated or not self.ranks.is_rank_zero:
            return
        now = time.perf_counter()
        if self._before is not None:
            last, then, before = self._before
            if step == last:
                return
            if step > last:
                self._steps.append((now - then - (self.seconds - before)) / (step - last))
        self._before = step, now, self.seconds
        if (
            self._measurement is None
            or len(self._steps) < FORECAST_STEPS
            or median(self._steps) <= 0
        ):
            return
        self._is_stated, in_steps = True, self._measurement / median(self._steps)
        text = (
            f"repdyn: a measurement takes {self._measurement:.3g} s, as long as {in_steps:,.0f} "
            "training steps"
        )
        if horizon := self.n_steps or self.schedule.every:
            measuring = in_steps * (self.schedule.count(self.n_steps) if self.n_steps else 1)
            share = measuring / (measuring + horizon)
            text += f"; as scheduled, about {share:.0%} of the training"
            if share > NOTABLE_SHARE and self.budget is None:
                text += "; max_overhead=0.05 bounds that"
        print_above_bars(text)

    def report(self) -> None:
        """Print once how many measurements the budget left out."""
        if self.n_left_out:
            print_above_bars(
                f"repdyn: {self.n_left_out} scheduled measurements were left out by "
                f"max_overhead={self.budget:g}"
            )
            self.n_left_out = 0


class Spent:
    """The seconds that a training has taken until they are asked for."""

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
    return None if n_steps is None or not math.isfinite(n_steps) or n_steps < 0 else int(n_steps)
