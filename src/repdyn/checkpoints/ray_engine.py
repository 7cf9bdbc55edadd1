"""Sweep with several workers, GPUs or machines: a Ray task for each checkpoint, coordinated by file
names alone.
"""

import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from repdyn.checkpoints.downloads import Downloads
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.measuring import Outcome, measure_tasks, store_failure
from repdyn.checkpoints.options import CompleteOptions
from repdyn.checkpoints.targets import Target
from repdyn.checkpoints.tasks import Task
from repdyn.probe import Probe
from repdyn.store import Store, store_at
from repdyn.utils.extras import install_line
from repdyn.utils.files import is_url

MAX_RETRIES = 3
_OBJECT_STORE_BYTES = 256_000_000  # the tasks share only probes
_CANCEL_SECONDS = 10


def sweep_with_ray(
    tasks: Sequence[Task], store: Store, options: CompleteOptions, hub: Hub
) -> Generator[Outcome]:
    """Measure checkpoints on the Ray cluster at RAY_ADDRESS, or on a local one that is started if
    it is not set.

    A task requests a GPU if the device is one, and a fraction 1 / ``workers`` of a machine's CPUs;
    it may use the same fraction of ``max_disk``. A task whose worker is lost is retried. All
    machines must reach the store.
    """
    if options.device.startswith("cuda:"):
        raise ValueError(
            'expected device="cuda" or "cpu" with engine="ray", which assigns the GPUs, got '
            f"{options.device!r}; select GPUs with CUDA_VISIBLE_DEVICES"
        )
    # before Ray is imported, which reads both; what the user has set counts
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_task_oom_retries", str(MAX_RETRIES))
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            f'expected Ray for engine="ray", which is not installed; {install_line("ray")}'
        ) from error
    if not tasks:
        return
    # a remote store by its URL, since each machine has a copy of its own
    location = store.location if is_url(store.location) else str(store.path.absolute())
    of_task = replace(
        options, max_disk=options.max_disk and max(1, options.max_disk // options.workers)
    )
    with _cluster(ray, options):
        remote = ray.remote(max_retries=MAX_RETRIES, **_resources(ray, options))(_measure_in_worker)
        # shared between the tasks: each would carry its own copy otherwise
        probes = {task.probe.hash: ray.put(task.probe) for task in tasks}
        waiting: dict[Any, Task] = {}
        try:
            for task in tasks:
                probe = probes[task.probe.hash]
                waiting[remote.remote(task.target, probe, location, of_task, hub.endpoint)] = task
            # in the order in which they end
            while waiting:
                (finished, *_), _ = ray.wait(list(waiting), num_returns=1)
                yield _outcome(ray, finished, waiting.pop(finished), store, options)
            store.refresh()  # with what the workers have uploaded
        finally:
            for call in waiting:
                ray.cancel(call, force=True)
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=_CANCEL_SECONDS)
            # those of killed workers on this machine; on other machines the next worker does so
            Downloads(hub, options).purge()


def _measure_in_worker(
    target: Target, probe: Probe, location: str, options: CompleteOptions, endpoint: str
) -> Outcome:
    """Measure one checkpoint in a worker, for the store at a path or URL."""
    task = Task(target, probe)
    store = store_at(location, refresh=False)
    (outcome,) = measure_tasks(
        [task], store, options, Downloads(Hub(endpoint, options.timeout), options)
    )
    # the worker, and with it the local copy, may be gone when its task has ended
    problem = store.drain()
    return Outcome(task, problem, "failed") if problem and outcome.state == "measured" else outcome


def _outcome(ray: Any, call: Any, task: Task, store: Store, options: CompleteOptions) -> Outcome:
    """Return the outcome of a call that ended, with this process's task in place of the worker's
    copy.
    """
    # an error of the worker's code is raised as it was there: a full disk ends the sweep
    try:
        return replace(ray.get(call), task=task)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.OutOfMemoryError,
        ray.exceptions.NodeDiedError,
    ) as error:
        reason = (
            f"its worker was lost {1 + MAX_RETRIES} times, most likely out of memory "
            f"({type(error).__name__}); try fewer workers="
        )
        store_failure(task, store, options, reason)
        return Outcome(task, reason, "failed")


@contextmanager
def _cluster(ray: Any, options: CompleteOptions) -> Iterator[None]:
    """Connect to Ray, or start a cluster on this machine."""
    on_sigterm = signal.getsignal(signal.SIGTERM)
    address = os.environ.get("RAY_ADDRESS") or "local"
    settings = {}
    if address == "local":  # starts a new cluster, even if one is running on this machine
        n_cpus = options.workers * max(1, torch.get_num_threads() // options.workers)
        settings = {
            "num_cpus": n_cpus,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
        }
    try:
        ray.init(address, log_to_driver=False, logging_level="error", **settings)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # replaced by Ray's own handler
        yield
    finally:
        ray.shutdown()


def _resources(ray: Any, options: CompleteOptions) -> dict[str, Any]:
    """Return the resources that each task requests, and raise ValueError if no machine has them."""
    needed = ("CPU", "GPU") if options.device.startswith("cuda") else ("CPU",)
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    suitable = [
        machine for machine in machines if all(machine.get(name, 0) >= 1 for name in needed)
    ]
    if not suitable:
        raise ValueError(
            f"expected a Ray cluster with a machine that has {' and '.join(needed)}, got "
            f"{len(machines)} without; add one, or choose device=cpu"
        )
    # of the smallest machine, so that a task fits on each
    n_cpus = int(min(machine["CPU"] for machine in suitable))
    return {"num_cpus": max(1, n_cpus // options.workers), "num_gpus": len(needed) - 1}
