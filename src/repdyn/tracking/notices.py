"""What a tracked training says: errors and warnings, each kind once and none of which ends it; what
tracking costs; that a measurement takes long; and the signals that break one off.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from types import FrameType
from typing import Any

from torch import nn

from repdyn.capture.blocks import is_sharded
from repdyn.store.schema import ReasonCode, Row, shown_reason, to_table
from repdyn.tracking.options import OnFailure
from repdyn.tracking.schedule import Schedule
from repdyn.utils.caller_state import isolated_rng
from repdyn.utils.distributed import ALONE, Ranks
from repdyn.utils.extras import MissingPackageError
from repdyn.utils.printing import print_above_bars, warn
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)

_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


@dataclass
class Notices:
    """Reports what happens in one run: errors, warnings and what was not measured."""

    on_error: OnFailure
    """"raise" raises errors, "warn" logs each kind once."""
    is_silent: bool = False
    """Whether another process reports."""
    n_measured: int = 0
    """Steps that were measured, or were in the store."""
    failures: dict[int, str] = field(default_factory=dict)
    """Why the others were not, by step."""
    _logged: set[str] = field(default_factory=set)
    _weights_since: tuple[str | None, int] = (None, 0)
    """The weights of the last measurement, and the first step at which they were measured."""

    @contextmanager
    def errors(
        self, step: int | None, what: str = "tracking", never_raise: bool = False
    ) -> Iterator[None]:
        """Isolate the random numbers from what runs inside, and raise or log its errors; a step of
        None is the end.
        """
        try:
            with isolated_rng():
                yield
        except Exception as error:
            self.error(error, step, what, never_raise)

    def error(
        self, error: Exception, step: int | None, what: str = "tracking", never_raise: bool = False
    ) -> None:
        """Raise or log an error; arguments as for :meth:`errors`."""
        if self.on_error == "raise" and not never_raise:
            raise error
        # by type and line: the text may name a file that is called otherwise each time
        trace = traceback.extract_tb(error.__traceback__)
        place = f"{trace[-1].filename}:{trace[-1].lineno}" if trace else str(error)
        when = "at the end" if step is None else f"at step {step}"
        if isinstance(error, MissingPackageError):
            text = f"{what} {when} is left out, training goes on: {error}"
        else:
            details = redacted("".join(traceback.format_exception(error)).rstrip())
            text = (
                f"{what} {when} failed, training goes on: "
                f"{redacted(f'{type(error).__name__}: {error}')}\n{details}"
            )
        self.once(f"{type(error).__name__} {place}", text)

    def once(self, key: str, text: str) -> None:
        """Log a warning unless one of this key has been logged."""
        if key not in self._logged and not self.is_silent:
            self._logged.add(key)
            warn(log, text)

    def report(self) -> None:
        """Print once, to be read beside the summary, how many steps are missing, and why the first
        of them is.
        """
        if self.failures and not self.is_silent:
            n_due = self.n_measured + len(self.failures)
            step, reason = min(self.failures.items())
            print_above_bars(
                f"repdyn: {self.n_measured} of {n_due} steps measured; step {step}: "
                f"{redacted(reason)}"
            )
        self.failures = {}

    def of_measurement(
        self,
        rows: Sequence[Row],
        weights: str | None,
        comparing: Collection[str],
        cause: Callable[[], str] = lambda: _NO_CHANGE,
    ) -> None:
        """Warn of what a reader of the rows of a step should know. The ``weights`` have this
        fingerprint, None where no change is expected, and ``cause`` returns why they may be those
        of an earlier step; metrics ``comparing`` with an earlier checkpoint have no value at the
        first step."""
        step = rows[0].step
        for row in rows:
            if row.reason is None or row.metric in comparing:
                continue
            # a small vocabulary leaves few distinct vectors in layer 0, not a single one
            is_harmless = row.reason_code == ReasonCode.FEW_DISTINCT and row.n_unique > 1
            if row.layer or not is_harmless:
                reason = shown_reason(row.reason, row.reason_code, row.n_unique, row.n_vectors)
                text = f"{row.metric} of layer {row.layer} is undefined, training goes on: {reason}"
                self.once(f"undefined {row.metric}", f"step {step}: {text}")
        if any(row.own_window_excluded is False for row in rows):
            # with pandas, which no import of a tracker waits for
            from repdyn.views.judging.metrics import window_statements

            for statement in window_statements(to_table(rows).to_pandas()):
                self.once("own windows", f"step {step}: {statement.sentence}")
        before, since = self._weights_since
        if weights is None or weights != before:
            self._weights_since = weights, step
        elif step > since + 1:
            # a single step may not change them: a warm-up begins at a learning rate of 0, a
            # gradient scaler skips steps
            reason = cause()
            self.once(
                f"unchanged weights: {reason}",
                f"step {step}: the weights are those of step {since}: {reason}",
            )


_NO_CHANGE = (
    "is the model that the tracker was given the one that the optimizer trains, does each call of "
    "step() follow a step of the optimizer, and does no gradient scaler skip its steps?"
)


def why_unchanged(model: nn.Module, learning_rate: Any, optimizers: Sequence[Any]) -> str:
    """Return why a training may have left the weights of a model as they were: what is the case, or
    else what to ask oneself.

    Args:
        model: what is measured.
        learning_rate: that of the step, as far as it is known.
        optimizers: those of the training, as far as they are known.
    """
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    if not trainable:
        return (
            "all its parameters are frozen (requires_grad=False); to measure what is trained, give "
            "the tracker the model that has it"
        )
    if any(getattr(optimizer, "step_was_skipped", False) for optimizer in optimizers) or any(
        not bool(weight.grad.isfinite().all()) for weight in trainable if weight.grad is not None
    ):
        return (
            "its gradients are inf or NaN, so that a gradient scaler skips the steps of the "
            "optimizer"
        )
    groups = [group for each in optimizers for group in getattr(each, "param_groups", ())]
    trained = {id(weight) for group in groups for weight in group["params"]}
    if groups and not is_sharded(model) and trained.isdisjoint(map(id, trainable)):
        return (
            "the optimizer trains none of its parameters; give the tracker the model that it trains"
        )
    with suppress(TypeError, ValueError, RuntimeError):  # one that is no number is told elsewhere
        if float(learning_rate) == 0:
            return "the learning rate is 0"
    return _NO_CHANGE


class MeasurementInterruptedError(Exception):
    """A signal has arrived that the program handles, as a scheduler sends it before it
    ends a job.
    """


@contextmanager
def watching_signals() -> Iterator[list[int]]:
    """Yield a list that gets the numbers of SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 as they arrive.

    A measurement is then abandoned, so that the training can save before its process is killed. The
    program's own handlers are called at once, as without the watch; signals without a handler in
    Python keep their effect. An exception of a handler is raised on leaving: a measurement takes
    exceptions for failures of its own.
    """
    arrived: list[int] = []
    raised: list[Exception] = []
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        try:
            handlers[number](number, frame)
        except Exception as error:
            raised.append(error)

    if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
        for number in _SIGNALS:
            if callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, note)
    try:
        yield arrived
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        if raised:
            raise raised[0]


FORECAST_STEPS = (
    5  # timed training steps until a forecast: their median is not misled by one or two slow ones
)
NOTABLE_SHARE = 0.05  # of the training's time, from which on a bound is suggested
KEPT_STEPS = 101  # training steps of which the time is kept
SILENT_SECONDS = 2.0  # until the first line on what a measurement is doing
PROGRESS_SECONDS = 30.0  # between two later lines
_STAGES = {
    "forward": "running the model on the probe",
    "masked forward": "running the model on masked tokens",
    "kernels": "computing metrics",
}


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
    is_attempt: bool = False
    """Whether what is counted measures, with success or without, rather than finds that the store
    has the step.
    """
    is_measurement: bool = False
    """Whether it has measured all that was requested."""
    _start: float = field(default_factory=lambda: time.perf_counter())
    _depth: int = 0
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
        self.is_attempt = self.is_measurement = False
        try:
            yield self
        finally:
            self._depth -= 1
            spent = time.perf_counter() - start
            self.seconds += 0.0 if self._depth else spent
            self._last_attempt = spent if self.is_attempt else self._last_attempt
            self._measurement = spent if self.is_measurement else self._measurement

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


def known_steps(n_steps: float | None) -> int | None:
    """Return the number of steps of a training; None where a framework does not know it and says
    inf, -1 or nothing.

    >>> known_steps(100.0), known_steps(-1), known_steps(float("inf")), known_steps(None)
    (100, None, None, None)
    """
    return None if n_steps is None or not math.isfinite(n_steps) or n_steps < 0 else int(n_steps)


@dataclass
class LongMeasurement:
    """A reporter of the progress of a measurement that takes long, which a signal that has
    ``arrived`` breaks off: in a job of several ranks not within a forward pass, which the others
    would wait for."""

    step: int
    arrived: Collection[int] = ()
    ranks: Ranks = ALONE
    _next: float = field(default_factory=lambda: time.monotonic() + SILENT_SECONDS)

    def __call__(self, stage: str, share: float) -> None:
        """Print how far a stage is, if it is time for it; raise MeasurementInterruptedError where a
        signal has arrived.
        """
        if self.arrived and (self.ranks.size == 1 or stage == "kernels"):
            raise MeasurementInterruptedError(
                f"{signal.Signals(next(iter(self.arrived))).name} arrived"
            )
        now = time.monotonic()
        if now >= self._next and share < 1 and self.ranks.is_rank_zero:
            self._next = now + PROGRESS_SECONDS
            print_above_bars(
                f"repdyn: measuring step {self.step}: {_STAGES.get(stage, stage)}, {share:.0%} done"
            )
