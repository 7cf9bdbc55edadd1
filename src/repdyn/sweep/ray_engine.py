"""Sweep with several workers, GPUs or machines at once: one Ray task per checkpoint."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from repdyn.hub.client import Hub, total_bytes
from repdyn.hub.errors import CheckpointError
from repdyn.probe import Probe
from repdyn.store import Store
from repdyn.sweep.checkpoint import Settings, Task, store_failure
from repdyn.sweep.downloads import DownloadLimits, Downloads
from repdyn.sweep.loop import SweepResult, abort_on_repeated_failure, sweep
from repdyn.sweep.progress import ProgressDisplay
from repdyn.sweep.targets import Target, concurrently

DISK = "disk_gb"
"""Name of the Ray resource that bounds the weights on one machine's disk."""
TRIES_AFTER_A_LOST_WORKER = 3
_OBJECT_STORE_BYTES = 256_000_000  # the tasks share nothing but probes
_PARTS = 10_000  # Ray counts resources in ten-thousandths
_ANSWER_SECONDS = 10
_END_SECONDS = 10

Machine: TypeAlias = Mapping[str, float]
"""The resources of one machine of a cluster, by name."""


def sweep_with_ray(
    tasks: Sequence[Task], store: Store, settings: Settings, hub: Hub, options: Namespace
) -> SweepResult:
    """Measure checkpoints on the Ray cluster that RAY_ADDRESS names, or else on one started here.

    A task takes a GPU where the device is one, its share of a machine's CPUs (one in ``workers``) and, with
    ``max_disk``, as much of the machine's resource ``disk_gb`` as its weights take of the budget. A task whose worker
    is lost is tried again.

    Args:
        tasks: what to measure.
        store: on a file system that all machines share.
        settings: how each is measured.
        hub: lists the sizes of the checkpoints.
        options: of the command line: workers, device, max_disk, downloads, timeout, trust_remote_code.

    Raises:
        ValueError: Ray is not installed, or no machine of its cluster has what a task takes.
        SweepStoppedError: no connection, no space on a disk, or one reason for which all fail.
    """
    _validate_device(options.device)
    ray = _import_ray()
    report = SweepResult()
    if not tasks:
        return report
    sizes = _sizes(tasks, hub, options)
    with _cluster(ray, options), ProgressDisplay(len(tasks)) as display:
        machines = _machines(ray, options)
        limits = _download_limits(machines, options)
        remote = ray.remote(max_retries=TRIES_AFTER_A_LOST_WORKER)(_measure_there)
        probes = {task.probe.hash: ray.put(task.probe) for task in tasks}
        waiting = {}
        try:
            for task, size in zip(tasks, sizes, strict=True):
                call = remote.options(**_resources(size, machines, limits, options))
                probe = probes[task.probe.hash]
                waiting[call.remote(task.target, probe, store.path.absolute(), settings, hub.endpoint, limits)] = task
            while waiting:
                (finished,), _ = ray.wait(list(waiting), num_returns=1)
                task = waiting.pop(finished)
                outcome = _outcome(ray, finished, task, store, settings)
                report.add(outcome)
                _show(display, task, outcome)
                for measured in outcome.measured:
                    display.warn_of_own_windows(measured, store.read(settings.key(measured)))
                abort_on_repeated_failure(report)
        finally:
            _cancel(ray, list(waiting))
            _remove_leftovers(limits, hub)
    return report


def _measure_there(
    target: Target, probe: Probe, store: Path, settings: Settings, endpoint: str, limits: DownloadLimits
) -> SweepResult:
    """Sweep one checkpoint, in a worker."""
    return sweep([Task(target, probe)], Store(store), settings, Downloads(Hub(endpoint), limits))


def _outcome(ray: Any, call: Any, task: Task, store: Store, settings: Settings) -> SweepResult:
    try:
        there = ray.get(call)
        # the tasks it names are copies
        failed = [(task, reason) for _, reason in there.failed]
        return SweepResult([task] * len(there.measured), failed, [task] * len(there.elsewhere))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError) as error:
        # a process that the system kills for its memory looks the same
        reason = (
            f"its worker was lost {1 + TRIES_AFTER_A_LOST_WORKER} times, most likely out of memory "
            f"({type(error).__name__}); try fewer --workers"
        )
        store_failure(task, store, settings, reason)
        return SweepResult(failed=[(task, reason)])


def _show(display: ProgressDisplay, task: Task, outcome: SweepResult) -> None:
    if outcome.failed:
        display.finished(task, f"failed: {outcome.failed[0][1]}", failed=True)
    else:
        display.finished(task, "measured" if outcome.measured else "left to another process")


