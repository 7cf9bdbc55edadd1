"""What tracking costs a training: a forecast, a budget that thins the schedule, and word of long measurements."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from repdyn.measurement.measure import Progress, no_progress
from repdyn.tracking.forecast import Forecast
from repdyn.tracking.schedule import Schedule
from repdyn.utils.distributed import ALONE, Ranks
from repdyn.utils.notices import print_above_bars

log = logging.getLogger(__name__)

_STAGES = {
    "forward": "running the model on the probe",
    "masked forward": "running the model on masked tokens",
    "kernels": "computing metrics",
}
PROGRESS_SECONDS = 30.0
"""Time between two lines on a long measurement; a shorter one is done in silence."""


def validate_max_overhead(max_overhead: float | None) -> None:
    """Raise ValueError unless a budget is None or a share above 0 and below 1."""
    if max_overhead is not None and not 0 < max_overhead < 1:
        raise ValueError(
            f"expected max_overhead as a share of the training's time above 0 and below 1, such as 0.02, got "
            f"{max_overhead!r}; leave it out for no limit"
        )


@dataclass
class Work:
    """A piece of tracking work whose time is counted."""

    is_attempt: bool = False
    """Whether it measures, with success or without, rather than finds that the store has the step."""
    is_measurement: bool = False
    """Whether it has measured all that was requested."""


class ExpectedCost(NamedTuple):
    """Expected cost of a measurement, before the first one."""

    forward_seconds: float
    """About how long one process would run the model on the whole probe."""
    working_bytes: int
    """As of :func:`repdyn.measurement.memory.working_bytes`."""


@dataclass
class Overhead:
    """The time that tracking has taken, and what is decided by it.

    Args:
        budget: largest share of the wall-clock time that tracking may take; None for no limit.
    """

    budget: float | None = None
    seconds: float = 0.0
    """Wall-clock time of this process in tracking: trial, measurements, storing, logging and views."""
    n_left_out: int = 0
    """Scheduled measurements that the budget had no time for."""
    ranks: Ranks = ALONE
    _start: float | None = None
    _last: float | None = None
    """Seconds of the last attempt to measure."""
    _depth: int = 0
    _forecast: Forecast = field(default_factory=Forecast)

    def begin(self, ranks: Ranks) -> None:
        """Begin to count: what was before, such as loading data, is no part of the training.

        Args:
            ranks: those of the job.
        """
        self.ranks, self.seconds, self.n_left_out = ranks, 0.0, 0
        self._last, self._forecast, self._start = None, Forecast(), time.perf_counter()

    @property
    def total_seconds(self) -> float:
        """Wall-clock time since the tracking began, training included; 0 before."""
        return 0.0 if self._start is None else time.perf_counter() - self._start

    @contextmanager
    def counted(self) -> Iterator[Work]:
        """Count the time of what runs inside, once where such blocks are nested; what it was is noted in the result."""
        start = time.perf_counter()
        self._depth += 1
        work = Work()
        try:
            yield work
        finally:
            self._depth -= 1
            spent = time.perf_counter() - start
            if self._depth == 0:
                self.seconds += spent
            if work.is_attempt:
                self._last = spent
            if work.is_measurement:
                self._forecast.add_measurement(spent)

    def allows(self, step: int) -> bool:
        """Return whether the budget has time to measure a scheduled step; the same on all ranks, which all call it."""
        if self.budget is None:
            return True
        has_time = self.ranks.on_rank_zero(self._has_time)
        if not has_time and self.ranks.is_rank_zero:
            self._leave_out(step)
        return has_time

    def _has_time(self) -> bool:
        """Return whether a measurement as long as the last one stays within the budget; the first always does."""
        if self.budget is None or self._last is None:
            return True
        return self.seconds + self._last <= self.budget * (self.total_seconds + self._last)

    def _leave_out(self, step: int) -> None:
        """Count a measurement that is left out, and log the first one."""
        if self.n_left_out == 0:
            log.warning(
                "step %d is not measured: another measurement of %.1f s would exceed max_overhead=%g of the training's "
                "time; measured again at the first scheduled step with time for it",
                step,
                self._last,
                self.budget,
            )
        self.n_left_out += 1

    def announce(self, cost: ExpectedCost | None, schedule: Schedule, n_steps: float | None) -> None:
        """Print what is known of the measurements before the first one; :meth:`count_step` corrects it.

        Args:
            cost: of a measurement; None if that is not known.
            schedule: of the measurements.
            n_steps: of the whole training; None or infinite where it is not known.
        """
        if cost is None or not self.ranks.is_rank_zero:
            return
        limit = f", of which max_overhead={self.budget:g} may leave some out" if self.budget else ""
        seconds, gibibytes = cost.forward_seconds / self.ranks.size, cost.working_bytes / 2**30
        print_above_bars(
            f"repdyn: each measurement runs the model on the probe for about {seconds:.2g} s, then computes metrics "
            f"in at most about {gibibytes:.1f} GiB; measured at {schedule.in_words(_known(n_steps))}{limit}"
        )

    def count_step(self, step: int, schedule: Schedule, n_steps: float | None = None) -> None:
        """Count a training step, and print what measurements will cost once that is known, and when it has changed.

        Args:
            step: optimizer steps taken; the same one may come several times, under gradient accumulation.
            schedule: of the measurements.
            n_steps: of the whole training; None or infinite where it is not known.
        """
        self._forecast.add_step(step, self.seconds)
        if not self.ranks.is_rank_zero:
            return
        if text := self._forecast.new_text(schedule, _known(n_steps), self.budget):
            print_above_bars(f"repdyn: {text}")

    def report(self) -> None:
        """Print once how many measurements the budget left out."""
        if self.n_left_out:
            print_above_bars(
                f"repdyn: {self.n_left_out} scheduled measurements were left out by max_overhead={self.budget:g}"
            )
            self.n_left_out = 0


class LongMeasurement:
    """A reporter of the progress of a measurement that takes long.

    Args:
        step: which is measured.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self._stage, self._stage_start = "", time.monotonic()
        self._next = self._stage_start + PROGRESS_SECONDS

    def __call__(self, stage: str, share: float) -> None:
        """Print how far a stage, as :func:`repdyn.measure` names it, is, if it is time for it."""
        now = time.monotonic()
        if stage != self._stage:
            self._stage_start = now if self._stage else self._stage_start
            self._stage = stage
        if now < self._next or share >= 1:
            return
        self._next = now + PROGRESS_SECONDS
        what = _STAGES.get(stage, stage)
        left = (now - self._stage_start) * (1 - share) / share if share > 0 else None
        rest = "" if left is None else f", about {_duration(left)} left of it"
        print_above_bars(f"repdyn: measuring step {self._step}: {what}, {share:.0%} done{rest}")


def progress_of(step: int, check_signals: Callable[[], None], ranks: Ranks) -> Progress:
    """Return a function that reports how far a measurement is and lets signals break it off.

    In a job of several processes a forward pass is not broken off, which the others would wait for.
    """
    tell = LongMeasurement(step) if ranks.is_rank_zero else no_progress

    def progress(what: str, share: float) -> None:
        if ranks.size == 1 or what == "kernels":
            check_signals()
        tell(what, share)

    return progress


def _known(n_steps: float | None) -> int | None:
    return None if n_steps is None or math.isinf(n_steps) else int(n_steps)


def _duration(seconds: float) -> str:
    """Return seconds in words.

    >>> _duration(42), _duration(200)
    ('42 s', '3 min')
    """
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
