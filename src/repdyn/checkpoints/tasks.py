"""Checkpoints with the probes they are measured on, and what the store has of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from repdyn.checkpoints.options import CompleteOptions
from repdyn.checkpoints.targets import Target
from repdyn.store import MeasurementKey, Store
from repdyn.store.schema import Row

if TYPE_CHECKING:
    from repdyn.measurement.options import MeasurementOptions
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
        return self.key_of(self.identity(options))

    def key_of(self, identity: str) -> MeasurementKey:
        """Return the key of the measurement of this identity in a store."""
        return MeasurementKey(
            run=self.target.run,
            step=self.target.step,
            probe=self.probe.hash,
            metrics=identity,
            checkpoint=self.target.commit,
        )

    def identity(self, options: CompleteOptions) -> str:
        """Return the identity of the metrics and of how they are measured, the same for all
        checkpoints with this probe.
        """
        return self.measurement(options).identity(self.probe, options.dtype)

    def identities(self, options: CompleteOptions) -> list[str]:
        """Return the identities under which the measurement may be stored.

        Where the options do not say whether the loss is measured, a measurement without it is
        enough.
        """
        sufficient = [options]
        if options.loss is None:
            sufficient.append(replace(options, loss=False))
        return list(dict.fromkeys(map(self.identity, sufficient)))

    def measurement(self, options: CompleteOptions) -> MeasurementOptions:
        """Return what is measured, and how; a probe of inputs other than tokens has no loss."""
        # with torch, which plans do without
        from repdyn.measurement.options import MeasurementOptions

        return MeasurementOptions(
            metrics=options.metrics,
            layers=options.layers,
            probe_loss=options.loss is not False and self.probe.inputs is None,
            tokens_per_forward=options.tokens_per_forward,
        )

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
    identities: dict[str, list[str]] = {}
    for task in tasks:
        # the same for all checkpoints of a run, and slow to compute where all metrics are meant
        if task.probe.hash not in identities:
            identities[task.probe.hash] = task.identities(options)
        keys = [task.key_of(identity) for identity in identities[task.probe.hash]]
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