def _cancel(ray: Any, calls: list[Any]) -> None:
    """Cancel waiting tasks and kill running ones."""
    for call in calls:
        ray.cancel(call, force=True)
    if calls:
        ray.wait(calls, num_returns=len(calls), timeout=_END_SECONDS)


def _remove_leftovers(limits: DownloadLimits, hub: Hub) -> None:
    """Remove the downloads of killed workers on this machine; on others the next worker does it."""
    with Downloads(hub, limits).opened():
        pass


@contextmanager
def _cluster(ray: Any, options: Namespace) -> Iterator[None]:
    """Connect to Ray; a cluster started here takes this machine's disk budget."""
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        _connect(ray, os.environ.get("RAY_ADDRESS") or "local", options)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray has put its own in its place
        yield
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str, options: Namespace) -> None:
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if address == "local":  # never a Ray that happens to run here
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
        _require_answer(address)
        ray.init(address, **quiet)
    except OSError as error:
        raise ValueError(
            f"expected a Ray cluster at RAY_ADDRESS, {address!r}, got no connection ({error}); start it with ray start "
            "--head, set RAY_AUTH_MODE=token if it requires Ray's token, or unset RAY_ADDRESS"
        ) from error


def _require_answer(address: str) -> None:
    """Fail at once if nothing answers: Ray itself would retry for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()


def _machines(ray: Any, options: Namespace) -> list[Machine]:
    """Return the machines that can run a task; one that fits nowhere would wait forever."""
    needed = {}
    if options.max_disk:
        needed[DISK] = f"start each with ray start --resources='{{\"{DISK}\": 200}}', or leave --max-disk out"
    if options.device.startswith("cuda"):
        needed["GPU"] = "add one that has, or choose --device cpu"
    needed["CPU"] = "add one that has"
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    able = [machine for machine in there if all(machine.get(name, 0) >= 1 for name in needed)]
    if not able:
        advice = next(needed[name] for name in needed if any(machine.get(name, 0) < 1 for machine in there))
        got = "; ".join(", ".join(sorted(name for name in machine if ":" not in name)) for machine in there)
        raise ValueError(f"expected a Ray cluster with a machine that has {', '.join(needed)}, got {got}; {advice}")
    return able


def _download_limits(machines: Sequence[Machine], options: Namespace) -> DownloadLimits:
    limits = DownloadLimits.from_options(options)
    if limits.budget_bytes is None:
        return limits
    return replace(limits, budget_bytes=min(limits.budget_bytes, int(1e9 * max(machine[DISK] for machine in machines))))


def _resources(size: int, machines: Sequence[Machine], limits: DownloadLimits, options: Namespace) -> dict[str, Any]:
    """Return the resources that a task requests.

    Args:
        size: of its files, in bytes.
        machines: that can take it.
        limits: how much of the disk all tasks of a machine may take.
        options: of the command line.
    """
    n_cpus = int(min(machine["CPU"] for machine in machines))
    resources = {}
    if limits.budget_bytes:
        # One that is larger than the budget must get its turn too, to be recorded as such. A machine counts whole
        # gigabytes, so the share in the budget is what is taken of them.
        share = min(1.0, size / limits.budget_bytes)
        resources[DISK] = max(machine[DISK] for machine in machines) * math.ceil(share * _PARTS) / _PARTS
    return {
        "num_cpus": max(1, n_cpus // options.workers),
        "num_gpus": 1 if options.device.startswith("cuda") else 0,
        "resources": resources,
    }


def _sizes(tasks: Sequence[Task], hub: Hub, options: Namespace) -> list[int]:
    """Return the bytes to download for each task; zeros without a disk budget."""
    if not options.max_disk:
        return [0] * len(tasks)
    return concurrently(lambda task: _size(task.target, hub, options.trust_remote_code), tasks)


def _size(target: Target, hub: Hub, with_code: bool) -> int:
    try:
        return total_bytes(target.remote_files(hub, with_code=with_code))
    except CheckpointError:
        return 0  # the worker meets the same failure and records it


def _validate_device(device: str) -> None:
    if device.startswith("cuda:"):
        raise ValueError(
            f"expected --device cuda or cpu with --engine ray, which hands out the GPUs itself, got {device!r}; choose "
            "among them with CUDA_VISIBLE_DEVICES"
        )


def _import_ray() -> Any:
    """Import Ray with usage statistics off and with a limit on retries after out-of-memory errors."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_task_oom_retries", str(TRIES_AFTER_A_LOST_WORKER))
    try:
        import ray
    except ImportError as error:
        raise ValueError("expected Ray for --engine ray, which is not installed; pip install 'repdyn[ray]'") from error
    return ray
