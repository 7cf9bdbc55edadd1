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

EARLY = 0.1
"""Share of the course of the baselines up to which nothing is told: weights are near the initial
ones, which differ by their seed."""
RECENT = 0.5
"""Share of the last measured step from which on values are compared, so that what the initial
weights did is left behind."""


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
    baselines than they are from each other, and once it is no longer.

    Compared are the values from half of the last measured step on, and from as many measurements on
    as the comparison takes together: the first ones show how the weights were drawn.
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
        # what does not compare at one step never will: it is said once
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
        was_told = stack.stack in self._told
        # a statement has the step since which a run is out only where it is
        is_told = "since" in statement.evidence
        if is_told == was_told:
            return
        label = f"{compared.info.label}: " if compared.info.label else ""
        line = f"step {step}: {label}{statement.sentence}"
        if was_told:
            self._told.discard(stack.stack)
            # a warning that is taken back is no warning
            print_above_bars(f"repdyn: {line}")
            return
        self._told.add(stack.stack)
        if statement.severity == "note":
            print_above_bars(f"repdyn: {line}")
            return
        warn(log, f"alert at {line}")
        compared.info.loggers.each(lambda logger: target_of(logger).log_alerts([line], step), step)


def _parts(compared: _Compared) -> list[DescribedRun]:
    """Return each stack of the model with its baselines, as far as it was measured of late; none
    before it can be compared.

    Raises:
        ValueError: baselines that do not compare.
    """
    from repdyn.views.judging import stacks_of_run
    from repdyn.views.judging.baselines import TOGETHER
    from repdyn.views.judging.stores import SHOWN_COLUMNS

    run_id = compared.info.id
    frame = compared.store.to_pandas(run_id, columns=SHOWN_COLUMNS, categorical=True)
    is_of_probe = frame["probe"] == compared.info.probe
    of_probe = frame.loc[is_of_probe]
    is_recent = of_probe["step"] >= RECENT * of_probe["step"].max()
    origin = compared.store.path.resolve(), compared.name
    stacks = [
        compared.yardstick.compared(stack, origin)
        for stack in stacks_of_run(of_probe.loc[is_recent], rules=())
    ]
    n_measured = of_probe.loc[of_probe["layer"].notna(), "step"].nunique()
    return [stack for stack in stacks if n_measured >= TOGETHER and not _is_early(stack)]


def _is_early(stack: DescribedRun) -> bool:
    """Return whether a run has come no further than :data:`EARLY` of its shortest baseline."""
    from repdyn.views.tables.runs import positions_by_step

    at_run, *at_baselines = positions_by_step([stack, *stack.baselines])
    # of the shortest: beyond it there is nothing to compare with
    end = min(max(at.values()) for at in at_baselines)
    return max(at_run.values()) <= EARLY * end


def _statement(stack: DescribedRun) -> Insight:
    """Return what is said of a run beside its baselines."""
    from repdyn.views.judging.against import baseline_statements

    return next(baseline_statements(stack))
