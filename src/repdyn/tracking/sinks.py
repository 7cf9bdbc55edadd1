"""Sinks: what hears of the rows of a run once they are stored, such as loggers, alerts, a live page
or a database of one's own.

A sink can neither end the training nor delay it for long: each is called through a
:class:`Guarded`, as is each logger.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, runtime_checkable

from repdyn.store import Store
from repdyn.store.schema import Row
from repdyn.tracking.budget import Spent
from repdyn.tracking.notices import Notices
from repdyn.utils.attempts import TimeoutRunner
from repdyn.utils.extras import MissingPackageError
from repdyn.utils.printing import warn

log = logging.getLogger(__name__)

GROUP = "repdyn.sinks"
"""Entry points of classes that are called with the options of a tracker and return a sink."""
BUILT_IN = {
    "loggers": "repdyn.views.sinks.loggers:LoggerSink",
    "alerts": "repdyn.views.sinks.alerts:AlertSink",
    "baselines": "repdyn.views.sinks.baselines:BaselineSink",
    "report": "repdyn.views.sinks.report:ReportSink",
}
"""The sinks of this package, for a checkout whose installation does not list its entry points."""

# For how many seconds a training waits
BEGIN_SECONDS = 20.0  # until a sink has begun
SINK_SECONDS = 5.0  # for a call of a sink without an attribute ``seconds``
LOGGER_SECONDS = 1.0  # for a call of a logger
END_SECONDS = 600.0  # until a sink has finished, which may draw
INTERRUPTED_SECONDS = 10.0  # until a sink has ended without drawing


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Describes a run to a sink when the run begins."""

    name: str
    """The name, which other runs of the store may have too."""
    id: str | None
    """The id in the store; None without one."""
    store: Store | None
    """Where the rows are; None where nothing is stored."""
    probe: str
    """Hash of the probe."""
    weights_kind: str
    """"raw", or "averaged"."""
    metrics: tuple[tuple[str, str], ...]
    """The name and the subset of each metric."""
    schedule: str
    configuration: Mapping[str, Any]
    """Settings of the training that its user gave."""
    label: str
    """What distinguishes several trackers of one training; empty for the only one."""
    has_history: bool
    """Whether the run goes on from another one."""
    loggers: Loggers
    """The loggers of the training."""

    @property
    def prefix(self) -> str:
        """Return what leads names in the loggers."""
        return f"{self.label}_" if self.label else ""


@dataclass(frozen=True)
class StopRequest:
    """Asks for the end of the training; returned by :meth:`Sink.rows`."""

    step: int
    reason: str


class Sink(Protocol):
    """Receives the rows of a run, after they are stored.

    Its methods are called in order and one at a time, in threads other than the training's. What
    they raise is logged once. A call that takes long goes on behind the training, and the calls
    after it wait for their turn. A training with averaged weights has two runs, whose rows name
    them.

    A sink may have these attributes as well:

    - ``what``: what its faults are reported as; by default the name of its class
    - ``seconds``: how long the training waits for a call; by default :data:`SINK_SECONDS`
    - ``may_stop``: whether it may return a :class:`StopRequest`; by default True
    - ``is_urgent``: whether it hears of rows at once, also where the store does not accept them
    - ``is_replaceable``: whether a call may be left out where the one before has not returned, or
      where a signal asks the training to end
    - ``step_over(step)``: a method that is called once nothing more comes of a step
    - ``check_logger(logger)``: a method that raises TypeError for what it cannot write to
    """

    def begin(self, run: RunInfo) -> None:
        """Prepare for the rows of a run, which has none yet."""

    def rows(self, step: int, rows: Sequence[Row]) -> StopRequest | None:
        """Take the rows of a measured step, once they are stored.

        What is known of a step later, such as its validation loss, comes in a further call.
        """

    def end(self, spent: Spent, *, interrupted: bool) -> None:
        """Finish; quickly where the training was ``interrupted`` and its process may end soon."""


@runtime_checkable
class _HasMethods(Protocol):
    begin: Any
    rows: Any
    end: Any


def check_sinks(sinks: Iterable[Any]) -> tuple[Sink, ...]:
    """Return sinks; TypeError for what is none."""
    checked = tuple(sinks)
    # a class has the methods too, and is a common mistake
    for sink in checked:
        if not isinstance(sink, _HasMethods) or isinstance(sink, type):
            raise TypeError(
                f"expected sinks with the methods begin, rows and end, got {sink!r}; give objects "
                "such as MySink()"
            )
    return checked


