"""Checkpoints with the probes they are measured on, and what the store has of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repdyn.checkpoints.options import CompleteOptions
from repdyn.checkpoints.targets import Target
from repdyn.store import MeasurementKey, Store
from repdyn.store.schema import Row

if TYPE_CHECKING:
    from repdyn.probe import Probe

FOREIGN = {
    "same_as": "a copy: it has the weights of",
    "mixed_with": "a mixture: some of its files are those of",
}
"""Why a checkpoint with weights of another one is not measured, by the column of its rows that
names the other one.
"""


@dataclass(frozen=True)
class Task:
    """A checkpoint and the probe it is measured on."""

    target: Target
    probe: Probe

    def key(self, options: CompleteOptions) -> MeasurementKey:
        """Return the key of the measurement in a store."""
        return MeasurementKey(
            run=self.target.run,
            step=self.target.step,
            probe=self.probe.hash,
            metrics=options.measurement_on(self.probe).identity,
            checkpoint=self.target.commit,
        )

    def keys(self, options: CompleteOptions) -> list[MeasurementKey]:
        """Return the keys under which the measurement may be stored.

        Where the options do not say whether the loss is measured, a measurement without it is
        enough.
        """
        sufficient = [options] if options.loss is not None else [options, options.without_loss]
        return list(dict.fromkeys(map(self.key, sufficient)))

    def stored_marks(self, store: Store, options: CompleteOptions) -> dict[str, str]:
        """Return the stored marks that tell whose weights the checkpoint has; none for its own."""
        return marks_in(store.rows_of(self.key(options).failed))


def marks_in(rows: Sequence[Row]) -> dict[str, str]:
    """Return the marks in the rows of a checkpoint that was not measured."""
    row = rows[0] if rows else None
    return {name: owner for name in FOREIGN if (owner := getattr(row, name, None))}


@dataclass(frozen=True)
class TaskList:
    """The tasks of a sweep, grouped by their state in the store."""

    waiting: list[Task]
    done: list[Task]
    failed_before: list[Task]
    """Only retried on request."""


def partition_tasks(tasks: Iterable[Task], store: Store, options: CompleteOptions) -> TaskList:
    """Group tasks into those to measure, those done, and those that failed in an earlier sweep."""
    by_state = TaskList([], [], [])
    for task in tasks:
        keys = task.keys(options)
        if any(key in store for key in keys):
            by_state.done.append(task)
            continue
        failure = [] if options.retry_failed else store.rows_of(keys[0].failed)
        # one that was marked as a copy is no copy any more, or it would not be among the tasks
        if not failure or marks_in(failure):
            by_state.waiting.append(task)
        else:
            by_state.failed_before.append(task)
    return by_state
