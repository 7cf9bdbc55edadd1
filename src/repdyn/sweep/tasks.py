"""What a sweep has to do: its settings, its tasks, and which of them a store has already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from repdyn.hub.options import Loading
from repdyn.metrics import DEFAULT_METRICS, MetricLike
from repdyn.store import MeasurementKey, Store
from repdyn.sweep.targets import Target

if TYPE_CHECKING:
    from repdyn.capture.blocks import LayerPatterns
    from repdyn.capture.token_states import TokenPositions
    from repdyn.probe import Probe


@dataclass(frozen=True)
class Settings:
    """Settings of a sweep: how each checkpoint is measured and its model loaded; see :func:`repdyn.measure`."""

    metrics: Sequence[MetricLike] = DEFAULT_METRICS
    layers: LayerPatterns = None
    loading: Loading = field(default_factory=Loading)
    tokens_per_forward: int = 8192
    in_order: bool = True
    """Whether one process measures all checkpoints in order, as metrics that compare checkpoints require."""
    token_positions: TokenPositions | None = None
    probe_loss: bool | None = False
    """Whether to measure the loss on the probe; None to do so, though not again at checkpoints measured without it."""

    def key(self, task: Task) -> MeasurementKey:
        """Return the store key of a task."""
        from repdyn.measurement.identity import metric_set  # with torch, which plans do without

        metrics = metric_set(
            self.metrics,
            self.layers,
            task.probe,
            self.loading.dtype,
            token_positions=self.token_positions,
            probe_loss=self.measures_loss(task),
        )
        return task.target.key(task.probe.hash, metrics)

    def measures_loss(self, task: Task) -> bool:
        """Return whether the loss on the probe is measured, which a probe of inputs other than tokens has not."""
        return self.probe_loss is not False and task.probe.inputs is None

    def is_measured(self, task: Task, store: Store) -> bool:
        """Return whether the store has a task."""
        without_loss = [replace(self, probe_loss=False).key(task)] if self.probe_loss is None else []
        return any(key in store for key in (self.key(task), *without_loss))

    @property
    def choice(self) -> str:
        """The selected layers and token positions, as rows record them."""
        from repdyn.measurement.identity import layer_choice

        return layer_choice(self.layers, self.token_positions)


@dataclass(frozen=True)
class ForeignWeights:
    """Weights of another checkpoint of the same history, under the name of a checkpoint."""

    owner: str
    """Name of the checkpoint whose weights they are."""
    in_part: bool = False
    """Whether that is so of single files alone, as in a mixture of two checkpoints."""

    @property
    def reason(self) -> str:
        """Why the checkpoint is not measured."""
        if self.in_part:
            return f"a mixture: some of its files are those of {self.owner}"
        return f"a copy: it has the weights of {self.owner}"


@dataclass(frozen=True)
class Task:
    """A checkpoint and the probe it is measured on."""

    target: Target
    probe: Probe


@dataclass(frozen=True)
class TaskList:
    """The tasks of a sweep, grouped by their state in the store."""

    waiting: list[Task]
    done: list[Task]
    failed_before: list[Task]
    """Only retried on request."""


def partition_tasks(tasks: Iterable[Task], store: Store, settings: Settings, *, retry_failed: bool = False) -> TaskList:
    """Group tasks into those to measure, those done, and those that failed in an earlier sweep."""
    task_list = TaskList([], [], [])
    for task in tasks:
        key = settings.key(task)
        if settings.is_measured(task, store):
            task_list.done.append(task)
        elif key.failed in store and not retry_failed and stored_foreign(task, store, settings) is None:
            task_list.failed_before.append(task)
        else:
            task_list.waiting.append(task)
    return task_list


def stored_foreign(task: Task, store: Store, settings: Settings) -> ForeignWeights | None:
    """Return the checkpoint whose weights or files a task is stored to have; None if it has its own."""
    key = settings.key(task).failed
    if key not in store:
        return None
    row = store.read(key)[0]
    owner = row.same_as or row.mixed_with
    return ForeignWeights(owner, in_part=row.same_as is None) if owner else None
