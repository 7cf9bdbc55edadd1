"""Sweep with several workers, GPUs or machines: one Ray task per checkpoint."""

from __future__ import annotations

import math
import os
import signal
import threading
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from repdyn.hub.client import Hub, total_bytes
from repdyn.hub.errors import CheckpointError
from repdyn.hub.transfer import map_concurrently
from repdyn.probe import Probe
from repdyn.store import Store, open_store
from repdyn.sweep.checkpoint import store_failure
from repdyn.sweep.downloads import DownloadLimits, Downloads
from repdyn.sweep.loop import SweepResult, abort_on_repeated_failure, sweep
from repdyn.sweep.progress import ProgressDisplay
from repdyn.sweep.ray_head import CHECK_SECONDS, ClusterHead, ClusterLostError, check_reachable
from repdyn.sweep.targets import Target
from repdyn.sweep.tasks import Settings, Task
from repdyn.utils.addresses import is_url

DISK = "disk_gb"
"""Name of the Ray resource that limits the weights on a machine's disk, in GB."""
MAX_RETRIES = 3
_OBJECT_STORE_BYTES = 256_000_000  # the tasks share only probes
_UNITS = 10_000  # Ray counts resources in ten-thousandths
_CANCEL_SECONDS = 10
_UPLOAD_SECONDS = 120.0

Machine: TypeAlias = Mapping[str, float]
"""The resources of one machine of a cluster, by name."""


def sweep_with_ray(
    tasks: Sequence[Task], store: Store, settings: Settings, hub: Hub, options: Namespace
) -> SweepResult:
    """Measure checkpoints on the Ray cluster at RAY_ADDRESS, or on a local one that is started if it is not set.

    A task requests a GPU if the device is one, a fraction 1 / ``workers`` of a machine's CPUs and, with ``max_disk``, a
    share of the machine's resource ``disk_gb`` according to the size of its weights. A task whose worker is lost is
    retried.

    Args:
        tasks: checkpoints to measure.
        store: remote store, or one on a file system that all machines share.
        settings: metrics, and options for loading and running the models.
        hub: hub from which the sizes of the checkpoints are read.
        options: command line options: workers, device, max_disk, downloads, timeout, trust_remote_code.

    Raises:
        ValueError: Ray is not installed, or no machine of the cluster has the requested resources.
        SweepStoppedError: no connection, no space on a disk, all checkpoints fail for the same reason, or the head of
            the cluster is lost.
    """
    _validate_device(options.device)
    ray = _import_ray()
    report = SweepResult()
    if not tasks:
        return report
    sizes = _sizes(tasks, hub, options)
    with _cluster(ray, options), ProgressDisplay(len(tasks)) as display:
        head = ClusterHead(ray.get_runtime_context().gcs_address)
        machines = _machines(ray, options)
        limits = _download_limits(machines, options)
        remote = ray.remote(max_retries=MAX_RETRIES)(_measure_in_worker)
        probes = {task.probe.hash: ray.put(task.probe) for task in tasks}
        # a remote store by its URL, since each machine has a copy of its own
        place = store.location if is_url(store.location) else str(store.path.absolute())
        waiting = {}
        try:
            for task, size in zip(tasks, sizes, strict=True):
                call = remote.options(**_resources(size, machines, limits, options))
                probe = probes[task.probe.hash]
                waiting[call.remote(task.target, probe, place, settings, hub.endpoint, limits)] = task
            while waiting:
                finished = _finished(ray, list(waiting), head)
                task = waiting.pop(finished)
                outcome = _outcome(ray, finished, task, store, settings, head)
                report.add(outcome)
                _show(display, task, outcome)
                store.refresh()
                for measured in outcome.measured:
                    display.warn_of_own_windows(measured, store.read(settings.key(measured)))
                abort_on_repeated_failure(report)
        except ClusterLostError:
            waiting.clear()  # nothing is left to cancel, and Ray soon ends this process
            raise
        finally:
            _cancel(ray, list(waiting))
            _remove_leftovers(limits, hub)
    return report


def _measure_in_worker(
    target: Target, probe: Probe, place: str, settings: Settings, endpoint: str, limits: DownloadLimits
) -> SweepResult:
    """Measure one checkpoint in a worker, for the store at a path or URL."""
    task, store = Task(target, probe), open_store(place, refresh=False)
    result = sweep([task], store, settings, Downloads(Hub(endpoint, limits.timeout_seconds), limits))
    problem = store.drain(_UPLOAD_SECONDS)
    return SweepResult(failed=[(task, problem)]) if problem and result.measured else result


def _finished(ray: Any, calls: list[Any], head: ClusterHead) -> Any:
    """Return a call that has finished, once there is one.

    Raises:
        ClusterLostError: the head is lost, so that none will.
    """
    while True:
        finished, _ = ray.wait(calls, num_returns=1, timeout=CHECK_SECONDS)
        if finished:
            return finished[0]
        head.check()


def _outcome(ray: Any, call: Any, task: Task, store: Store, settings: Settings, head: ClusterHead) -> SweepResult:
    try:
        result = ray.get(call)
        # with this process's task in place of the worker's copy
        failed = [(task, reason) for _, reason in result.failed]
        return SweepResult([task] * len(result.measured), failed, [task] * len(result.skipped))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError) as error:
        # including workers that the system kills for their memory use, but not those that were lost with the cluster
        head.wait()
        reason = (
            f"its worker was lost {1 + MAX_RETRIES} times, most likely out of memory "
            f"({type(error).__name__}); try fewer --workers"
        )
        store_failure(task, store, settings, reason)
        return SweepResult(failed=[(task, reason)])


