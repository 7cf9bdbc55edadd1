"""Sweep with several workers, GPUs or machines: one Ray task per checkpoint."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from repdyn.checkpoints.downloads import downloads_of
from repdyn.checkpoints.errors import CheckpointError, SweepStoppedError
from repdyn.checkpoints.hub import Hub, map_concurrently, total_bytes
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.plan import Task
from repdyn.checkpoints.progress import ProgressDisplay
from repdyn.checkpoints.run import SweepResult, abort_on_repeated_failure, measure_tasks, store_failure
from repdyn.checkpoints.targets import Target
from repdyn.probe import Probe
from repdyn.store import Store, open_store
from repdyn.utils.addresses import is_url

DISK = "disk_gb"
"""Name of the Ray resource that limits the weights on a machine's disk, in GB."""
MAX_RETRIES = 3
_OBJECT_STORE_BYTES = 256_000_000  # the tasks share only probes
_UNITS = 10_000  # Ray counts resources in ten-thousandths
CHECK_SECONDS = 5.0
"""How often a sweep that waits for its workers looks for the head."""
LOST_SECONDS = 20.0
"""How long the head may be out of reach, as while it is started again. Ray ends the process after a minute."""
_CONNECT_SECONDS = 10
_CANCEL_SECONDS = 10
_UPLOAD_SECONDS = 120.0

Machine: TypeAlias = Mapping[str, float]
"""The resources of one machine of a cluster, by name."""


def sweep_with_ray(tasks: Sequence[Task], store: Store, options: SweepOptions, hub: Hub) -> SweepResult:
    """Measure checkpoints on the Ray cluster at RAY_ADDRESS, or on a local one that is started if it is not set.

    A task requests a GPU if the device is one, a fraction 1 / ``workers`` of a machine's CPUs and, with ``max_disk``, a
    share of the machine's resource ``disk_gb`` according to the size of its weights. A task whose worker is lost is
    retried.

    Args:
        tasks: checkpoints to measure.
        store: remote store, or one on a file system that all machines share.
        options: resolved.
        hub: hub from which the sizes of the checkpoints are read.

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
        budget = _budget(machines, options)
        remote = ray.remote(max_retries=MAX_RETRIES)(_measure_in_worker)
        probes = {task.probe.hash: ray.put(task.probe) for task in tasks}
        # a remote store by its URL, since each machine has a copy of its own
        place = store.location if is_url(store.location) else str(store.path.absolute())
        waiting = {}
        try:
            for task, size in zip(tasks, sizes, strict=True):
                call = remote.options(**_resources(size, machines, budget, options))
                probe = probes[task.probe.hash]
                with_budget = replace(options, max_disk=budget)
                waiting[call.remote(task.target, probe, task.attention, place, with_budget, hub.endpoint)] = task
            while waiting:
                finished = _finished(ray, list(waiting), head)
                task = waiting.pop(finished)
                outcome = _outcome(ray, finished, task, store, options, head)
                report.add(outcome)
                _show(display, task, outcome)
                store.refresh()
                for measured in outcome.measured:
                    display.warn_of_own_windows(measured, store.read(measured.key(options)))
                abort_on_repeated_failure(report)
        except ClusterLostError:
            waiting.clear()  # nothing is left to cancel, and Ray soon ends this process
            raise
        finally:
            _cancel(ray, list(waiting))
            # those of killed workers on this machine; on other machines the next worker does so
            downloads_of(options, hub).purge()
    return report


def _measure_in_worker(
    target: Target, probe: Probe, attention: str | None, place: str, options: SweepOptions, endpoint: str
) -> SweepResult:
    """Measure one checkpoint in a worker, for the store at a path or URL."""
    task, store = Task(target, probe, attention), open_store(place, refresh=False)
    downloads = downloads_of(options, Hub(endpoint, options.timeout))
    result = measure_tasks([task], store, options, downloads)
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


def _outcome(ray: Any, call: Any, task: Task, store: Store, options: SweepOptions, head: ClusterHead) -> SweepResult:
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
        store_failure(task, store, options, reason)
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


@contextmanager
def _cluster(ray: Any, options: SweepOptions) -> Iterator[None]:
    """Connect to Ray; a local cluster gets the disk budget as a resource."""
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        _connect(ray, os.environ.get("RAY_ADDRESS") or "local", options)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # replaced by Ray's own handler
        yield
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str, options: SweepOptions) -> None:
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


def _machines(ray: Any, options: SweepOptions) -> list[Machine]:
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


def _budget(machines: Sequence[Machine], options: SweepOptions) -> int | None:
    """Return the bytes that all tasks of a machine may have on its disk."""
    if options.max_disk is None:
        return None
    return min(options.max_disk, int(1e9 * max(machine[DISK] for machine in machines)))


def _resources(size: int, machines: Sequence[Machine], budget: int | None, options: SweepOptions) -> dict[str, Any]:
    """Return the resources that a task requests.

    Args:
        size: size of its files, in bytes.
        machines: the machines that can run it.
        budget: bytes that all tasks of a machine together may have on its disk.
        options: of the sweep.
    """
    n_cpus = int(min(machine["CPU"] for machine in machines))
    resources = {}
    if budget:
        # at most the whole budget, so that a larger checkpoint is scheduled too, and its failure recorded; a share,
        # since the resource of a machine is rounded to whole gigabytes
        share = min(1.0, size / budget)
        resources[DISK] = max(machine[DISK] for machine in machines) * math.ceil(share * _UNITS) / _UNITS
    return {
        "num_cpus": max(1, n_cpus // options.workers),
        "num_gpus": 1 if options.device.startswith("cuda") else 0,
        "resources": resources,
    }


def _sizes(tasks: Sequence[Task], hub: Hub, options: SweepOptions) -> list[int]:
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


class ClusterLostError(SweepStoppedError):
    """The head of the Ray cluster is out of reach, and with it all results that are not stored."""


class ClusterHead:
    """The head of a cluster that this process is connected to.

    Args:
        address: host and port of its control service; of another network, as behind ``ray://``, it is not watched.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_watched = self._is_reachable()
        self._missed_since: float | None = None

    def check(self) -> None:
        """Look for the head.

        Raises:
            ClusterLostError: it has been out of reach for long.
        """
        asked = time.monotonic()
        if not self._is_watched or self._is_reachable():
            self._missed_since = None
            return
        self._missed_since = self._missed_since or asked
        if time.monotonic() - self._missed_since > LOST_SECONDS:
            raise ClusterLostError(
                f"expected the head of the Ray cluster at {self._address}, it has been out of reach for "
                f"{LOST_SECONDS:g} s; what is measured is stored: start the cluster again, set RAY_ADDRESS to it, and "
                "the same command goes on from there"
            )

    def wait(self) -> None:
        """Return once the head is there.

        Raises:
            ClusterLostError: it is not there in time.
        """
        self.check()
        while self._missed_since is not None:
            time.sleep(1)
            self.check()

    def _is_reachable(self) -> bool:
        try:
            check_reachable(self._address)
        except OSError:
            return False
        return True


def check_reachable(address: str) -> None:
    """Raise OSError if an address is not reachable, which Ray itself would retry for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
