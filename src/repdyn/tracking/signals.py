"""Signals that break a measurement off, as a scheduler sends them before it ends a job."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

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
