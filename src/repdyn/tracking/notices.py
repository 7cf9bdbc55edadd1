"""Errors, warnings and signals of a tracked training: none of them ends it, and each kind is reported once."""

from __future__ import annotations

import logging
import signal
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from repdyn.metrics import metric_info
from repdyn.store.schema import Row, too_few_distinct
from repdyn.tracking.options import OnFailure
from repdyn.utils.caller_state import isolated_rng
from repdyn.utils.extras import MissingPackageError
from repdyn.utils.printing import print_above_bars, warn
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))


@dataclass
class Notices:
    """Reports what happens in one run: errors, warnings and what was not measured.

    Args:
        on_error: "raise" raises errors, "warn" logs each kind once.
        is_silent: whether another process reports.
    """

    on_error: OnFailure
    is_silent: bool = False
    n_measured: int = 0
    """Steps that were measured, or were in the store."""
    failures: dict[int, str] = field(default_factory=dict)
    """Why the others were not, by step."""
    _logged: set[str] = field(default_factory=set)
    _weights_since: tuple[str | None, int] = (None, 0)
    """The weights of the last measurement, and the first step at which they were measured."""

    @contextmanager
    def errors(self, step: int | None, what: str = "tracking", never_raise: bool = False) -> Iterator[None]:
        """Isolate the random numbers from what runs inside, and raise or log its errors.

        Args:
            step: optimizer steps taken; None at the end of the training.
            what: names what runs inside in the log.
            never_raise: log the error even under "raise".
        """
        try:
            with isolated_rng():
                yield
        except Exception as error:
            self.error(error, step, what, never_raise)

    def error(self, error: Exception, step: int | None, what: str = "tracking", never_raise: bool = False) -> None:
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
            text = f"{what} {when} failed, training goes on: {redacted(describe(error))}\n{details}"
        self.once(f"{type(error).__name__} {place}", text)

    def once(self, key: str, text: str) -> None:
        """Log a warning unless one of this key has been logged."""
        if key not in self._logged and not self.is_silent:
            self._logged.add(key)
            warn(log, text)

    def failed(self, step: int, reason: str) -> None:
        """Note why a step is missing."""
        self.failures[step] = redacted(reason)

    def report(self) -> None:
        """Print once how many steps are missing, and why the first of them is.

        The log has each failure when it happens, once; this is read beside the summary, where there may be none.
        """
        if self.failures and not self.is_silent:
            n_due = self.n_measured + len(self.failures)
            step, reason = min(self.failures.items())
            print_above_bars(f"repdyn: {self.n_measured} of {n_due} steps measured; step {step}: {reason}")
        self.failures = {}

    def of_measurement(self, rows: Sequence[Row], weights: str | None, comparing: Collection[str]) -> None:
        """Warn of what a reader of the rows of a measurement should know.

        Args:
            rows: of one step.
            weights: their fingerprint; None where it is not known.
            comparing: metrics that compare with an earlier checkpoint, which the first step lacks.
        """
        step = rows[0].step
        for row in rows:
            if row.reason is not None and row.metric not in comparing:
                few = too_few_distinct(row.on_distinct, row.n_unique, row.n_vectors, row.near_duplicate_share)
                if row.layer or row.reason != few:  # a small vocabulary leaves few distinct vectors in layer 0
                    text = f"{row.metric} of layer {row.layer} is undefined, training goes on: {row.reason}"
                    self.once(f"undefined {row.metric}", f"step {step}: {text}")
            elif row.value < 1 and metric_info(row.metric).unit == "dimension" and "below one" not in self._logged:
                from repdyn.tables.style import BELOW_ONE

                text = f"{row.metric} of layer {row.layer} is {row.value:.2f}: {BELOW_ONE}"
                self.once("below one", f"step {step}: {text}")
        if any(row.own_window_excluded is False for row in rows):
            from repdyn.tables.designs import own_window_warning  # with pandas, which no import of a tracker waits for

            if text := own_window_warning(rows):
                self.once("own windows", f"step {step}: {text}")
        before, since = self._weights_since
        if weights is None or weights != before:
            self._weights_since = weights, step
        elif step > since + 1:
            # a single step may not change them: a warm-up begins at a learning rate of 0, a gradient scaler skips steps
            self.once(
                "unchanged weights",
                f"step {step}: the weights are those of step {since}; is the model that the tracker was given the one "
                "that the optimizer trains, and does each call of step() follow a step of the optimizer?",
            )


def describe(error: Exception) -> str:
    """Return the type and the text of an error.

    >>> describe(ValueError("no"))
    'ValueError: no'
    """
    return f"{type(error).__name__}: {error}"


class Interrupted(Exception):
    """A signal has arrived that the program handles, as a scheduler sends it before it ends a job."""


@contextmanager
def watching_signals() -> Iterator[list[int]]:
    """Yield a list that gets the numbers of SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 as they arrive.

    A measurement is then abandoned, so that the training can save before its process is killed. The program's own
    handlers are called at once, as without the watch; signals without a handler in Python keep their effect. An
    exception of a handler is raised on leaving: a measurement takes exceptions for failures of its own.
    """
    arrived: list[int] = []
    raised: list[Exception] = []

    def watch(handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], None]:
        def note(number: int, frame: FrameType | None) -> None:
            arrived.append(number)
            try:
                handler(number, frame)
            except Exception as error:
                raised.append(error)

        return note

    replaced = {}
    if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                replaced[number] = handler, watch(handler)
                signal.signal(number, replaced[number][1])
    try:
        yield arrived
    finally:
        for number, (handler, note) in replaced.items():
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        if raised:
            raise raised[0]
