"""What breaks a measurement off, the signals that a scheduler sends before it ends a job, and what
is printed while it takes long.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from repdyn.utils.distributed import ALONE, Ranks
from repdyn.utils.printing import print_above_bars

SILENT_SECONDS = 2.0  # until the first line on what a measurement is doing
PROGRESS_SECONDS = 30.0  # between two later lines
_STAGES = {
    "forward": "running the model on the probe",
    "masked forward": "running the model on masked tokens",
    "kernels": "computing metrics",
}
# those that schedulers of jobs send; Windows lacks most of them
_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


class MeasurementInterruptedError(Exception):
    """A signal has arrived that the program handles, as a scheduler sends it before it
    ends a job.
    """


@contextmanager
def watching_signals() -> Iterator[list[int]]:
    """Watch SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2; yield the list of those that have arrived.

    A measurement is then abandoned, so that the training can save before its process is killed. The
    program's own handlers are called at once, as without the watch; signals without a handler in
    Python keep their effect. An exception of a handler is raised on leaving: a measurement takes
    exceptions for failures of its own.
    """
    arrived: list[int] = []
    raised: list[Exception] = []
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def note(number: int, frame: FrameType | None) -> None:
        # noted only: a measurement is broken off between two of its steps, at a call of progress
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
            # unless the program has set another one meanwhile
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        if raised:
            raise raised[0]


@dataclass
class LongMeasurement:
    """Prints the progress of a measurement that takes long, and breaks it off after a signal.

    In a job of several ranks it is not broken off within a forward pass, in which the other ranks
    would wait for this one for ever.
    """

    step: int
    arrived: Collection[int] = ()
    """The signals that have arrived."""
    ranks: Ranks = ALONE
    _next: float = field(default_factory=lambda: time.monotonic() + SILENT_SECONDS)
    """The time of the next line."""

    def __call__(self, stage: str, share: float) -> None:
        """Print how far a stage is, if it is time for it; raise MeasurementInterruptedError where a
        signal has arrived.
        """
        # in a forward pass on several ranks all of them are needed; the kernels wait for nobody
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
