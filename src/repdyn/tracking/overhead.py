"""What tracking costs a training: a forecast, a budget that thins the schedule, and word of long measurements."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from repdyn.measurement.measure import Progress, no_progress
from repdyn.tracking.schedule import Schedule
from repdyn.utils.distributed import ALONE, Ranks

log = logging.getLogger(__name__)

FORECAST_STEPS = 20
"""Training steps after which a step's time is known well enough for a forecast."""
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
    _start: float = field(default_factory=lambda: time.perf_counter())
    _last: float | None = None
    _depth: int = 0
    _steps: int = 0
    _counted: int | None = None
    _is_forecast: bool = False

    @property
    def total_seconds(self) -> float:
        """Wall-clock time since the tracking began, training included."""
        return time.perf_counter() - self._start

    @contextmanager
    def counted(self, *, measurement: bool = False) -> Iterator[None]:
        """Count the time of what runs inside, once where such blocks are nested."""
        start = time.perf_counter()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            spent = time.perf_counter() - start
            if self._depth == 0:
                self.seconds += spent
            if measurement:
                self._last = spent

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

    def count_step(self, step: int, schedule: Schedule, n_steps: float | None = None) -> None:
        """Count a training step, and print once what measurements will cost.

        Args:
            step: optimizer steps taken; the same one may come several times, under gradient accumulation.
            schedule: of the measurements.
            n_steps: of the whole training; None or infinite where it is not known.
        """
        if step == self._counted:
            return
        self._counted = step
        forecast = self.forecast(schedule, None if n_steps is None or math.isinf(n_steps) else int(n_steps))
        if forecast and self.ranks.is_rank_zero:
            print(f"repdyn: {forecast}", file=sys.stderr)

    def forecast(self, schedule: Schedule, n_steps: int | None) -> str | None:
        """Count a training step; once there are enough, return what measurements will cost, else None.

        Args:
            schedule: of the measurements.
            n_steps: of the whole training, if known.
        """
        self._steps += 1
        if self._is_forecast or self._last is None or self._steps < FORECAST_STEPS:
            return None
        self._is_forecast = True
        step_seconds = (self.total_seconds - self.seconds) / self._steps
        if step_seconds <= 0:
            return None
        text = f"a measurement takes {self._last:.3g} s, as long as {self._last / step_seconds:,.0f} training steps"
        share = self._share(schedule, n_steps, step_seconds)
        if share is None:
            return text
        limit = f", of which max_overhead={self.budget:g} allows a part" if self.budget and share > self.budget else ""
        return f"{text}; by the schedule ({schedule}) about {share:.0%} of the training{limit}"

    def _share(self, schedule: Schedule, n_steps: int | None, step_seconds: float) -> float | None:
        if self._last is None or (n_steps is None and schedule.every is None):
            return None
        horizon = n_steps if n_steps is not None else schedule.every or 0
        n_due = schedule.count(horizon) if n_steps is not None else 1
        measuring = self._last * n_due
        return measuring / (measuring + horizon * step_seconds)

    def report(self) -> None:
        """Print once how many measurements the budget left out."""
        if self.n_left_out:
            print(
                f"repdyn: {self.n_left_out} scheduled measurements were left out by max_overhead={self.budget:g}",
                file=sys.stderr,
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
        """Print how far a stage ("forward" or "kernels") is, if it is time for it."""
        now = time.monotonic()
        if stage != self._stage:
            self._stage_start = now if self._stage else self._stage_start
            self._stage = stage
        if now < self._next or share >= 1:
            return
        self._next = now + PROGRESS_SECONDS
        what = {"forward": "running the model on the probe", "kernels": "computing metrics"}.get(stage, stage)
        left = (now - self._stage_start) * (1 - share) / share if share > 0 else None
        rest = "" if left is None else f", about {_duration(left)} left of it"
        print(f"repdyn: measuring step {self._step}: {what}, {share:.0%} done{rest}", file=sys.stderr)


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


def _duration(seconds: float) -> str:
    """Return seconds in words.

    >>> _duration(42), _duration(200)
    ('42 s', '3 min')
    """
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
