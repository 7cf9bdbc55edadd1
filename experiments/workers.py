"""Where runs are trained: in processes of this machine, or on the machines of a Ray cluster."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from experiments.materials import Materials
from experiments.plan import Run

_KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 30),
}
"""Settings of glibc's allocator: a step that gets its activations anew from the system takes a
fifth longer.
"""
_RETRIES = 3
"""How often a run is started again after its machine or process was lost."""


class Worker(ABC):
    """A process that trains one run and writes its output to ``log``."""

    @abstractmethod
    def exit_status(self) -> int | None:
        """Return the exit status, or None while the process runs."""

    @abstractmethod
    def interrupt(self) -> None:
        """Ask the run to stop after the current step, and to save a checkpoint."""

    @abstractmethod
    def kill(self) -> None:
        """End the process at once."""


class LocalWorker(Worker):
    """A process of this machine."""

    def __init__(self, command: list[str], log: Path, threads: int) -> None:
        environment = {**os.environ, **_KEEP_FREED_MEMORY, "OMP_NUM_THREADS": str(threads)}
        with log.open("ab") as output:
            # a session of its own: Ctrl-C reaches it through interrupt() alone, once
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def exit_status(self) -> int | None:
        return self._process.poll()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self._process.kill()


class RayWorker(Worker):
    """A task on a Ray cluster, all of whose machines see the output folder and the text under the
    same paths.

    A run whose machine or process is lost is started again elsewhere, from its last checkpoint.
    """

    def __init__(self, ray: Any, materials: Materials, run: Run, log: Path, threads: int) -> None:
        environment = {**_KEEP_FREED_MEMORY, "OMP_NUM_THREADS": str(threads)}
        # max_calls: a process of its own for each run, since its output goes to the log
        task = ray.remote(num_cpus=threads, max_retries=_RETRIES, max_calls=1)(_train_in_task)
        task = task.options(runtime_env={"env_vars": environment})
        self._ray, self._log = ray, log
        self._call = task.remote(materials, run, str(log.absolute()), threads)

    def exit_status(self) -> int | None:
        finished, _ = self._ray.wait([self._call], timeout=0)
        if not finished:
            return None
        try:
            return self._ray.get(self._call)
        except self._ray.exceptions.RayError as error:
            with self._log.open("a") as log:
                log.write(f"{type(error).__name__}: {str(error).splitlines()[0]}\n")
            return 1

    def interrupt(self) -> None:
        self._ray.cancel(self._call, recursive=False)

    def kill(self) -> None:
        self._ray.cancel(self._call, force=True)


def connect_to_ray(workers: int, threads: int) -> Any:
    """Connect to the Ray cluster at RAY_ADDRESS, or start one of this machine alone, and return the
    module ``ray``.

    Raises:
        ValueError: Ray is not installed.
        ConnectionError: no cluster can be reached there.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ValueError(
            "expected Ray for --ray, which is not installed; pip install 'repdyn[ray]'"
        ) from error
    address = os.environ.get("RAY_ADDRESS") or "local"
    local = (
        {"num_cpus": workers * threads, "include_dashboard": False} if address == "local" else {}
    )
    ray.init(address, log_to_driver=False, logging_level="error", **local)
    return ray


def _train_in_task(materials: Materials, run: Run, log: str, threads: int) -> int:
    """Train a run in a worker of Ray, with its output in ``log``, and return the exit status."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    # imported here, since the allocator's settings must hold before torch is used
    torch = importlib.import_module("torch")
    train = importlib.import_module("experiments.train").train
    torch.set_num_threads(threads)
    try:
        train(materials, run)
    except SystemExit as stopped:  # which Ray would take for a lost process
        print(stopped.code, file=sys.stderr, flush=True)
        return 1
    return 0
