"""The plans of a sweep, for ``repdyn sweep --plan``: what it would measure and download, and how
long that takes.
"""

from typing import Any

from repdyn.checkpoints.errors import CheckpointError, SweepStoppedError
from repdyn.checkpoints.hub import Hub, map_concurrently
from repdyn.checkpoints.options import CompleteOptions
from repdyn.checkpoints.sweep import Prepared, tasks_of
from repdyn.checkpoints.targets import Selection, Target
from repdyn.checkpoints.tasks import FOREIGN, TaskList, partition_tasks
from repdyn.checkpoints.weight_files import total_bytes
from repdyn.store import Store
from repdyn.utils.redaction import redacted


def make_plans(prepared: Prepared) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what a sweep would do for each model, as docs/cli.md describes it, and why some cannot
    be measured.
    """
    plans: list[dict[str, Any]] = []
    problems = [*prepared.problems]
    for selection in prepared.selections:
        plan, without_probe = _plan_of(selection, prepared)
        plans.append(plan)
        problems += without_probe
    return plans, problems


def _plan_of(selection: Selection, prepared: Prepared) -> tuple[dict[str, Any], list[str]]:
    """Return the plan of one model, and why it has no probe, if so."""
    store = prepared.store
    by_state = TaskList([], [], [])
    waiting = [target for target in selection.targets if target not in prepared.foreign]
    without_probe: list[str] = []
    # where the store has nothing, everything is to be measured: the probe is not needed, and making
    # it may require a download
    if store.folder_of(selection.run).exists():
        by_state, without_probe = _tasks_by_state(selection, prepared)
        waiting = [task.target for task in by_state.waiting]
    sizes_or_reasons = map_concurrently(
        lambda target: _download_bytes(target, prepared.hub), waiting
    )
    sizes = [size for size in sizes_or_reasons if isinstance(size, int)]
    reasons = [reason for reason in sizes_or_reasons if isinstance(reason, str)]
    plan = {
        "model": selection.run,
        "design": prepared.options.design,
        "checkpoints": [target.revision for target in selection.targets],
        "waiting": [target.revision for target in waiting],
        "done": len(by_state.done),
        "failed_before": len(by_state.failed_before),
        "download_bytes": sum(sizes),
        "largest_bytes": max(sizes, default=0),
        "minutes": _minutes(store, by_state, prepared.options),
        **{mark: _owners(selection, prepared, mark) for mark in FOREIGN},
        "would_fail": [redacted(reason) for reason in reasons],
    }
    return plan, without_probe


def _tasks_by_state(selection: Selection, prepared: Prepared) -> tuple[TaskList, list[str]]:
    """Return which checkpoints of a model are measured, and why it has no probe, if so."""
    try:
        tasks, without_probe = tasks_of([selection], prepared.options, prepared.hub)
    except SweepStoppedError as error:  # no text to make the probe of, say
        tasks = []
        without_probe = [f"{selection.run}: {error}; it is not planned"]
    own_weights = [task for task in tasks if task.target not in prepared.foreign]
    return partition_tasks(own_weights, prepared.store, prepared.options), without_probe


def _owners(selection: Selection, prepared: Prepared, mark: str) -> dict[str, str]:
    """Return the checkpoints with this mark, and whose weights each has."""
    marks = {target.revision: prepared.foreign.get(target, {}) for target in selection.targets}
    return {name: of_target[mark] for name, of_target in marks.items() if mark in of_target}


def _minutes(store: Store, by_state: TaskList, options: CompleteOptions) -> float | None:
    """Return how long the waiting ones take at the pace of the one measured last, without their
    downloads.
    """
    stages = {"seconds/load", "seconds/forward", "seconds/kernels"}
    for task in reversed(by_state.done):
        rows = store.rows_of(task.key(options))
        seconds = [row.value for row in rows if row.metric in stages]
        if seconds:
            return sum(seconds) * len(by_state.waiting) / 60
    return None


def _download_bytes(target: Target, hub: Hub) -> int | str:
    """Return how much is downloaded for a checkpoint, or why it cannot be measured."""
    try:
        files = target.remote_files(hub)
    except CheckpointError as error:
        return f"{target}: {error}"
    if target.path is not None:
        return 0
    is_cached = hub.cached(target.repository, target.commit, files) is not None
    return 0 if is_cached else total_bytes(files)