def _show(display: ProgressDisplay, task: Task, outcome: SweepResult) -> None:
    if outcome.failed:
        display.finished(task, f"failed: {outcome.failed[0][1]}", failed=True)
    else:
        display.finished(task, "measured" if outcome.measured else "skipped, measured by another process")


def _cancel(ray: Any, calls: list[Any]) -> None:
    """Cancel waiting tasks and kill running ones."""
    for call in calls:
        ray.cancel(call, force=True)
    if calls:
        ray.wait(calls, num_returns=len(calls), timeout=_CANCEL_SECONDS)


def _remove_leftovers(limits: DownloadLimits, hub: Hub) -> None:
    """Delete the downloads of killed workers on this machine; on other machines the next worker does so."""
    with Downloads(hub, limits).opened():
        pass


@contextmanager
def _cluster(ray: Any, options: Namespace) -> Iterator[None]:
    """Connect to Ray; a local cluster gets the disk budget as a resource."""
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        _connect(ray, os.environ.get("RAY_ADDRESS") or "local", options)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # replaced by Ray's own handler
        yield
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str, options: Namespace) -> None:
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if address == "local":  # starts a new cluster, even if one is running on this machine
        ray.init(
            address,
            num_cpus=options.workers * max(1, torch.get_num_threads() // options.workers),
            resources={DISK: math.ceil(options.max_disk / 1e9)} if options.max_disk else {},
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            **quiet,
        )
        return
    try:
        check_reachable(address)
        ray.init(address, **quiet)
    except OSError as error:
        raise ValueError(
            f"expected a Ray cluster at RAY_ADDRESS, {address!r}, got no connection ({error}); start it with ray start "
            "--head, set RAY_AUTH_MODE=token if it requires Ray's token, or unset RAY_ADDRESS"
        ) from error


def _machines(ray: Any, options: Namespace) -> list[Machine]:
    """Return the machines that can run a task, and raise ValueError if there is none."""
    needed = {}
    if options.max_disk:
        needed[DISK] = f"start each with ray start --resources='{{\"{DISK}\": 200}}', or omit --max-disk"
    if options.device.startswith("cuda"):
        needed["GPU"] = "add one, or choose --device cpu"
    needed["CPU"] = "add one"
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    suitable = [machine for machine in machines if all(machine.get(name, 0) >= 1 for name in needed)]
    if not suitable:
        advice = next(needed[name] for name in needed if any(machine.get(name, 0) < 1 for machine in machines))
        got = "; ".join(", ".join(sorted(name for name in machine if ":" not in name)) for machine in machines)
        raise ValueError(f"expected a Ray cluster with a machine that has {', '.join(needed)}, got {got}; {advice}")
    return suitable


def _download_limits(machines: Sequence[Machine], options: Namespace) -> DownloadLimits:
    limits = DownloadLimits.from_options(options)
    if limits.budget_bytes is None:
        return limits
    return replace(limits, budget_bytes=min(limits.budget_bytes, int(1e9 * max(machine[DISK] for machine in machines))))


def _resources(size: int, machines: Sequence[Machine], limits: DownloadLimits, options: Namespace) -> dict[str, Any]:
    """Return the resources that a task requests.

    Args:
        size: size of its files, in bytes.
        machines: the machines that can run it.
        limits: limits of all tasks of a machine together.
        options: command line options.
    """
    n_cpus = int(min(machine["CPU"] for machine in machines))
    resources = {}
    if limits.budget_bytes:
        # at most the whole budget, so that a larger checkpoint is scheduled too, and its failure recorded; a share,
        # since the resource of a machine is rounded to whole gigabytes
        share = min(1.0, size / limits.budget_bytes)
        resources[DISK] = max(machine[DISK] for machine in machines) * math.ceil(share * _UNITS) / _UNITS
    return {
        "num_cpus": max(1, n_cpus // options.workers),
        "num_gpus": 1 if options.device.startswith("cuda") else 0,
        "resources": resources,
    }


def _sizes(tasks: Sequence[Task], hub: Hub, options: Namespace) -> list[int]:
    """Return the number of bytes to download for each task; zeros without a disk budget."""
    if not options.max_disk:
        return [0] * len(tasks)
    return map_concurrently(lambda task: _size(task.target, hub, options.trust_remote_code), tasks)


def _size(target: Target, hub: Hub, with_code: bool) -> int:
    try:
        return total_bytes(target.remote_files(hub, with_code=with_code))
    except CheckpointError:
        return 0  # the worker fails in the same way, and records it


def _validate_device(device: str) -> None:
    if device.startswith("cuda:"):
        raise ValueError(
            f"expected --device cuda or cpu with --engine ray, which assigns the GPUs, got {device!r}; select GPUs "
            "with CUDA_VISIBLE_DEVICES"
        )


def _import_ray() -> Any:
    """Import Ray with usage statistics off and with a limit on retries after out-of-memory errors."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_task_oom_retries", str(MAX_RETRIES))
    try:
        import ray
    except ImportError as error:
        raise ValueError("expected Ray for --engine ray, which is not installed; pip install 'repdyn[ray]'") from error
    return ray
