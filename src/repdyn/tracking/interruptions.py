"""Signals during a measurement: it is abandoned, so that the training can save before its process is killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))


class Interrupted(Exception):
    """A signal has arrived that the program handles, as a scheduler sends it before it ends a job."""


@contextmanager
def watching_signals() -> Iterator[Callable[[], None]]:
    """Yield a function that raises :class:`Interrupted` once SIGTERM, SIGUSR1 or SIGUSR2 has arrived.

    The program's own handlers are called at once, as without the watch; signals without a handler in Python keep their
    effect. An exception of a handler is raised on leaving: a measurement takes exceptions for failures of its own.
    """
    arrived: list[int] = []
    raised: list[Exception] = []

    def check() -> None:
        if arrived:
            raise Interrupted(f"{signal.Signals(arrived[0]).name} arrived")

    def watch(number: int, handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], None]:
        def note(_number: int, frame: FrameType | None) -> None:
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
                replaced[number] = handler, watch(number, handler)
                signal.signal(number, replaced[number][1])
    try:
        yield check
    finally:
        for number, (handler, note) in replaced.items():
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        if raised:
            raise raised[0]