def installed_sinks(options: Any) -> tuple[Sink, ...]:
    """Return a sink of each kind that is installed, made by the options of a tracker.

    Raises:
        ValueError, OSError: what a sink says to its options.
    """
    # an entry point of the same name takes the place of a sink of this package
    points = {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}
    points |= {point.name: point for point in entry_points(group=GROUP)}
    sinks = []
    for point in points.values():
        # a package that cannot be imported costs its sink, and not the training
        try:
            kind = point.load()
        except ImportError as error:
            warn(log, f"the sink {point.name!r} is left out: {error}")
            continue
        sinks.append(kind(options))
    return tuple(sinks)


class Guarded:
    """Calls one sink or logger, in order; the training waits only as long as calls are quick.

    Calls are made in another thread, one at a time. The training waits for a call until its seconds
    are over; once that has happened, it waits for none of the later calls of this sink, which stand
    in a queue behind the slow one.

    Args:
        name: of what is called.
        report: takes what a call raised, and the step of the call.
        is_replaceable: whether a call is left out where the one before has not returned; that one
            is then reported.
    """

    def __init__(
        self,
        name: str,
        report: Callable[[Exception, int | None], None],
        *,
        is_replaceable: bool = False,
    ) -> None:
        self.name = name
        self.is_behind = False
        self._report = report
        self._is_replaceable = is_replaceable
        self._was_late = False
        self._calls: deque[tuple[int | None, Callable[[], object]]] = deque()
        self._faults: deque[tuple[Exception, int | None]] = deque()
        self._runner = TimeoutRunner(0.0)

    @property
    def n_waiting(self) -> int:
        """Return how many calls wait for one that has not returned."""
        return len(self._calls)

    def call(self, function: Callable[[], object], step: int | None, seconds: float) -> None:
        """Call a function after those before it, and wait some seconds for it to return."""
        if self._is_replaceable:
            # a picture that is not drawn is part of the next one
            if self._runner.is_busy:
                return
        elif self._was_late:
            # else every step would wait for a logger that has hung once
            seconds = 0.0
        self._calls.append((step, function))
        self._drain(seconds, step)

    def wait(self, seconds: float, step: int | None = None) -> None:
        """Wait for the calls that are behind."""
        if self.is_behind:
            self._runner.wait(seconds)
            self._drain(seconds, step)

    def _drain(self, seconds: float, step: int | None) -> None:
        """Have the queue worked off, wait some seconds for that, and report what failed."""
        self._runner.seconds = seconds
        try:
            self._runner(self.name, self._work)
            self.is_behind = False
        except TimeoutError as error:
            self.is_behind = True
            self._was_late = True
            # other calls are late, but not lost
            if self._is_replaceable:
                self._faults.append((error, step))
        # in the training's thread, not in that of the calls
        while self._faults:
            self._report(*self._faults.popleft())

    def _work(self) -> None:
        while self._calls:
            step, function = self._calls.popleft()
            try:
                function()
            except Exception as error:
                self._faults.append((error, step))


class Loggers:
    """The loggers of a training, each called behind a guard of its own.

    What one of them raises is reported, and harms neither the others nor the training.

    Args:
        current: returns the loggers that the training has at the moment. It is asked at each call,
            since a training may exchange them, and W&B's run may open after the tracker.
        report: takes what a call raised, and the step of the call.
    """

    def __init__(
        self,
        current: Callable[[], Iterable[Any]],
        report: Callable[[Exception, int | None], None],
    ) -> None:
        self.current = current
        self._report = report
        self._guards: dict[int, Guarded] = {}

    def release(self) -> None:
        """Drop the function that returns loggers: it may hold a trainer, and so the model."""
        self.current = tuple

    def each(self, job: Callable[[Any], object], step: int | None) -> None:
        """Call ``job(logger)`` for each logger."""
        for logger in self.current():
            # one for each logger, so that one that hangs holds up no other
            guard = self._guards.get(id(logger))
            if guard is None:
                guard = Guarded(f"logging to {type(logger).__name__}", self._report)
                self._guards[id(logger)] = guard
            guard.call(partial(job, logger), step, LOGGER_SECONDS)

    def wait(self, seconds: float) -> None:
        """Wait for loggers that are behind; what they have not got by then is in the store."""
        for guard in self._guards.values():
            guard.wait(seconds)
            if guard.is_behind:
                warn(
                    log,
                    f"{guard.name} is behind by more than {guard.n_waiting} calls; the store has "
                    "all values",
                )


