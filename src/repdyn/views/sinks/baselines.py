"""Earlier runs of the same recipe as a sink: after each measurement the run is compared with them.

Tables are imported when there is something to compare, so that their packages cost a job without
baselines nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repdyn.store import Store
from repdyn.store.schema import Row
from repdyn.tracking.budget import Spent
from repdyn.tracking.options import TrackingOptions
from repdyn.tracking.sinks import RunInfo
from repdyn.utils.extras import require
from repdyn.utils.printing import print_above_bars, warn
from repdyn.views.publish.loggers import target_of

if TYPE_CHECKING:
    from repdyn.views.judging import DescribedRun, Insight, Yardstick

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Compared:
    """A run with the store that has its rows, and its baselines."""

    info: RunInfo
    store: Store
    name: str
    """In the store, which others of this run's name may be in."""
    yardstick: Yardstick


class BaselineSink:
    """Says of a run of the trained weights, once it becomes so, that it is further from its
    baselines than they are from each other.

    It is told from as many measurements on as the comparison takes together: the first alone shows
    how the weights were drawn.
    """

    what = "comparing with earlier runs"
    seconds = 20.0
    may_stop = False
    is_replaceable = True

    def __init__(self, options: TrackingOptions) -> None:
        self._places = options.earlier
        self._compared: _Compared | None = None
        self._last_step: int | None = None
        self._told: set[str | None] = set()
        """The stacks of the model that were furthest after the measurement before."""

    def begin(self, run: RunInfo) -> None:
        """Read the baselines.

        Raises:
            MissingPackageError: without the packages that tables are made of.
            ValueError: nothing is measured in one of their places.
        """
        if not self._places or run.store is None or run.id is None or run.weights_kind != "raw":
            return
        require("views", "a comparison with earlier runs", "pandas")
        from repdyn.views.judging.stores import stored_yardstick

        path = run.store.path_of(run.id)
        name = run.id if path is None else path.name
        yardstick = stored_yardstick(self._places)
        self._compared = _Compared(info=run, store=run.store, name=name, yardstick=yardstick)

    def rows(self, step: int, rows: Sequence[Row]) -> None:
        """Compare what is measured up to a step with the same part of the earlier runs."""
        compared = self._compared
        if compared is None or step == self._last_step:  # a loss is compared at the next step
            return
        self._last_step = step
        try:
            stacks = _parts(compared)
        except ValueError as error:
            self._compared = None
            warn(log, f"no comparison with earlier runs: {error}")
            return
        for stack in stacks:
            self._tell(compared, stack, step)

    def end(self, spent: Spent, *, interrupted: bool) -> None:
        """Do nothing: each step is compared when it is measured."""

    def _tell(self, compared: _Compared, stack: DescribedRun, step: int) -> None:
        statement = _statement(stack)
        if statement is None or "since" not in statement.evidence:
            self._told.discard(stack.stack)
            return
        if stack.stack in self._told:
            return
        self._told.add(stack.stack)
        label = f"{compared.info.label}: " if compared.info.label else ""
        line = f"step {step}: {label}{statement.sentence}"
        if statement.severity == "note":
            print_above_bars(f"repdyn: {line}")
            return
        warn(log, f"alert at {line}")
        compared.info.loggers.each(lambda logger: target_of(logger).log_alerts([line], step), step)


def _parts(compared: _Compared) -> list[DescribedRun]:
    """Return each stack of the model with its baselines, as far as it is measured.

    Raises:
        ValueError: baselines that do not compare.
    """
    from repdyn.views.judging import stacks_of_run
    from repdyn.views.judging.stores import SHOWN_COLUMNS

    run_id = compared.info.id
    frame = compared.store.to_pandas(run_id, columns=SHOWN_COLUMNS, categorical=True)
    is_of_probe = frame["probe"] == compared.info.probe
    origin = compared.store.path.resolve(), compared.name
    stacks = stacks_of_run(frame.loc[is_of_probe], rules=())
    return [compared.yardstick.compared(stack, origin) for stack in stacks]


def _statement(stack: DescribedRun) -> Insight | None:
    """Return what is said of a run beside its baselines; None before it can be."""
    from repdyn.views.judging.against import baseline_statements
    from repdyn.views.judging.baselines import TOGETHER

    if len(stack.steps) < TOGETHER:
        return None
    return next(baseline_statements(stack))
