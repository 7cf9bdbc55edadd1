"""A sweep over several workers, GPUs or machines at once: one Ray task for each checkpoint."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repdyn.store import Store
from repdyn.sweep.board import Board
from repdyn.sweep.checkpoint import Settings, Task, file_failure
from repdyn.sweep.downloads import Downloads
from repdyn.sweep.failures import CheckpointError
from repdyn.sweep.hub import Hub, total_bytes
from repdyn.sweep.loop import Report, sweep
from repdyn.sweep.targets import Target
from repdyn.sweep.weights import choose_files

DISK = "disk_gb"
"""The resource that keeps the weights on one machine's disk within bounds."""
TRIES_AFTER_A_LOST_WORKER = 3
_LOOKUPS = 8
_OBJECT_STORE_BYTES = 256_000_000  # the tasks share nothing but probes


@dataclass(frozen=True)
class _Bounds:
    """What a worker may take for downloads."""

    folder: Path
    budget_bytes: int | None
    timeout_seconds: float


def sweep_with_ray(tasks: Sequence[Task], store: Store, settings: Settings, hub: Hub, options: Namespace) -> Report:
    """Measure checkpoints on the Ray cluster that RAY_ADDRESS names, or else on one started here.

    A task takes a GPU where the device is one, its share of this machine's CPUs and, with ``max_disk``, as many units
    of the resource ``disk_gb`` as its weights take gigabytes. A task whose worker is lost is tried again.

    Args:
        tasks: what to measure.
        store: on a file system that all machines share.
        settings: how each is measured.
        hub: where sizes are asked for.
        options: of the command line: workers, device, max_disk, downloads, timeout.

    Raises:
        ValueError: Ray is not installed, or its cluster has no resource ``disk_gb``.
        SweepStoppedError: no connection, or no space on a disk.
    """
    ray = _imported()
    report = Report()
    if not tasks:
        return report
    bounds = _Bounds(options.downloads.absolute(), options.max_disk, options.timeout)
    with _cluster(ray, options), Board(len(tasks)) as board:
        remote = ray.remote(_measure_there)
        probes = {task.probe.hash: ray.put(task.probe) for task in tasks}
        waiting = {}
        for task, resources in zip(tasks, _resources(tasks, hub, options), strict=True):
            call = remote.options(max_retries=TRIES_AFTER_A_LOST_WORKER, **resources)
            probe = probes[task.probe.hash]
            waiting[call.remote(task.target, probe, store.path.absolute(), settings, hub.endpoint, bounds)] = task
        try:
            while waiting:
                (finished,), _ = ray.wait(list(waiting), num_returns=1)
                task = waiting.pop(finished)
                outcome = _outcome(ray, finished, task, store, settings)
                report.add(outcome)
                _tell(board, task, outcome)
        finally:
            for call in waiting:
                ray.cancel(call, force=True)
    return report


def _measure_there(
    target: Target, probe: Any, store: Path, settings: Settings, endpoint: str, bounds: _Bounds
) -> Report:
    """In a worker: a sweep of one checkpoint."""
    downloads = Downloads(
        bounds.folder, Hub(endpoint), budget_bytes=bounds.budget_bytes, timeout_seconds=bounds.timeout_seconds
    )
    return sweep([Task(target, probe)], Store(store), settings, downloads)


def _outcome(ray: Any, call: Any, task: Task, store: Store, settings: Settings) -> Report:
    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError) as error:
        # a process that the system kills for its memory looks the same
        reason = (
            f"its worker was lost {1 + TRIES_AFTER_A_LOST_WORKER} times, most likely for want of memory "
            f"({type(error).__name__}); try fewer --workers"
        )
        file_failure(task, store, settings, reason)
        return Report(failed=[(task, reason)])


def _tell(board: Board, task: Task, outcome: Report) -> None:
    if outcome.failed:
        board.finished(task, f"failed: {outcome.failed[0][1]}", failed=True)
    else:
        board.finished(task, "measured" if outcome.measured else "left to another process")


@contextmanager
def _cluster(ray: Any, options: Namespace) -> Iterator[None]:
    """Ray, connected; the disk budget of a cluster started here is this machine's."""
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False, logging_level="error")
    else:
        ray.init(
            resources={DISK: options.max_disk / 1e9} if options.max_disk else {},
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level="error",
        )
    try:
        if options.max_disk and DISK not in ray.cluster_resources():
            raise ValueError(
                f"expected a Ray cluster whose machines have the resource {DISK!r} for --max-disk, got "
                f"{', '.join(sorted(ray.cluster_resources()))}; start each with "
                f"ray start --resources='{{\"{DISK}\": 200}}', or leave --max-disk out"
            )
        yield
    finally:
        ray.shutdown()


def _resources(tasks: Sequence[Task], hub: Hub, options: Namespace) -> list[dict[str, Any]]:
    """What each task takes of a machine."""
    shares = {
        "num_cpus": max(1, (os.cpu_count() or 1) // options.workers),
        "num_gpus": 1 if options.device.startswith("cuda") else 0,
    }
    if not options.max_disk:
        return [shares] * len(tasks)
    with ThreadPoolExecutor(_LOOKUPS) as pool:
        sizes = list(pool.map(lambda task: _size(task.target, hub), tasks))
    # one that is larger than the budget must still get its turn, to be recorded as such
    return [{**shares, "resources": {DISK: min(size, options.max_disk) / 1e9}} for size in sizes]


def _size(target: Target, hub: Hub) -> int:
    if target.path is not None or target.missing:
        return 0
    try:
        return total_bytes(choose_files(hub.files(target.repository, target.commit), target.subfolder))
    except CheckpointError:
        return 0  # the worker meets the same failure and records it


def _imported() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ValueError("expected Ray for --engine ray, which is not installed; pip install 'repdyn[ray]'") from error
    return ray