class GuardedSink:
    """A sink with its guard, and what it has asked for."""

    def __init__(self, sink: Sink, notices: Notices) -> None:
        self.what: str = getattr(sink, "what", type(sink).__name__)
        self.is_urgent: bool = getattr(sink, "is_urgent", False)
        self.is_replaceable: bool = getattr(sink, "is_replaceable", False)
        self.requests: deque[StopRequest] = deque()
        self._sink = sink
        self._seconds: float = getattr(sink, "seconds", SINK_SECONDS)
        self._guard = Guarded(
            self.what,
            partial(notices.error, what=self.what, never_raise=True),
            is_replaceable=self.is_replaceable,
        )

    def begin(self, run: RunInfo) -> None:
        """Let the sink begin; raise what it raises."""
        # not through the guard, which would report what fails and go on
        TimeoutRunner(BEGIN_SECONDS)(self.what, partial(self._sink.begin, run))

    def rows(self, step: int, rows: Sequence[Row]) -> None:
        """Give the sink rows of a step."""

        def take() -> None:
            request = self._sink.rows(step, rows)
            if request is not None:
                self.requests.append(request)

        self._guard.call(take, step, self._seconds)

    def step_over(self, step: int) -> None:
        """Tell a sink that asks for it that nothing more comes of a step."""
        method = getattr(self._sink, "step_over", None)
        if method is not None:
            self._guard.call(partial(method, step), step, self._seconds)

    def end(self, spent: Spent, *, interrupted: bool) -> None:
        """Let the sink finish."""
        seconds = INTERRUPTED_SECONDS if interrupted else END_SECONDS
        try:
            # before the call, which a guard that was late once would not wait for
            self._guard.wait(seconds)
            self._guard.call(partial(self._sink.end, spent, interrupted=interrupted), None, seconds)
            self._guard.wait(seconds)
        except KeyboardInterrupt:
            # who does not wait for the figures hears how to draw them later
            if self.is_replaceable and not interrupted:
                self._sink.end(spent, interrupted=True)
            raise


class Sinks:
    """The sinks of one run, called one after the other."""

    def __init__(self, sinks: Iterable[Sink], notices: Notices) -> None:
        self._notices = notices
        guarded = [GuardedSink(sink, notices) for sink in sinks]
        # sinks that draw are the slow ones: they come last, so that loggers do not wait for them
        self._sinks = sorted(guarded, key=lambda sink: sink.is_replaceable)

    def begin(self, run: RunInfo, step: int) -> None:
        """Let each sink begin; one that fails is called no more."""
        ready = []
        for sink in self._sinks:
            try:
                sink.begin(run)
                ready.append(sink)
            except MissingPackageError as error:
                # without the packages of views a training stores and logs all the same
                self._notices.error(error, step, sink.what, never_raise=True)
            except Exception as error:
                self._notices.error(error, step, sink.what)
        self._sinks = ready

    def urgent(self, step: int, rows: Sequence[Row]) -> None:
        """Give rows to the sinks that hear of them at once."""
        for sink in self._sinks:
            if sink.is_urgent:
                sink.rows(step, rows)

    def rows(self, step: int, rows: Sequence[Row], *, in_haste: bool = False) -> None:
        """Give rows that are stored to the other sinks; ``in_haste`` not to those that draw."""
        for sink in self._sinks:
            if not sink.is_urgent and not (in_haste and sink.is_replaceable):
                sink.rows(step, rows)

    def step_over(self, step: int) -> None:
        """Tell the sinks that nothing more comes of a step."""
        for sink in self._sinks:
            sink.step_over(step)

    def take_requests(self) -> list[StopRequest]:
        """Return the requests to stop that have not been taken."""
        requests = []
        for sink in self._sinks:
            # one at a time: the sink's thread may be adding to them
            while sink.requests:
                requests.append(sink.requests.popleft())
        return requests

    def end(self, spent: Spent, *, interrupted: bool) -> None:
        """Let each sink finish."""
        for sink in self._sinks:
            sink.end(spent, interrupted=interrupted)
